"""The only module that chooses adapters."""

from sickbay.adapters.stores.sql import open_store

__all__ = ["open_store"]
