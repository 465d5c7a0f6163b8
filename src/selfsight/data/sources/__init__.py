"""Where images come from: folders, tar shards, Parquet, torchvision, built-in sets."""
