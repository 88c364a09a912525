"""The data files that come with the package."""

from pkgutil import get_data


def shipped(name: str, package: str = "sickbay.knowledge", folder: str = "data/") -> str:
    """The text of one. `importlib.resources` would bring archives and temporary files into every agent's memory."""
    data = get_data(package, f"{folder}{name}")
    assert data is not None, f"{package} is kept where nothing can be read"
    return data.decode("utf-8")
