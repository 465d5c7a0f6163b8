"""What is printed to a terminal: text, tables and progress."""
