"""What keeps a lakehouse in order: maintenance, recovery, upgrades, dropped tables."""
