"""Rebuilds index files from a log directory or a store."""
