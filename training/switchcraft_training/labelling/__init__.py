"""Asks every arm of a pool every query, and keeps each answer as soon as it is there."""
