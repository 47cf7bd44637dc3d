"""A gateway's decision log as a source of training data: queries and the outcomes of arms."""
