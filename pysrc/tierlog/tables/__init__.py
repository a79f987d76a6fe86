"""Read topics as Arrow tables: options, plan and tasks. This package does not need Spark."""
