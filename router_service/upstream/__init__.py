"""Talks to the models' endpoints: one HTTP client, and the relay of what they answer."""
