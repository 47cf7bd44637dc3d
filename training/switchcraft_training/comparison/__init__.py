"""Comparison of our checker's verdicts with those of the leaderboard's own checker."""
