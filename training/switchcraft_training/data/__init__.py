"""Training data: the table of examples and arms, sources of outcomes, and splits."""
