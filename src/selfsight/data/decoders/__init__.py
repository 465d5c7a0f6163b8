"""Decoders: a file's bytes to pixels, one module per format, and the one that chooses."""
