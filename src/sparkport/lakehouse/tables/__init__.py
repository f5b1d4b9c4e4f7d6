"""The catalog's tables as the server sees them, and their statements."""
