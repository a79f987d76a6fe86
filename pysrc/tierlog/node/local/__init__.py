"""A node's own topics: written here, kept in its data directory, tiered to its store.

cluster > logs, tiering > topics
"""
