"""Segments in a store: keys, `.log` and `.indexes` objects, and the storage managers."""
