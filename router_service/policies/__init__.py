"""Policies: expected costs and probabilities -> the chosen arm, with the reason."""
