"""Tells people in the controller's log: always there, and never in the way."""

import logging

from sickbay.model.intent import Notify
from sickbay.model.plain_text import plain_text

log = logging.getLogger("sickbay.notify")


class LogNotifier:
    def tell(self, notice: Notify, *, key: str) -> str:
        """A line that is there twice harms nobody."""
        text = " ".join(plain_text(notice.text).split())
        log.warning("%s: %s: %s", notice.event, notice.subject, text, extra={"notice": key})
        return ""
