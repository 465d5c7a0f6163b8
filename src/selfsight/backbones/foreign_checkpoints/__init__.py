"""Weights that other projects wrote: read files, infer the network, translate names, load."""
