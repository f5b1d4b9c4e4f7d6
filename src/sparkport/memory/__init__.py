"""The memory engine: the executable specification that every other engine has to equal."""

from sparkport.memory.catalog import MemoryCatalog, MemorySchema
from sparkport.memory.table import MemoryTable

__all__ = ["MemoryCatalog", "MemorySchema", "MemoryTable"]
