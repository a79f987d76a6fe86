"""One file per API; see `tierlog.node`."""
