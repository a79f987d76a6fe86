"""Makes the golden log directories: workloads on a real broker, captured with their truth."""
