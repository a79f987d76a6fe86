"""Metadata of remote segments: in memory, in SQLite, or in Kafka's metadata topic."""
