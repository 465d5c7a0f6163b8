"""Sources of images: folders, tar shards, Parquet, torchvision data sets, built-in sets."""
