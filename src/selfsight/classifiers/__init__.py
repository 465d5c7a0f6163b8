"""Classifiers for the user's own images: train on labels, measure, save, predict."""
