"""Load encoders to measure, use or start from: of a run, of a file, of a library, or untrained."""
