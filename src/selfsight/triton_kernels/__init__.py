"""Triton kernels, and functions that several of them share."""
