"""Remote index files: one partition's remoteLogIndex and its indexes on local disk."""
