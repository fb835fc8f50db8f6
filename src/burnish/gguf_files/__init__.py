"""GGUF files without torch: their header, what stands in them for a config, and how many bytes that takes."""
