"""The decision log of a gateway as a source of training: queries, and what came of asking arms."""
