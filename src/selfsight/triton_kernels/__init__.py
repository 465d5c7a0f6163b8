"""Triton functions that several kernels share."""
