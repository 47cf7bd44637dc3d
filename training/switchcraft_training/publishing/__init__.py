"""Publishing: copy an artifact to where gateways find it, and move the pointer to it."""
