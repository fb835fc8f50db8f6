"""Text out of a model: sampling, batched generation with a key/value cache, text as it comes."""
