"""The records of a partition, selected and formatted for printing."""
