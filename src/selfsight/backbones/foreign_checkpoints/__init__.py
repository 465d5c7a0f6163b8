"""Load checkpoints of other projects: read files, infer the network, translate names, load."""
