"""Text on disk to packed rows of token ids: numpy only, no torch. Import the file you need; nothing is loaded here."""
