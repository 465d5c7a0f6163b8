"""The functions of Python."""
