"""Whether a lakehouse is what its catalog says it is."""
