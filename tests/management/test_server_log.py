"""Reading the log file: whole lines, from the end or from the reader's position."""

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


def test_last_lines_are_read(path: Path) -> None:
    assert _read_log(path, 0, 2) == ("two\nthree\n", 14)
    assert _read_log(path, 0, 100) == ("one\ntwo\nthree\n", 14)


def test_lines_since_position_are_read(path: Path) -> None:
    """An incomplete line is returned only when it is complete."""
    assert _read_log(path, 8, 0) == ("three\n", 14)
    assert _read_log(path, 14, 0) == ("", 14)
    with path.open("ab") as file:
        file.write(b"f\n\xff\n")
    assert _read_log(path, 14, 0) == ("half\n\\xff\n", 21)


def test_rotated_file_is_read_from_its_beginning(path: Path) -> None:
    path.write_bytes(b"new\n")
    assert _read_log(path, 14, 0) == ("new\n", 4)


def test_long_file_is_read_from_its_end(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only whole lines are returned, and the position counts from the beginning of the file."""
    monkeypatch.setattr(diagnostics, "READ_BYTES_MAX", 8)
    assert _read_log(path, 0, 100) == ("", 14)  # "hree" has no beginning, "hal" has no end
    path.write_bytes(b"a" * 100 + b"\nb\nc\n")
    assert _read_log(path, 0, 100) == ("b\nc\n", 105)
    assert _read_log(path, 0, 0) == ("b\nc\n", 105)
