"""Answers a fetch of many partitions from both tiers (`setup.open_fetcher`)."""
