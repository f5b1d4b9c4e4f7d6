"""Where the tables are: SQL and REST catalogs, and the ledger of transactions."""
