"""Validation of an adapter's settings: what is wrong with one field, without the place that only a file's reader knows."""

from typing import NamedTuple


class SettingsMistake(NamedTuple):
    field: str
    text: str
