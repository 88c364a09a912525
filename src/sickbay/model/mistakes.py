"""Validation of an adapter's settings: what is wrong with one field; only a file's reader knows the place."""

from typing import NamedTuple


class SettingsMistake(NamedTuple):
    field: str
    text: str
