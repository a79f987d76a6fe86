"""The remoteLogIndex files of a partition on disk."""
