"""Changes that find their rows by key: the rows of the input, the rows of the table that have the same key."""
