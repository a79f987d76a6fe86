"""The index sections of remote segments, kept in memory and on disk."""
