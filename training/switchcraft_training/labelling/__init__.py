"""Labelling: ask every arm of a pool every query, and save each answer immediately."""
