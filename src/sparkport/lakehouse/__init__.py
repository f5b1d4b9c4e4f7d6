"""The lakehouse engine: tables in Apache Iceberg, rows written by Spark, read straight from the files."""
