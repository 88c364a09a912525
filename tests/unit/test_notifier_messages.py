"""What is each notifier's own: the signature, what answers mean, escapes, alerts and their ends, mail's headers."""

import hashlib
import hmac
import ssl
import subprocess
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from email import message_from_string, policy
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace
from tests.support.far_sides import FarHttp, FarSmtp, serving

from sickbay.adapters.notifiers.mail import MailNotifier, MailSecurity, MailSettings
from sickbay.adapters.notifiers.message import NoticeLinks, NoticeMessage, message_of
from sickbay.adapters.notifiers.pagerduty import PagerDutyNotifier, PagerDutySettings
from sickbay.adapters.notifiers.slack import slack_text
from sickbay.adapters.notifiers.webhook import WebhookNotifier, WebhookSettings
from sickbay.brain.retry import ASKED_MOST, IntentInput, answered
from sickbay.model.clock import LEADER
from sickbay.model.errors import Rejected, Transient
from sickbay.model.facts import CallResult, Outcome
from sickbay.model.fleet import IncidentId, NodeId
from sickbay.model.intent import Intent, IntentState
from sickbay.testing.notifier_contract import AT, NOTICE, FarMood
from sickbay.wire.posting import post

ROOT = Path(__file__).parents[2]
NO = IncidentId("")
SOON = timedelta(seconds=30)
LINKS = NoticeLinks(runbooks="https://wiki/runbooks/", console="https://console")


@pytest.fixture
def http() -> Iterator[FarHttp]:
    server = FarHttp()
    with serving(server):
        yield server


def secret(tmp_path: Path, text: str, name: str = "s") -> str:
    path = tmp_path / name
    path.write_text(text)
    path.chmod(0o600)
    return str(path)


def webhook(http: FarHttp, tmp_path: Path, text: str = "one\n", **more: Any) -> WebhookNotifier:
    more.setdefault("url", f"{http.url}/hook?site=a")
    settings = WebhookSettings(kind="webhook", secret_file=secret(tmp_path, text), timeout=SOON, **more)
    return WebhookNotifier(settings, LINKS)


# --- the webhook, as docs/notices.md describes it


def genuine() -> Any:
    """The receiver's code of the page itself."""
    page = (ROOT / "docs" / "notices.md").read_text(encoding="utf-8")
    code = page.split("```python\n")[1].split("```")[0]
    names: dict[str, Any] = {}
    exec(code, names)
    return names["genuine"]


class Headers(dict[str, str]):
    def __getitem__(self, name: str) -> str:
        return super().__getitem__(name.lower())


def test_a_receiver_written_as_documented_accepts_what_is_genuine_and_nothing_else(
    http: FarHttp, tmp_path: Path
) -> None:
    webhook(http, tmp_path, "old\nnew\n").tell(NOTICE, key="k.x")
    (request,) = http.taken
    accepts, headers = genuine(), Headers(request.headers)
    assert accepts("old", headers, request.body)
    assert accepts("new", headers, request.body)
    assert not accepts("other", headers, request.body)
    assert not accepts("new", headers, request.body + b" ")
    stale = Headers({**headers, "sickbay-timestamp": str(int(headers["sickbay-timestamp"]) - 3600)})
    assert not accepts("new", stale, request.body)
    assert request.path == "/hook?site=a"
    assert headers["idempotency-key"] == "k.x"


def test_the_signature_covers_time_and_body(http: FarHttp, tmp_path: Path) -> None:
    webhook(http, tmp_path).tell(NOTICE, key="k")
    (request,) = http.taken
    signed = request.headers["sickbay-timestamp"].encode() + b"." + request.body
    expected = hmac.new(b"one", signed, hashlib.sha256).hexdigest()
    assert request.headers["sickbay-signature"] == f"v1={expected}"


def test_a_secret_that_was_replaced_signs_the_next_notice(http: FarHttp, tmp_path: Path) -> None:
    notifier = webhook(http, tmp_path, "first")
    notifier.tell(NOTICE, key="k")
    secret(tmp_path, "second")
    notifier.tell(NOTICE, key="k")
    accepts = genuine()
    assert [accepts("second", Headers(one.headers), one.body) for one in http.taken] == [False, True]


def test_a_secret_that_is_away_or_open_is_waited_for(http: FarHttp, tmp_path: Path) -> None:
    notifier = webhook(http, tmp_path)
    (tmp_path / "s").chmod(0o644)
    with pytest.raises(Transient, match=r"can be read by others \(mode 0644\)"):
        notifier.tell(NOTICE, key="k")
    (tmp_path / "s").unlink()
    with pytest.raises(Transient, match="cannot be read"):
        notifier.tell(NOTICE, key="k")
    assert http.seen == []


@pytest.mark.parametrize("token", ["tok-one\ntok-two\n", "tök€n-two"])
def test_a_token_that_fits_into_no_header_is_said_and_not_repeated(http: FarHttp, tmp_path: Path, token: str) -> None:
    """The library's own words would have had it in them, and so the store, the log and the API."""
    path = secret(tmp_path, token, "t")
    with pytest.raises(Transient, match="is not one line of ASCII") as error:
        webhook(http, tmp_path, token_file=path).tell(NOTICE, key="k")
    assert "two" not in str(error.value)
    assert http.seen == []
    settings = WebhookSettings(kind="webhook", url=http.url, secret_file=secret(tmp_path, "s"), token_file=path)
    assert [mistake.field for mistake in settings.missing()] == ["token_file"]


def test_no_header_is_sent_that_could_be_two_and_none_is_repeated(http: FarHttp) -> None:
    with pytest.raises(Rejected, match="the header Authorization cannot be sent") as error:
        post(http.url, b"", {"Authorization": "Bearer x\r\nEvil: y"}, within=2.0)
    assert "Evil" not in str(error.value)
    assert http.seen == []


def test_a_key_that_fits_into_no_header_is_written_so_that_it_does(http: FarHttp, tmp_path: Path) -> None:
    """Others name their jobs: a notice about one is told all the same."""
    notifier = webhook(http, tmp_path)
    for key in ("job.ж.tell", "a\nb: c", "plain %41/x"):
        notifier.tell(NOTICE, key=key)
    assert [one.headers["idempotency-key"] for one in http.taken] == ["job.%D0%B6.tell", "a%0Ab:%20c", "plain %41/x"]
    assert [msgspec.json.decode(one.body)["key"] for one in http.taken] == ["job.ж.tell", "a\nb: c", "plain %41/x"]


def test_a_host_that_no_name_server_could_know_is_tried_again(tmp_path: Path) -> None:
    settings = WebhookSettings(
        kind="webhook", url=f"http://{'a' * 80}.example", secret_file=secret(tmp_path, "s"), timeout=SOON
    )
    with pytest.raises(Transient, match="cannot be reached"):
        WebhookNotifier(settings, LINKS).tell(NOTICE, key="k")


def test_the_json_is_the_documented_one() -> None:
    page = (ROOT / "docs" / "notices.md").read_text(encoding="utf-8")
    shown = page.split("```json\n")[1].split("```")[0]
    golden = msgspec.json.decode(shown, type=NoticeMessage, strict=True)
    notice = replace(
        NOTICE, text=golden.text, node=NodeId(golden.node), pool=golden.pool, at=datetime(2026, 1, 1, 0, 10, tzinfo=UTC)
    )
    links = NoticeLinks(runbooks="https://wiki.example.org/sickbay/runbooks", console="https://sickbay.example.org")
    made = message_of(notice, "i12.tell.held:310.tickets", links)
    assert made == golden
    assert msgspec.json.decode(msgspec.json.encode(made)) == msgspec.json.decode(shown), "no field is left out"
    schema = msgspec.json.decode((ROOT / "docs" / "reference" / "notice.schema.json").read_bytes())
    assert set(schema["$defs"]["NoticeMessage"]["required"]) == set(msgspec.json.decode(shown))


# --- what answers mean


@pytest.mark.parametrize("status", [400, 401, 403, 404, 410, 422])
def test_a_client_error_is_a_refusal(http: FarHttp, tmp_path: Path, status: int) -> None:
    http.status = status
    http.be(FarMood.REFUSES)
    with pytest.raises(Rejected, match=f"127.0.0.1 answers {status}"):
        webhook(http, tmp_path).tell(NOTICE, key="k")


@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 504])
def test_who_is_busy_is_tried_again(http: FarHttp, tmp_path: Path, status: int) -> None:
    http.busy = status
    http.be(FarMood.BUSY)
    with pytest.raises(Transient, match=f"answers {status}"):
        webhook(http, tmp_path).tell(NOTICE, key="k")


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_a_redirect_is_not_followed(http: FarHttp, tmp_path: Path, status: int) -> None:
    http.status, http.headers = status, {"Location": f"{http.url}/elsewhere"}
    http.be(FarMood.REFUSES)
    with pytest.raises(Rejected, match="redirects are not followed"):
        webhook(http, tmp_path).tell(NOTICE, key="k")
    assert [request.path for request in http.seen] == ["/hook?site=a"]


@pytest.mark.parametrize(
    ("said", "least", "most"),
    [
        ("120", 120, 120),
        ("soon", 0, 0),
        ("-5", 0, 0),
        ("9" * 400, 999_999_999, 999_999_999),
        (f"1 Jan 2020 00:00:00 +{'9' * 40}", 0, 0),
        (f"Mon, {'9' * 40} Jan 2020 00:00:00 GMT", 0, 0),
    ],
)  # fmt: skip
def test_retry_after_is_heard(http: FarHttp, tmp_path: Path, said: str, least: float, most: float) -> None:
    http.headers = {"Retry-After": said}
    http.be(FarMood.BUSY)
    with pytest.raises(Transient) as error:
        webhook(http, tmp_path).tell(NOTICE, key="k")
    assert least <= error.value.after <= most


def test_retry_after_may_be_a_date(http: FarHttp, tmp_path: Path) -> None:
    http.headers = {"Retry-After": format_datetime(datetime.now(UTC) + timedelta(hours=1))}
    http.be(FarMood.BUSY)
    with pytest.raises(Transient) as error:
        webhook(http, tmp_path).tell(NOTICE, key="k")
    assert 3000 < error.value.after <= 3600


@pytest.mark.parametrize(("asked", "waits"), [(0.0, 0.5), (120.0, 120.0), (1e9, ASKED_MOST)])
def test_it_is_honoured_within_bounds(asked: float, waits: float) -> None:
    intent = Intent(
        key="k", owner="", cluster="", pool="", act=NOTICE, because="", planned_at=AT, clock=LEADER, call_timeout=10.0,
        patience=86_400.0, state=IntentState.SENT, sends=1,
    )  # fmt: skip
    busy = Outcome(key="k", result=CallResult.TRANSIENT, sends=1, again_after=asked)
    after = answered(IntentInput(intent=intent, readings={}, present={}, read_after=0.0), busy)
    assert after.not_before is not None
    assert after.not_before.at == waits


# --- TLS


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[str, str]:
    cert, key = str(tmp_path / "c.pem"), str(tmp_path / "k.pem")
    made = subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
         "-keyout", key, "-out", cert, "-days", "2", "-subj", "/CN=localhost",
         "-addext", "subjectAltName=DNS:localhost"],
        capture_output=True, check=False,
    )  # fmt: skip
    if made.returncode:
        pytest.skip("openssl cannot make a certificate here")
    return cert, key


class Taking(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *args: object) -> None:
        del args


def test_a_certificate_that_nobody_vouches_for_is_not_trusted(
    http: FarHttp, tmp_path: Path, certificate: tuple[str, str]
) -> None:
    server = HTTPServer(("127.0.0.1", 0), Taking)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        url = f"https://localhost:{server.server_port}/"
        with pytest.raises(Transient, match="its certificate is not trusted"):
            webhook(http, tmp_path, url=url).tell(NOTICE, key="k")
        assert webhook(http, tmp_path, url=url, ca_file=certificate[0]).tell(NOTICE, key="k") == "200 OK"
        wrong_name = url.replace("localhost", "127.0.0.1")
        with pytest.raises(Transient, match="its certificate is not trusted"):
            webhook(http, tmp_path, url=wrong_name, ca_file=certificate[0]).tell(NOTICE, key="k")
    finally:
        server.shutdown()
        server.server_close()


# --- Slack, PagerDuty, mail


def test_a_log_line_mentions_nobody_and_links_nowhere() -> None:
    text = slack_text(message_of(replace(NOTICE, text="<!channel> <https://evil|x> & co"), "k", LINKS))
    assert "&lt;!channel&gt; &lt;https://evil|x&gt; &amp; co" in text
    assert "`sickbay explain i12` · https://wiki/runbooks/held.md · https://console" in text


def test_an_incident_is_one_alert_with_its_reminders_and_its_end_resolves_it(http: FarHttp, tmp_path: Path) -> None:
    settings = PagerDutySettings(
        kind="pagerduty", url=http.url, routing_key_file=secret(tmp_path, "routing"), timeout=SOON
    )
    notifier = PagerDutyNotifier(settings, LINKS)
    notifier.tell(NOTICE, key="k1")
    notifier.tell(NOTICE, key="k2")
    notifier.tell(replace(NOTICE, event="closed"), key="k3")
    notifier.tell(replace(NOTICE, event="job_failed", subject="job:j", incident=NO, node=NodeId("")), key="k4")
    notifier.tell(replace(NOTICE, event="notify_test", subject="channel:p", incident=NO), key="k5")
    sent = [msgspec.json.decode(request.body) for request in http.taken]
    keys = [event["dedup_key"] for event in sent]
    assert [event["event_action"] for event in sent] == [
        "trigger", "trigger", "resolve", "trigger", "trigger", "resolve",
    ]  # fmt: skip
    assert len(set(keys[:3])) == 1
    assert len(set(keys[3:])) == 2
    assert keys[4] == keys[5]
    assert sent[0]["routing_key"] == "routing"
    assert sent[0]["payload"]["severity"] == "critical"
    assert sent[0]["payload"]["source"] == "c/n1"
    assert sent[0]["links"][0]["href"] == "https://wiki/runbooks/held.md"


@pytest.fixture
def smtp() -> Iterator[FarSmtp]:
    server = FarSmtp()
    with serving(server):
        yield server


def mail(smtp: FarSmtp, **more: Any) -> MailNotifier:
    more.setdefault("security", MailSecurity.NONE)
    settings = MailSettings(
        kind="mail", host="127.0.0.1", port=smtp.port, sender="s@example.org", to=("a@example.org", "b@example.org"),
        timeout=SOON, **more,
    )  # fmt: skip
    return MailNotifier(settings, LINKS)


def test_an_address_that_smtp_cannot_say_is_refused_at_the_door() -> None:
    settings = MailSettings(kind="mail", host="h", sender="s@example.org", to=("a@exämple.org",))
    assert [mistake.field for mistake in settings.mistakes()] == ["to"]


def test_a_password_that_smtp_cannot_say_is_refused_without_a_letter_of_it(smtp: FarSmtp, tmp_path: Path) -> None:
    path = secret(tmp_path, "pässwörd", "p")
    with pytest.raises(Rejected, match="a character that is not ASCII") as error:
        mail(smtp, user="u", password_file=path).tell(NOTICE, key="k")
    assert "xe4" not in str(error.value)
    assert smtp.taken == []


def test_a_mail_says_what_it_is_about_and_what_to_paste(smtp: FarSmtp) -> None:
    mail(smtp).tell(replace(NOTICE, text="a\r\nBcc: x@example.org\r\n.\r\nb é"), key="k")
    (taken,) = smtp.taken
    found = message_from_string(taken.text, policy=policy.default)
    assert found["Subject"] == "[sickbay] critical: held: a Bcc: x@example.org . b é"
    assert found["Bcc"] is None
    assert found["Auto-Submitted"] == "auto-generated"
    assert "    sickbay explain i12" in found.get_content()
    assert len(taken.to) == 2


def test_who_does_not_offer_starttls_gets_no_clear_text(smtp: FarSmtp) -> None:
    with pytest.raises(Rejected, match="STARTTLS"):
        mail(smtp, security=MailSecurity.STARTTLS).tell(NOTICE, key="k")
    assert smtp.taken == []


def test_one_address_that_is_refused_keeps_nobody_else_from_being_told(smtp: FarSmtp) -> None:
    smtp.refuses = {"b@example.org"}
    assert mail(smtp).tell(NOTICE, key="k") == "250 queued; refused: b@example.org (550)"
    smtp.refuses = {"a@example.org", "b@example.org"}
    with pytest.raises(Rejected, match="takes mail for none of"):
        mail(smtp).tell(NOTICE, key="k")
