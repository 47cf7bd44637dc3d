"""Our verdicts beside those of the leaderboard's own checker."""
