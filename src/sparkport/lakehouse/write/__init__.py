"""Changes on their way into a table: net changes, Spark's snapshots of them, the commit."""
