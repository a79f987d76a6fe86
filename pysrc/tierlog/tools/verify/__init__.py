"""Checks a log directory or a store."""
