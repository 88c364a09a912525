"""Sickbay keeps GPU clusters training."""

__version__ = "0.1.0"
