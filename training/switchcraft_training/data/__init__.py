"""Training data: the table of examples and arms, where outcomes come from, and splits."""
