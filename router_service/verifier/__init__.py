"""The verifier: estimates whether a candidate answer is correct, and which arm to ask next."""
