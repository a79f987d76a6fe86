"""Checks a store against its metadata and its own checksums."""
