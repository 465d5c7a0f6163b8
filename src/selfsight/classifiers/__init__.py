"""Classifiers of one's own images: trained on labels, measured, saved, and used to predict."""
