"""Dotenv files: what is in them stays what it is, and what is no file of theirs holds nobody up."""

import os
from pathlib import Path

import pytest

from sickbay.model.errors import BadInput
from sickbay.wire.env_files import MOST, check_here, read_env_file


def written(tmp_path: Path, text: str | bytes, mode: int = 0o600) -> str:
    path = tmp_path / "env"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    path.chmod(mode)
    return str(path)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("A=1\r\nexport B = 'x y' \n\n# no\nC=\"\"", {"A": "1", "B": "x y", "C": ""}),
        ("A=1\fB=2\x1eC=3\n", {"A": "1\fB=2\x1eC=3"}),
        ("A=x\u2028B=y\u0085z", {"A": "x\u2028B=y\u0085z"}),
        ("\ufeffA=$B `c`", {"A": "$B `c`"}),
    ],
)
def test_a_line_is_one_variable_and_what_is_in_it_is_its_value(
    tmp_path: Path, text: str, found: dict[str, str]
) -> None:
    assert read_env_file(written(tmp_path, text)) == found


@pytest.mark.parametrize("mode", [0o604, 0o602, 0o606])
def test_what_everybody_can_read_or_write_is_no_secret(tmp_path: Path, mode: int) -> None:
    with pytest.raises(BadInput, match="can be read or written by everybody"):
        read_env_file(written(tmp_path, "A=1", mode))


def test_a_pipe_that_nobody_feeds_a_device_or_a_flood_holds_nobody_up(tmp_path: Path) -> None:
    pipe, link = tmp_path / "pipe", tmp_path / "link"
    os.mkfifo(pipe, 0o600)
    link.symlink_to("/dev/zero")
    for path in (pipe, link, tmp_path):
        with pytest.raises(BadInput, match="is no file"):
            read_env_file(str(path))
    with pytest.raises(BadInput, match=f"more than {MOST} bytes"):
        read_env_file(written(tmp_path, b"A=" + b"x" * MOST))


@pytest.mark.parametrize("text", ["A=1\nsecret-without-a-name\n", "SICKBAY_JOB_ID=secret", "A=secret\0"])
def test_a_mistake_is_named_without_the_secret(tmp_path: Path, text: str) -> None:
    with pytest.raises(BadInput) as error:
        read_env_file(written(tmp_path, text))
    assert "secret" not in str(error.value)


def test_whoever_submits_is_told_of_a_path_that_can_be_nowhere_and_may_name_one_of_the_nodes(tmp_path: Path) -> None:
    assert "is not on this machine" in check_here(tmp_path / "nowhere")
    assert check_here(Path(written(tmp_path, "A=1"))) == ""
    for path in (Path("/" + "a" * 5000), tmp_path):
        with pytest.raises(BadInput, match="env file"):
            check_here(path)
