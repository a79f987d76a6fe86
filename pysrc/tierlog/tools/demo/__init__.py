"""Tiers logs, reads the records back from the store, and makes a report."""
