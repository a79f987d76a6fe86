"""Moves partitions between brokers under KIP-73's throttle."""
