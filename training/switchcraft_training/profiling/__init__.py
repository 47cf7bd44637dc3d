"""From token counts and prices to the cost profile."""
