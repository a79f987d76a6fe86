"""The fetch path: many partitions, two tiers, one answer (`setup.open_fetcher`)."""
