"""One suite for every engine."""
