"""The server: the routes that clients of OpenAI's API know, over one engine."""
