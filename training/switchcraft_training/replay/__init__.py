"""Off-policy evaluation of other policies and artifacts on a gateway's decision log."""
