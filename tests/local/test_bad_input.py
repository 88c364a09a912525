"""What a careless user meets: one clear line, the exit code or status of the design, and a cluster as before."""

import contextlib
import json
import os
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.support.up_rig import Sickbay, running

pytestmark = pytest.mark.slow

NO, WRONG_USE, CANNOT_REACH = 1, 2, 3
RUN = ("--", "true")
WHY = ("--reason", "a test")
NAMES = ("", "../up", "a b", "-x", "ü", "a\nb", "a" * 64)


class Clumsy:
    """Somebody at a terminal beside a running cluster, which has one job that is over."""

    def __init__(self, rig: Sickbay) -> None:
        self.rig = rig
        self.url: str = json.loads((rig.state / "controller.json").read_text())["url"]
        self.env = {name: value for name, value in os.environ.items() if not name.startswith("SICKBAY_")}
        self.env |= {"XDG_CONFIG_HOME": str(rig.state / "config"), "SICKBAY_URL": self.url}
        self.over = rig.submit("true", name="over", nodes=1)
        rig.ends(self.over)
        self.free()
        self.viewer = str(rig.post("/v1/tokens", name="onlooker", role="viewer")["token"])

    def free(self) -> None:
        self.rig.until(lambda: not any(node["job"] for node in self.rig.nodes()), 30, "all nodes are free")

    def types(self, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "sickbay", *words]
        return subprocess.run(command, env={**self.env, **env}, capture_output=True, text=True, timeout=60, check=False)

    def refused(self, *words: str, code: int = WRONG_USE, **env: str) -> str:
        """What it says: one line on standard error, and nothing else anywhere."""
        done = self.types(*words, **env)
        assert done.returncode == code, done
        assert done.stdout == ""
        assert done.stderr.endswith("\n"), done
        assert len(done.stderr.splitlines()) == 1, done.stderr
        assert "Traceback" not in done.stderr
        return done.stderr.strip()

    @contextlib.contextmanager
    def unchanged(self) -> Iterator[None]:
        before = self.everything()
        yield
        assert self.everything() == before

    def everything(self) -> Any:
        nodes = [{**node, "because": ""} for node in self.rig.nodes()]
        jobs = [(job["id"], job["state"], job["attempt"]) for job in self.rig.get("/v1/jobs")]
        return nodes, jobs, [(i["id"], i["phase"]) for i in self.rig.incidents()]

    def http(self, token: str = "", **more: Any) -> httpx.Client:
        secret = token or (self.rig.state / "operator.token").read_text()
        return httpx.Client(base_url=self.url, headers={"Authorization": f"Bearer {secret}"}, timeout=60, **more)


@pytest.fixture(scope="module")
def clumsy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clumsy]:
    for rig in running(tmp_path_factory.mktemp("bad") / "state", nodes=2, gpus=2):
        yield Clumsy(rig)


def submit(*words: str, name: str = "bad", run: tuple[str, ...] = RUN) -> tuple[str, ...]:
    return ("submit", "--name", name, *words, *run)


COMMANDS: list[tuple[tuple[str, ...], str]] = [
    # --- what is not there
    (("nods",), "did you mean 'nodes'?"),
    (("frobnicate",), "there is no command 'frobnicate'"),
    (("node", "node-7"), "there is no node 'node-7': did you mean node-"),
    (("cordon", "nodee-1", *WHY), "did you mean node-1"),
    (("drain", "elsewhere/node-1", *WHY), "there is no node 'elsewhere/node-1': did you mean node-1"),
    (("inject", "node-9", "--xid", "79"), "there is no node 'node-9'"),
    (("check", "node-9", "--level", "1"), "there is no node 'node-9'"),
    (("check", "--pool", "nope", "--level", "1"), "there is no pool 'nope'"),
    (("job", "nojob"), "there is no job 'nojob'"),
    (("stop", "nojob"), "there is no job 'nojob'"),
    (("incident", "nope"), "there is no incident 'nope'"),
    (("explain", "nope"), "there is no node, job or incident 'nope'"),
    # --- sizes that cannot be
    (submit("--nodes", "-1"), "-1 is not in the range"),
    (submit("--nodes", "0"), "0 is not in the range"),
    (submit("--nodes", "many"), "'many' is not a whole number"),
    (submit("--nodes", "99999999999999999999"), "at most 100000"),
    (submit("--nodes", "3"), "3 nodes are asked for, but pool local/default has 2"),
    (submit("--nodes", "1", "--min-nodes", "2"), "min_nodes is 2: write 1 to 1"),
    (submit("--nodes", "1", "--gpus-per-node", "9"), "gpus_per_node 9 is more than there are"),
    (submit("--nodes", "1", "--ranks-per-node", "100000"), "at most 256"),
    (submit("--nodes", "1", "--max-restarts", "-1"), "-1 is not in the range"),
    (submit("--nodes", "1", "--precheck", "5"), "'5' is not one of"),
    (submit("--nodes", "1", "--stall-after", "soon"), "'soon' is not a duration"),
    (("check", "node-0", "--level", "9"), "9 is not in the range"),
    # --- jobs that contradict themselves
    (submit("--min-nodes", "1"), "write --nodes N as well"),
    (submit("--nodes", "1", "--on", "node-0"), "one of them"),
    (submit("--on", "node-0,node-0"), "a node is named twice"),
    (submit("--on", "node-0,local/node-0"), "a node is named twice"),
    (submit("--on", "node-0,node-9"), "there is no node 'node-9'"),
    (submit("--on", ","), "has a name that is empty"),
    (submit("--nodes", "1", run=()), "write it after --"),
    (submit("--nodes", "1", run=("--", "")), "the command is empty"),
    (submit("--nodes", "1", "--env", "SICKBAY_ATTEMPT=7"), "SICKBAY_ATTEMPT is set by Sickbay itself"),
    (submit("--nodes", "1", "--log-rule", "x=(;every=1m"), "not a regular expression"),
    *((submit("--nodes", "1", name=name), "letters, digits") for name in NAMES),
    # --- acts that make no sense now
    (("uncordon", "node-0", *WHY), "there is nothing to uncordon"),
    (("cordon", "node-0"), "add --reason"),
    (("brake", "reset", *WHY), "no brake is on"),
    (("inject", "node-0"), "write --xid N, --line TEXT or --defect NAME, one of them"),
    (("inject", "node-0", "--xid", "79", "--defect", "nvlink"), "one of them"),
    (("inject", "node-0", "--defect", "bluescreen"), "there is no defect 'bluescreen': write one of gpu_off_bus"),
    (("inject", "node-0", "--xid", "-1"), "-1 is not in the range"),
    (("inject", "node-0", "--xid", "79", "--device", "2"), "local/node-0 has no GPU 2: write 0 to 1"),
    (("inject", "node-0", "--xid", "79", "--cured-by", "prayer"), "'prayer' is not one of"),
    (("token", "create", "x", "--role", "king"), "'king' is not one of"),
]  # fmt: skip


@pytest.mark.parametrize(("words", "said"), COMMANDS, ids=[" ".join(words)[:60] for words, _ in COMMANDS])
def test_a_wrong_command_is_one_line_and_changes_nothing(clumsy: Clumsy, words: tuple[str, ...], said: str) -> None:
    as_things_stand = said.startswith(("there is nothing", "no brake", "local/node-0 has no GPU"))
    with clumsy.unchanged():
        assert said in clumsy.refused(*words, code=NO if as_things_stand else WRONG_USE)


def test_what_is_over_cannot_be_stopped_and_what_never_ran_has_no_logs(clumsy: Clumsy) -> None:
    with clumsy.unchanged():
        assert "is over (COMPLETE): there is nothing to stop" in clumsy.refused("stop", clumsy.over, *WHY, code=NO)
        assert "has no rank 7: its ranks are 0 to 0" in clumsy.refused("logs", clumsy.over, "--rank", "7")
        assert "has no attempt 9: the last one is 1" in clumsy.refused("logs", clumsy.over, "--attempt", "9")


@pytest.mark.parametrize(
    ("url", "code", "said"),
    [
        ("nonsense", WRONG_USE, "is not a URL of a server: write SICKBAY_URL such as"),
        ("ftp://127.0.0.1", WRONG_USE, "is not a URL of a server"),
        ("http://127.0.0.1:99999", WRONG_USE, "Port out of range"),
        ("http://me:secret@127.0.0.1", WRONG_USE, "a token goes into SICKBAY_TOKEN"),
        ("http://127.0.0.1:1", CANNOT_REACH, "is it running? start it with 'sickbay up', or set SICKBAY_URL"),
        ("http://no-such-host.invalid", CANNOT_REACH, "set SICKBAY_URL"),
    ],
)
def test_a_server_that_cannot_be_is_told_from_one_that_is_away(clumsy: Clumsy, url: str, code: int, said: str) -> None:
    line = clumsy.refused("nodes", code=code, SICKBAY_URL=url)
    assert said in line
    assert "secret" not in line


def test_a_wrong_token_a_missing_one_and_a_viewers_are_refused_in_words(clumsy: Clumsy, tmp_path: Path) -> None:
    with clumsy.unchanged():
        assert "no valid token" in clumsy.refused("nodes", SICKBAY_TOKEN="wrong")
        assert "copy it again" in clumsy.refused("nodes", SICKBAY_TOKEN="wröng")
        assert "set SICKBAY_TOKEN" in clumsy.refused("nodes", XDG_CONFIG_HOME=str(tmp_path))
        for words in (("reboot", "node-0", *WHY), submit("--nodes", "1"), ("pause", *WHY), ("stop", clumsy.over, *WHY)):
            line = clumsy.refused(*words, SICKBAY_TOKEN=clumsy.viewer)
            assert "not allowed with this token: token 'onlooker' has the role viewer" in line
        assert clumsy.types("nodes", SICKBAY_TOKEN=clumsy.viewer).returncode == 0


@pytest.mark.parametrize(
    ("command", "said"),
    [("no-such-command-here", "command not found"), ("/etc/passwd", "Permission denied")],
)
def test_a_job_whose_command_cannot_run_fails_with_the_reason(clumsy: Clumsy, command: str, said: str) -> None:
    done = clumsy.types("submit", "--name", "cannot", "--nodes", "1", "--wait", "--json", "--", command)
    job = json.loads(done.stdout)
    assert (done.returncode, job["state"], job["attempt"]) == (1, "FAILED", 1)
    assert f"{command}: {said}" in job["diagnosis"]
    assert not clumsy.rig.incidents()


def test_a_job_in_a_directory_that_is_not_there_fails_with_the_reason(clumsy: Clumsy) -> None:
    words = ("--nodes", "1", "--cwd", "/no/such/directory", "--wait", "--json")
    job = json.loads(clumsy.types(*submit(*words)).stdout)
    assert (job["state"], job["attempt"]) == ("FAILED", 1)
    assert "/no/such/directory" in job["diagnosis"]


# --- over HTTP


def error_of(answer: httpx.Response) -> str:
    """The only thing that a refusal has in it."""
    assert answer.headers["content-type"] == "application/json"
    found = answer.json()
    assert list(found) == ["error"]
    assert len(found["error"].splitlines()) == 1
    return str(found["error"])


BODIES: list[tuple[str, bytes, int, str]] = [
    ("/v1/jobs", b"{", 400, "the body is not JSON"),
    ("/v1/jobs", b"\xff\xfe", 400, "not UTF-8"),
    ("/v1/jobs", b"[" * 200_000, 400, "the body"),
    ("/v1/jobs", b"[]", 400, "the body"),
    ("/v1/jobs", b"", 400, "'name' is missing"),
    ("/v1/jobs", b'{"name": "a", "command": ["x"], "nods": 1}', 400, "did you mean nodes?"),
    ("/v1/jobs", b'{"name": "a", "command": ["x"], "nodes": -1}', 400, "nodes:"),
    ("/v1/jobs", b'{"name": "a", "command": ["x"], "nodes": 1e300}', 400, "nodes:"),
    ("/v1/jobs", b'{"name": "a", "command": "x y", "nodes": 1}', 400, "command:"),
    ("/v1/jobs", b'{"name": "a", "command": ["x\\u0000"], "nodes": 1}', 400, "NUL"),
    ("/v1/jobs", b'{"name": "a", "command": ["x"], "nodes": 1, "cwd": "rel"}', 400, "must be an absolute path"),
    ("/v1/nodes/-/node-7/reboot", b'{"reason": "x"}', 404, "did you mean node-"),
    ("/v1/nodes/-/node-0/reboot", b"{}", 400, "a reason is missing"),
    ("/v1/nodes/-/node-0/reboot", b'{"reason": "  "}', 400, "a reason is missing"),
    ("/v1/nodes/-/node-0/explode", b'{"reason": "x"}', 404, "there is nothing at"),
    ("/v1/nodes/-/node-0/uncordon", b'{"reason": "x"}', 409, "there is nothing to uncordon"),
    ("/v1/nodes/-/node-0/inject", b'{"xid": 79, "line": "x"}', 400, "exactly one of xid, line and defect"),
    ("/v1/nodes/-/node-0/inject", b'{"xid": 79, "device": 2}', 409, "has no GPU 2"),
    ("/v1/nodes/-/node-0/inject", b'{"defect": "bluescreen"}', 400, "there is no defect 'bluescreen'"),
]


@pytest.mark.parametrize(("path", "body", "status", "said"), BODIES, ids=range(len(BODIES)))
def test_a_wrong_request_is_one_line_and_changes_nothing(
    clumsy: Clumsy, path: str, body: bytes, status: int, said: str
) -> None:
    with clumsy.unchanged(), clumsy.http() as http:
        answer = http.post(path, content=body, headers={"Content-Type": "application/json"})
        assert (answer.status_code, said in error_of(answer)) == (status, True), answer.text


def test_who_may_not_act_is_told_so_by_status(clumsy: Clumsy) -> None:
    reboot = "/v1/nodes/-/node-0/reboot"
    with clumsy.unchanged(), clumsy.http(clumsy.viewer) as viewer, clumsy.http("wrong") as wrong:
        assert viewer.get("/v1/nodes").status_code == 200
        for path in (reboot, "/v1/jobs", "/v1/tokens", "/v1/pause"):
            assert viewer.post(path, json={"reason": "x"}).status_code == 403
        assert wrong.get("/v1/nodes").status_code == 401
        with httpx.Client(base_url=clumsy.url) as nobody:
            answer = nobody.post(reboot, json={"reason": "x"})
        assert answer.status_code == 401
        assert answer.headers["www-authenticate"] == "Bearer"


def test_an_agent_cannot_speak_for_another_node_nor_ask_for_anything(clumsy: Clumsy) -> None:
    mine = (clumsy.rig.state / "local" / "seats" / "node-0" / "token").read_text()
    report = {
        "proto": 1, "node": "local/node-1", "uid": "u", "instance_id": "i", "boot_id": "b", "agent_run": "r",
        "first_seq": 1, "mono_now": 1.0, "wall_now": 1.0, "watermark": 1.0, "items": [],
    }  # fmt: skip
    with clumsy.unchanged(), clumsy.http(mine) as agent, clumsy.http() as operator:
        answer = agent.post("/v1/agent/report", json=report)
        assert answer.status_code == 403
        assert "it cannot speak for local/node-1" in error_of(answer)
        poll = {name: report[name] for name in ("proto", "node", "uid", "instance_id", "boot_id")}
        assert agent.post("/v1/agent/poll", json=poll).status_code == 403
        assert agent.get("/v1/nodes").status_code == 403
        assert agent.post("/v1/nodes/-/node-1/reboot", json={"reason": "x"}).status_code == 403
        assert operator.post("/v1/agent/report", json=report).status_code == 403


@pytest.mark.parametrize("told", [True, False])
def test_a_body_of_100_mb_is_refused_and_the_controller_goes_on(clumsy: Clumsy, *, told: bool) -> None:
    size = 100_000_000

    def pieces() -> Iterator[bytes]:
        for _ in range(100):
            yield b" " * (size // 100)

    headers = {"Content-Type": "application/json", **({"Content-Length": str(size)} if told else {})}
    with clumsy.unchanged(), clumsy.http() as http:
        answer = http.post("/v1/jobs", content=pieces(), headers=headers)
        assert answer.status_code == 413
        assert "too large" in error_of(answer)
        assert http.get("/healthz").status_code == 200


# --- up and down


def up(*words: str) -> tuple[str, ...]:
    return ("up", "--port", "0", *words)


def test_an_up_that_cannot_be_leaves_no_trace(clumsy: Clumsy, tmp_path: Path) -> None:
    state, policy, file = tmp_path / "state", tmp_path / "policy.yaml", tmp_path / "file"
    file.write_text("a file")
    here = ("--state", str(state))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert f"port {port} is in use: choose another with --port" in clumsy.refused("up", *here, "--port", port)
    assert "-3 is not in the range" in clumsy.refused(*up(*here, "--nodes", "-3"))
    assert "100000 is not in the range" in clumsy.refused(*up(*here, "--nodes", "100000"))
    assert "-1 is not in the range" in clumsy.refused(*up(*here, "--gpus", "-1"))
    assert "70000 is not in the range" in clumsy.refused("up", *here, "--port", "70000")
    assert "can be reached from other machines" in clumsy.refused(*up(*here, "--host", "0.0.0.0"))
    assert "did you mean 'default'?" in clumsy.refused(*up(*here, "--policy", "defualt"))
    assert "no such file" in clumsy.refused(*up(*here, "--policy", str(tmp_path / "none.yaml")))
    policy.write_text("extends: default\nsilence:\n  agnet: 3s\n")
    line = clumsy.refused(*up(*here, "--policy", str(policy)))
    assert f"{policy}:3:3" in line
    assert "did you mean 'agent'?" in line
    policy.write_text("extends: default\nnotify: []\n")
    assert "a node would stay cordoned for ever" in clumsy.refused(*up(*here, "--policy", str(policy)))
    assert not state.exists()
    assert "is a file" in clumsy.refused(*up("--state", str(file)))
    assert "Not a directory" in clumsy.refused(*up("--state", str(file / "below")))
    assert file.read_text() == "a file"
    assert "nothing runs here" in clumsy.refused("down", *here, code=1)
    assert not state.exists()


def test_a_state_that_cannot_be_written_is_refused(clumsy: Clumsy) -> None:
    assert "cannot be used" in clumsy.refused(*up("--state", "/proc/sickbay"))


def test_a_second_controller_on_the_same_state_changes_nothing(clumsy: Clumsy) -> None:
    with clumsy.unchanged():
        line = clumsy.refused(*up("--state", str(clumsy.rig.state)))
        assert f"(process {clumsy.rig.pid})" in line
        line = clumsy.refused(*up("--state", str(clumsy.rig.state), "--detach", "--gpus", "1"))
        assert "end it with 'sickbay down'" in line
    assert json.loads((clumsy.rig.state / "controller.json").read_text())["pid"] == clumsy.rig.pid


def test_a_number_that_means_another_process_by_now_is_no_controller(clumsy: Clumsy, tmp_path: Path) -> None:
    """After a crash, the number in the record may be anybody's: here that of a controller of another state."""
    state = tmp_path / "state"
    (state / "local").mkdir(parents=True)
    (state / "sickbay.db").touch()
    (state / "controller.json").write_text(json.dumps({"pid": clumsy.rig.pid, "url": "http://127.0.0.1:1"}))
    with clumsy.unchanged():
        done = clumsy.types("down", "--state", str(state))
        assert (done.returncode, done.stderr) == (0, "")
        assert "nothing was running" in done.stdout
    assert clumsy.rig.get("/v1/nodes")


@pytest.mark.parametrize("how", ["damaged", "of another program"])
def test_a_database_that_is_not_ours_is_refused_and_left_as_it_is(clumsy: Clumsy, tmp_path: Path, how: str) -> None:
    database = tmp_path / "sickbay.db"
    if how == "damaged":
        database.write_bytes(b"no database " * 1000)
    else:
        with contextlib.closing(sqlite3.connect(database)) as other:
            other.execute("CREATE TABLE songs (name TEXT)")
    before = database.read_bytes()
    said = {"damaged": "is damaged or no SQLite file", "of another program": "tables that are not Sickbay's"}[how]
    assert said in clumsy.refused(*up("--state", str(tmp_path)))
    assert database.read_bytes()[100:] == before[100:]  # its header says how it was opened last
    assert not (tmp_path / "local").exists()


def test_what_was_there_is_never_shrunk_nor_downgraded_and_down_twice_is_once(clumsy: Clumsy, tmp_path: Path) -> None:
    rig = Sickbay(tmp_path / "state", nodes=2, gpus=1)
    here = ("--state", str(rig.state))
    try:
        rig.up()
        rig.ready()
        rig.kill()  # the nodes go on
        assert "has 2 nodes and does not shrink to 1: write --nodes 2" in clumsy.refused(*up(*here, "--nodes", "1"))
        assert "has GPUs per node: 1, not 2" in clumsy.refused(*up(*here, "--gpus", "2"))
        database, aside = rig.state / "sickbay.db", rig.state / "aside.db"
        database.rename(aside)  # lost: its nodes run still, and must be found
        first = clumsy.types("down", *here)
        assert first.stdout.startswith("down: 2 nodes ended"), first
        assert not rig.processes()
        aside.rename(database)
        again = clumsy.types("down", *here)
        assert (again.returncode, again.stderr) == (0, "")
        assert again.stdout.startswith("nothing was running")
        with contextlib.closing(sqlite3.connect(database)) as newer:
            newer.execute("UPDATE meta SET schema_version = 999")
            newer.commit()
        assert "was written by a newer Sickbay (schema 999" in clumsy.refused(*up(*here))
        assert not rig.processes()
    finally:
        rig.down()
