"""Use the vectors of an encoder: write them, search, explore and query with an image."""
