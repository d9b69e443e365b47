"""Data directories that earlier versions left, read by this one; and one of a later version, which is left alone."""

from __future__ import annotations

import importlib.util
import io
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from amqpd.cli.main import run
from amqpd.storage.filesystem import FileSystem
from amqpd.storage.log.checkpoint import (
    FORMAT_VERSION,
    FORMAT_WITH_DELAYS,
    UnknownFormat,
    check_format,
    encode_format,
)
from amqpd.storage.settle.settled import HEADER, encode_entry
from amqpd.storage.storage import Storage

HERE = Path(__file__).parent
GOLDEN = sorted(HERE.glob("format-*"))


@pytest.fixture(scope="module")
def make() -> ModuleType:
    spec = importlib.util.spec_from_file_location("golden_make", HERE / "make.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def tree(path: Path) -> dict[str, tuple[int, bytes]]:
    return {
        str(each.relative_to(path)): (each.stat().st_mtime_ns, each.read_bytes() if each.is_file() else b"")
        for each in sorted(path.rglob("*"))
    }


def test_there_is_one_of_the_format_of_today() -> None:
    """Who raises FORMAT_VERSION makes its golden directory: see make.py."""
    assert [path.name for path in GOLDEN] == [f"format-{number}" for number in range(1, FORMAT_VERSION + 1)]


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda path: path.name)
def test_read(golden: Path, make: ModuleType, tmp_path: Path) -> None:
    """Messages, settlements, marks and metadata, to the byte."""
    expected: dict[str, Any] = json.loads((golden / "expected.json").read_text("utf-8"))
    path = Path(shutil.copytree(golden / "data", tmp_path / "data"))
    found = json.loads(json.dumps(make.read(path, expected["queues"])))
    rows = found.pop("metadata")
    for row in expected.pop("metadata"):  # a later version may know more of a row, not less
        assert any(row == {name: one[name] for name in row if name in one} for one in rows), row
    assert found == expected
    counts = {name: len(told["records"]) for name, told in expected["stores"].items()}
    packed = {"packed": 5 * (12 + 40 + 30) - 20} if golden.name != "format-1" else {}
    assert counts == {"clean": 40 + 70 - 16 - 5, "compacted": counts["compacted"], "killed": 9, **packed}
    compacted = expected["stores"]["compacted"]
    assert sum(record["tombstone"] for record in compacted["records"]) == 1
    assert len(compacted["records"]) < 20 < compacted["next_offset"]
    assert (path / "format").read_bytes() == encode_format(), "an older amqpd must not touch it any more"
    again = make.read(path, expected["queues"])
    for name, told in again["stores"].items():
        assert told["records"] == expected["stores"][name]["records"], "and once more, after recovery has been there"


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda path: path.name)
def test_looked_into(golden: Path) -> None:
    out, err = io.StringIO(), io.StringIO()
    assert run(["verify_log", str(golden / "data")], out, err, io.StringIO(), {}) == 0, out.getvalue()
    assert out.getvalue().count("torn") == 1


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda path: path.name)
def test_a_newer_format_is_refused_and_left_untouched(
    golden: Path, tmp_path: Path
) -> None:
    path = Path(shutil.copytree(golden / "data", tmp_path / "data"))
    (path / "format").write_bytes(encode_format(FORMAT_WITH_DELAYS + 1))
    before = tree(path)
    with pytest.raises(UnknownFormat, match=f"format {FORMAT_WITH_DELAYS + 1} of a newer version"):
        Storage(path, post=lambda *arguments: None)
    assert tree(path) == before
    done = subprocess.run(
        [sys.executable, "-m", "amqpd", "--data-dir", str(path), "--amqp.port", "0", "--http.port", "0"],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.returncode == 69
    assert "of a newer version of amqpd" in done.stderr
    assert tree(path) == before


def test_a_newer_log_is_refused_and_left_untouched(tmp_path: Path, make: ModuleType) -> None:
    golden = GOLDEN[-1]
    ids = json.loads((golden / "expected.json").read_text("utf-8"))["queues"]
    path = Path(shutil.copytree(golden / "data", tmp_path / "data"))
    directory = path / "vhosts" / make.VHOST_ID / "queues" / ids["killed"]
    file = min(directory.glob("*.settled"))
    file.write_bytes(encode_entry(HEADER, int(file.stem), 2, 0) + file.read_bytes()[32:])
    before = tree(directory)
    maker = make.Maker(path)
    store = maker.storage.open_queue(make.VHOST_ID, ids["killed"])
    with pytest.raises(UnknownFormat):
        store.recover()
    maker.storage.close(clean=False)
    assert tree(directory) == before


def test_the_format_file(tmp_path: Path) -> None:
    filesystem, path = FileSystem(), tmp_path / "format"
    assert not check_format(filesystem, str(path))
    text = encode_format()
    path.write_bytes(text)
    assert check_format(filesystem, str(path))
    for position in range(len(text) - 1):
        for bit in range(8):
            wrong = bytearray(text)
            wrong[position] ^= 1 << bit
            path.write_bytes(wrong)
            check_format(filesystem, str(path))  # a flipped bit never makes a newer version of it
    storage = Storage(tmp_path / "new", post=lambda *arguments: None)
    assert (tmp_path / "new" / "format").read_bytes() == text
    storage.close(clean=True)
