"""Write an encoder for other libraries: weights in their names, and the lines that load them."""
