"""State that replicas may share, behind one interface: in memory or in Redis."""
