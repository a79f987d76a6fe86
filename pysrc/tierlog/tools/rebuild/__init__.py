"""Makes index files anew, from a log directory or a store."""
