"""sickbay diagnose: what a person and a program see."""

import gzip
import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sickbay.faces.cli.main import main

XIDS = """\
[   12.345678] NVRM: Xid (PCI:0000:b9:00): 48, pid=1234, name=python, DBE (double bit error)
[   12.345679] NVRM: Xid (PCI:0000:b9:00): 63, pid=1234, name=python, Row remapping event
[   12.345680] NVRM: Xid (PCI:0000:b9:00): 45, pid=1234, name=python, Ch 00000009
[   13.345680] NVRM: Xid (PCI:0000:3b:00): 79, pid=1, name=x, GPU has fallen off the bus.
"""
KEYS = {"line", "text", "code", "class", "component", "severity", "remedy", "because", "device", "count", "follows"}


def run(*args: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as left:
        main.main(["diagnose", *args])
    said = capsys.readouterr()
    return int(left.value.code or 0), said.out, said.err


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "dmesg.txt"
    path.write_text(XIDS)
    return path


def found(capsys: pytest.CaptureFixture[str], *args: str) -> list[dict[str, Any]]:
    code, out, _ = run(*args, "--json", capsys=capsys)
    assert code == 0
    rows: list[dict[str, Any]] = json.loads(out)
    return rows


def test_json_is_an_array_in_the_order_of_the_text(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = found(capsys, str(log))
    assert all(row.keys() >= KEYS for row in rows)
    assert [(row["line"], row["code"], row["follows"]) for row in rows] == [
        (1, "xid.48", ""),
        (2, "xid.63", "xid.48"),
        (3, "xid.45", "xid.48"),
        (4, "xid.79", ""),
    ]
    assert (rows[0]["class"], rows[0]["device"]) == ("ECC_ERROR", "0000:b9:00")


def test_a_person_sees_the_gravest_first_and_consequences_under_their_cause(
    log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = run(str(log), capsys=capsys)
    lines = out.splitlines()
    assert code == 0
    assert lines[0].startswith("xid.79")
    assert [line for line in lines if line.startswith("xid.")] == [
        lines[0],
        next(line for line in lines if line.startswith("xid.48")),
    ]
    assert "reboot the node" in out
    assert "xid.63" in next(line for line in lines if line.startswith("  and"))
    assert lines[-1] == "4 findings, 2 causes in 4 lines (read as: kernel log)"


def test_standard_input_may_be_packed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(gzip.compress(XIDS.encode()))))
    assert len(found(capsys, "-")) == 4


def test_a_flood_is_one_finding_with_its_count(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "flood.log"
    line = "NVRM: Xid (PCI:0000:b9:00): 13, pid=1, name=python, Graphics SM Warp Exception"
    path.write_text("".join(f"[{n:>5}.000000] {line}\n" for n in range(5000)))
    (row,) = found(capsys, str(path))
    assert (row["code"], row["count"], row["line"], row["last_line"]) == ("xid.13", 5000, 1, 5000)


def test_each_gives_every_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "log"
    path.write_text(XIDS.splitlines()[0] + "\n" + XIDS.splitlines()[0].replace("12.3", "14.3") + "\n")
    assert [row["line"] for row in found(capsys, str(path), "--each")] == [1, 2]


def test_nothing_found_says_so_and_exits_well(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "README.md"
    path.write_text("# Xids\n\nXid 79 means that the GPU has fallen off the bus.\n")
    code, out, _ = run(str(path), capsys=capsys)
    assert (code, out.splitlines()[0][:33]) == (0, "Nothing wrong was found in 3 line")
    assert found(capsys, str(path)) == []


def test_an_empty_text_is_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").write_text("")
    assert found(capsys, str(tmp_path / "empty")) == []


@pytest.mark.parametrize("name", ["nowhere.log", "."])
def test_what_cannot_be_read_is_one_clear_line(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(str(tmp_path / name), capsys=capsys)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "give the path of a text file" in err


def test_a_binary_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "core").write_bytes(bytes(range(256)) * 300)
    code, out, err = run(str(tmp_path / "core"), capsys=capsys)
    assert (code, out, err.count("\n")) == (2, "", 1)


def test_the_operators_own_rows_are_used(log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text("- {code: xid.79, remedy: replace, because: our racks}\n")
    rows = {row["code"]: row for row in found(capsys, str(log), "--knowledge", str(mine))}
    assert rows["xid.79"]["remedy"] == "replace"


def test_what_a_terminal_would_obey_is_not_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "log"
    path.write_text("[rank0]: ImportError: \x9b31m evil\x07\n")
    _, out, _ = run(str(path), capsys=capsys)
    assert "ImportError" in out
    assert "\x9b" not in out
    assert "\x07" not in out


def test_a_reader_that_has_had_enough_is_no_error(log: Path) -> None:
    """`| head`."""
    command = [sys.executable, "-m", "sickbay", "diagnose", str(log)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
