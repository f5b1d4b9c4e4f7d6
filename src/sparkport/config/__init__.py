"""The settings of the server: their kinds, their table, and where they are read from."""

from sparkport.config.kinds import BOOLEAN, Kind, parse_size
from sparkport.config.settings import PREFIX, SETTINGS, Setting, Settings
from sparkport.config.sources import CONFIG_VARIABLE, load

__all__ = ["BOOLEAN", "CONFIG_VARIABLE", "Kind", "PREFIX", "SETTINGS", "Setting", "Settings", "load", "parse_size"]
