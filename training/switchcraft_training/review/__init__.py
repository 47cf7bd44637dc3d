"""Review of a benchmark's expected calls: a critic model flags rows, and a person decides."""
