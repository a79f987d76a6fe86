"""Reads one partition over one or two tiers: positions, memory, read-ahead, transactions."""
