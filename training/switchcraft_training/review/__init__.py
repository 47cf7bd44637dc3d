"""Review of a benchmark's expected calls: a verifier model flags rows, and a person decides."""
