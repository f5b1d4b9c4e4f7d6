"""Tables as one caller may see them: row filters and column masks, enforced around whatever the table is."""
