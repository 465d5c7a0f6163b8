"""Decide between an encoder as it is, continued pretraining, and training from scratch."""
