"""Write an encoder for other libraries: weights in their names, and the code that loads them."""
