"""Decide between the unchanged encoder, continued pretraining, and training from scratch."""
