"""How good a router is: metrics with errors, and the report."""
