"""The remote log manager and its tasks: copy, expiration, follower, delete."""
