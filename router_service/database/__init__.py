"""The database of keys, teams, budgets and usage: its schema, connections and migrations."""
