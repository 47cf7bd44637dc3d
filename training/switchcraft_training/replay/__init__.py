"""What another policy, or another artifact, would have come to on a gateway's decision log."""
