"""Reload (SIGHUP): a running service takes the policy that its file names now, and says what needs a restart."""

import logging
from collections.abc import Iterator
from pathlib import Path

from sickbay.hosts.choices import words_of
from sickbay.hosts.config_file import read_config, read_policy
from sickbay.hosts.service import Service
from sickbay.model.errors import BadInput
from sickbay.policy.load import digest

log = logging.getLogger("sickbay.controller")


def reload(service: Service, file: Path) -> list[str]:
    """Does it, and returns what to say, a line each. What is broken changes nothing."""
    lines = list(_reload(service, file))
    for line in lines:
        log.warning("asked to read %s again: %s", file, line)
    return lines


def _reload(service: Service, file: Path) -> Iterator[str]:
    before = service.backend.policy
    try:
        config = read_config(file, known=True)
        policy = read_policy(config)
        service.take(policy)
    except BadInput as error:
        yield f"{error}; still in force: {words_of(before)}"
        return
    except Exception as error:  # another package's kind may fail in any way: that ends no controller
        log.exception("%s could not be read", file)
        yield f"{file}: {type(error).__name__}: {error}; still in force: {words_of(before)}"
        return
    if digest(policy) == digest(before):
        yield f"in force as before: {words_of(policy)}"
    else:
        yield f"in force now: {words_of(policy)}; before: {words_of(before)}"
    if other := service.config.differs(config):
        yield f"{file}: {', '.join(other)} {'has' if len(other) == 1 else 'have'} changed: that needs a restart"
