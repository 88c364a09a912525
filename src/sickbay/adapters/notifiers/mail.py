"""Mail (SMTP): STARTTLS or TLS, credentials by file, one Message-ID for every sending of a notice."""

import base64
import contextlib
import hashlib
import smtplib
import ssl
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from email.headerregistry import Address
from email.message import EmailMessage
from email.policy import SMTP as SMTP_POLICY
from email.utils import format_datetime, parseaddr
from enum import StrEnum

from sickbay.adapters.notifiers.message import NoticeLinks, NoticeMessage, message_of
from sickbay.adapters.notifiers.settings import SAID, NotifierSettings, secret_of
from sickbay.model.errors import Rejected, Transient, Unknown
from sickbay.model.intent import Notify
from sickbay.model.mistakes import SettingsMistake
from sickbay.wire.posting import bounded, fits_a_header, why
from sickbay.wire.secret_files import redacted

SUBJECT = 180  # characters
OK, GO_ON, REFUSED = 250, 354, 500
_WILL_FORWARD = 251


class MailSecurity(StrEnum):
    STARTTLS = "starttls"
    TLS = "tls"  # from the first byte on
    NONE = "none"  # a relay on this machine


class MailSettings(NotifierSettings, kw_only=True):
    host: str
    sender: str
    to: tuple[str, ...]
    port: int = 587
    security: MailSecurity = MailSecurity.STARTTLS
    user: str = ""
    password_file: str = ""
    ca_file: str = ""

    def mistakes(self) -> Iterator[SettingsMistake]:
        yield from super().mistakes()
        if not 0 < self.port < 65536:
            yield SettingsMistake("port", f"is 1 to 65535, not {self.port}")
        if not self.to:
            yield SettingsMistake("to", "is empty: name at least one address")
        for name, addresses in (("sender", (self.sender,)), ("to", self.to)):
            for address in addresses:
                if not _is_address(address):
                    yield SettingsMistake(name, f"{address!r} is no address: write oncall@example.org, in ASCII")
        if bool(self.user) is not bool(self.password_file):
            yield SettingsMistake("user", "and password_file go together: give both, or neither")
        if self.password_file and self.security is MailSecurity.NONE:
            yield SettingsMistake("security", "none would send the password in clear: write starttls or tls")


def _is_address(text: str) -> bool:
    try:
        return bool(Address(addr_spec=text).domain) and parseaddr(text)[1] == text and fits_a_header(text)
    except (ValueError, IndexError):
        return False


class MailNotifier:
    def __init__(self, settings: MailSettings, links: NoticeLinks) -> None:
        self._settings = settings
        self._links = links

    def tell(self, notice: Notify, *, key: str) -> str:
        settings = self._settings
        password = secret_of(settings.password_file) if settings.password_file else ""
        secrets = _spellings(settings.user, password) if password else ()
        mail = written(message_of(notice, key, self._links), settings)
        within = settings.timeout.total_seconds()
        server = self._server(within)
        with bounded(lambda: server.sock, time.monotonic() + within):
            try:
                self._greet(server, password)
                return self._send(server, mail, secrets)
            except smtplib.SMTPResponseException as error:
                raise _answered(settings.host, error.smtp_code, error.smtp_error, *secrets) from None
            finally:
                with contextlib.suppress(OSError, smtplib.SMTPException):
                    server.close()

    def _server(self, within: float) -> smtplib.SMTP:
        if self._settings.security is MailSecurity.TLS:
            return smtplib.SMTP_SSL(timeout=within, context=self._trust())
        return smtplib.SMTP(timeout=within)

    def _trust(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=self._settings.ca_file or None)

    def _greet(self, server: smtplib.SMTP, password: str) -> None:
        """Until here nothing can have been taken."""
        settings = self._settings
        # As if it had been given at once: what TLS checks the certificate against.
        server._host = settings.host  # type: ignore[attr-defined]  # noqa: SLF001
        try:
            code, said = server.connect(settings.host, settings.port)
            if code != 220:
                raise _answered(settings.host, code, said, password)
            server.ehlo_or_helo_if_needed()
            if settings.security is MailSecurity.STARTTLS:
                server.starttls(context=self._trust())
                server.ehlo()
            if settings.user:
                self._log_in(server, password)
        except smtplib.SMTPNotSupportedError as error:
            raise Rejected(f"{settings.host} cannot do what is asked of it: {redacted(str(error), password)}") from None
        except smtplib.SMTPResponseException:
            raise
        except (OSError, UnicodeError, smtplib.SMTPException) as error:
            raise Transient(f"{settings.host} cannot be reached: {why(error)}") from None

    def _log_in(self, server: smtplib.SMTP, password: str) -> None:
        try:
            server.login(self._settings.user, password)
        except UnicodeError:  # its words have a part of the secret
            path = self._settings.password_file
            raise Rejected(f"user, or what is in {path}, has a character that is not ASCII: choose another") from None

    def _send(self, server: smtplib.SMTP, mail: EmailMessage, secrets: tuple[str, ...]) -> str:
        """At the end of the data the far side takes it or not; a connection that is lost there leaves a doubt."""
        host, refused, worst = self._settings.host, [], 0
        try:
            code, said = server.mail(self._settings.sender)
            if code != OK:
                raise _answered(host, code, said, *secrets)
            for address in self._settings.to:
                code, said = server.rcpt(address)
                if code not in {OK, _WILL_FORWARD}:
                    refused.append(f"{address} ({code})")
                    worst = worst if 0 < worst < REFUSED else code
        except (OSError, smtplib.SMTPServerDisconnected) as error:
            raise Transient(f"{host} has hung up: {why(error)}") from None
        if len(refused) == len(self._settings.to):
            raise _answered(host, worst, f"takes mail for none of {', '.join(refused)}".encode())
        try:
            code, said = server.data(mail.as_bytes(policy=SMTP_POLICY))
        except (OSError, smtplib.SMTPServerDisconnected) as error:
            raise Unknown(f"{host} has not answered: {why(error)}") from None
        if code != OK:
            raise _answered(host, code, said, *secrets)
        without = f"; refused: {', '.join(refused)}" if refused else ""
        return f"{code} {redacted(said.decode(errors='replace'), *secrets)[:SAID]}{without}"


def _spellings(user: str, password: str) -> tuple[str, ...]:
    """The password as it goes over the wire, too: a server may repeat what it was sent."""
    sent = (f"\0{user}\0{password}", password)
    return (password, *(base64.b64encode(text.encode()).decode() for text in sent))


def _answered(host: str, code: int, said: bytes | str, *secrets: str) -> Transient | Rejected:
    text = said.decode(errors="replace") if isinstance(said, bytes) else said
    line = f"{host} answers {code}: {redacted(text, *secrets)[:SAID]}"
    return Rejected(line) if code >= REFUSED else Transient(line)


def written(message: NoticeMessage, settings: MailSettings) -> EmailMessage:
    mail = EmailMessage()
    subject = redacted(f"[sickbay] {message.severity}: {message.event}: {message.text}")
    mail["Subject"] = subject if len(subject) <= SUBJECT else f"{subject[: SUBJECT - 1]}…"
    mail["From"] = settings.sender
    mail["To"] = ", ".join(settings.to)
    mail["Date"] = format_datetime(datetime.fromisoformat(message.at) if message.at else datetime.now(UTC))
    domain = settings.sender.rpartition("@")[2]
    mail["Message-ID"] = f"<{hashlib.sha256(message.key.encode()).hexdigest()[:32]}@{domain}>"
    if message.incident:  # reminders of one incident are one thread
        mail["References"] = f"<{hashlib.sha256(message.incident.encode()).hexdigest()[:32]}@{domain}>"
    mail["Auto-Submitted"] = "auto-generated"
    about = [
        f"{name}: {value}"
        for name, value in (
            ("event", message.event), ("severity", message.severity), ("incident", message.incident),
            ("node", message.node), ("job", message.job), ("pool", message.pool), ("at", message.at),
            ("runbook", message.runbook), ("console", message.console), ("key", message.key),
        )
        if value
    ]  # fmt: skip
    mail.set_content("\n".join([message.text, "", f"    {message.command}", "", *about, ""]))
    return mail
