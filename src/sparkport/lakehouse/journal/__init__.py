"""Small changes that are committed in the catalog's database and wait there for Spark to publish them."""
