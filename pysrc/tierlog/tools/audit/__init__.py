"""Checks the objects of a store against the metadata and against the checksums in the objects."""
