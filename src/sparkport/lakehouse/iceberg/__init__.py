"""Iceberg tables as files: metadata, manifests, deletes, and which files and rows a reader needs."""
