"""Options of every command: one frozen dataclass for the command line, Python and the code."""
