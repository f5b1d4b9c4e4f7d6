"""The page for people who look after a server: what runs, what there is, and buttons for what can be done about it."""

from sparkport.console.app import Console, ConsoleSettings
from sparkport.console.shown_settings import ShownSetting, shown_settings

__all__ = ["Console", "ConsoleSettings", "ShownSetting", "shown_settings"]
