"""Which segments are in the tier: in memory, in SQLite, in a Kafka topic."""
