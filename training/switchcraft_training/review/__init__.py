"""Review of a benchmark's truths: a verifier model flags entries, a person decides."""
