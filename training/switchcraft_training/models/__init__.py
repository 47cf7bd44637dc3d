"""Models: the encoder and the other branches of the router, their training, and their export."""
