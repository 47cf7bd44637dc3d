"""Download of the public recordings that the shipped configurations train from."""
