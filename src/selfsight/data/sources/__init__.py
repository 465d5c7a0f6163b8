"""Kinds of sources: folders, tar shards, Parquet, torchvision data sets, built-in sets."""
