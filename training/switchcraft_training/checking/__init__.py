"""The AST checker: compares tool calls by structure."""
