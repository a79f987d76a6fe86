"""Selects and formats the records of partitions for printing."""
