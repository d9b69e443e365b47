"""What is read back of the log file: whole lines, from the end or from where a reader was."""

from __future__ import annotations

from pathlib import Path

import pytest

from amqpd.management import diagnostics
from amqpd.management.diagnostics import _read_log


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "log"
    path.write_bytes(b"one\ntwo\nthree\nhal")
    return path


def test_the_last_lines(path: Path) -> None:
    assert _read_log(path, 0, 2) == ("two\nthree\n", 14)
    assert _read_log(path, 0, 100) == ("one\ntwo\nthree\n", 14)


def test_what_came_since(path: Path) -> None:
    """A line that is being written comes when it is whole."""
    assert _read_log(path, 8, 0) == ("three\n", 14)
    assert _read_log(path, 14, 0) == ("", 14)
    with path.open("ab") as file:
        file.write(b"f\n\xff\n")
    assert _read_log(path, 14, 0) == ("half\n\\xff\n", 21)


def test_a_file_that_was_rotated_is_read_from_its_beginning(path: Path) -> None:
    path.write_bytes(b"new\n")
    assert _read_log(path, 14, 0) == ("new\n", 4)


def test_a_file_that_is_long_is_read_from_its_end(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole lines, though it is cut in one; the position is the file's all the same."""
    monkeypatch.setattr(diagnostics, "READ_BYTES_MAX", 8)
    assert _read_log(path, 0, 100) == ("", 14)  # "hree" is no line, and "hal" not yet one
    path.write_bytes(b"a" * 100 + b"\nb\nc\n")
    assert _read_log(path, 0, 100) == ("b\nc\n", 105)
    assert _read_log(path, 0, 0) == ("b\nc\n", 105)
