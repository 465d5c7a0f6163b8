"""The command line: the commands, their flags and help."""
