"""Credentials that a service makes by itself (bootstrap): an administrator's, and those of agents that it starts."""

import secrets
from pathlib import Path

from sickbay.hosts.backend import Backend
from sickbay.model.fleet import NodeId, Role, Token
from sickbay.wire.files import replace_file


def agree_on(backend: Backend, name: str, role: Role, file: Path, *, by: str, node: NodeId | None = None) -> str:
    """The secret in the file, if the store knows it for what it is. A lost or revoked one is replaced by another:
    a secret that was revoked never opens anything again, and nobody is locked out of his own machine.
    """
    secret = file.read_text(errors="replace").strip() if file.exists() else ""  # damaged: known to nobody
    known = backend.who(secret) if secret else None
    if known is not None and known.role == role and not known.over(backend.now()):
        return secret
    if known is None:
        secret = secrets.token_urlsafe(24)
        replace_file(file, secret.encode())
    backend.issue(name, role, by, node, secret, anew=True, reason="for this machine's own use")
    return secret


def has_admin(backend: Backend) -> bool:
    """Whether anybody may make tokens: then no other administrator is needed."""
    after = ""
    while page := backend.store.keys("token", after=after):
        rows = (found.row for found in backend.store.load(page).values())
        tokens = [row for row in rows if isinstance(row, Token)]
        if any(token.role is Role.ADMIN and not token.over(backend.now()) for token in tokens):
            return True
        after = page[-1]
    return False
