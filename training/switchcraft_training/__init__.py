"""Makes what the gateway needs: labels, an encoder, a cost profile and a report."""
