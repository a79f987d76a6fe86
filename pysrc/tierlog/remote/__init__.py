"""The remote tier: object stores, segments in them, their metadata, and caches of their indexes."""
