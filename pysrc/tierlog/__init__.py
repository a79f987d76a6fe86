"""tierlog: tiered storage for Apache Kafka logs."""
