"""Columns and types: as clients declare them, as Iceberg has them, and as they are stored."""
