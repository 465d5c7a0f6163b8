"""The files of a run folder: their names, the results in them, and how JSON is read and written."""
