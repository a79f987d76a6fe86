"""Makes the golden log directories: workloads run on a real broker, then captured with their truth."""
