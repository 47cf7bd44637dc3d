"""The three APIs that clients and upstreams speak, and the translation between them."""
