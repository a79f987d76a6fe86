"""Topics as Arrow tables: options, plan and tasks, without Spark."""
