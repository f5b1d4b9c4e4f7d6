"""The schema ``spark`` of every catalog that has a Spark."""
