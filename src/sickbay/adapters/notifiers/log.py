"""Tells people in the controller's log: always there, and never in the way."""

import logging

from sickbay.model.intent import Notify
from sickbay.wire.secret_files import redacted

log = logging.getLogger("sickbay.notify")


class LogNotifier:
    def tell(self, notice: Notify, *, key: str) -> str:
        """A line that is there twice harms nobody; one that breaks a terminal would."""
        log.warning("%s: %s: %s", notice.event, notice.subject, redacted(notice.text), extra={"notice": key})
        return ""
