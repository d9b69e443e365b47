"""Data directories that earlier versions left, read by this one; and one of a later version, which is left alone."""

from __future__ import annotations

import importlib.util
import io
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import pika
import pytest

import amqpd.storage.log.checkpoint as checkpoint_module
from amqpd.cli.main import run
from amqpd.storage.acks.ack_set import HEADER, encode_entry
from amqpd.storage.filesystem import FileSystem
from amqpd.storage.log.checkpoint import (
    FORMAT_VERSION,
    FORMAT_WITH_DELAYS,
    UnknownFormat,
    check_format,
    encode_format,
)
from amqpd.storage.storage import Storage
from amqpd.testing import BrokerProcess

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
    """Who raises FORMAT_VERSION, or FORMAT_WITH_DELAYS, makes its golden directory: see make.py."""
    newest = max(FORMAT_VERSION, FORMAT_WITH_DELAYS)
    assert [path.name for path in GOLDEN] == [f"format-{number}" for number in range(1, newest + 1)]


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda path: path.name)
def test_read(golden: Path, make: ModuleType, tmp_path: Path) -> None:
    """Messages, settlements, marks and metadata, to the byte."""
    expected: dict[str, Any] = json.loads((golden / "expected.json").read_text("utf-8"))
    path = Path(shutil.copytree(golden / "data", tmp_path / "data"))
    found = json.loads(json.dumps(make.read(path, expected["queues"])))
    rows = found.pop("metadata")
    for row in expected.pop("metadata"):  # a later version may know more of a row, not less
        assert any(row == {name: one[name] for name in row if name in one} for one in rows), row
    for later, nothing in (("delayed", []), ("producers", {})):
        expected.setdefault(later, nothing)
    assert found == expected
    counts = {name: len(told["records"]) for name, told in expected["stores"].items()}
    more = {"packed": 5 * (12 + 40 + 30) - 20} if golden.name != "format-1" else {}
    if golden.name == "format-3":
        more["numbered"] = 4
        assert [each["level"] for each in found["delayed"]] == [0, 0, 0, 1]
        assert found["producers"] == {"5": [1, 3, 3], "1099511627776": [0, 9, 4]}
    assert counts == {"clean": 40 + 70 - 16 - 5, "compacted": counts["compacted"], "killed": 9, **more}
    compacted = expected["stores"]["compacted"]
    assert sum(record["tombstone"] for record in compacted["records"]) == 1
    assert len(compacted["records"]) < 20 < compacted["next_offset"]
    today = max(FORMAT_VERSION, int(golden.name.removeprefix("format-")))
    assert (path / "format").read_bytes() == encode_format(today), "an older amqpd must not touch it any more"
    again = make.read(path, expected["queues"])
    for name, told in again["stores"].items():
        assert told["records"] == expected["stores"][name]["records"], "and once more, after recovery has been there"


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda path: path.name)
def test_looked_into(golden: Path) -> None:
    out, err = io.StringIO(), io.StringIO()
    assert run(["verify_log", str(golden / "data")], out, err, io.StringIO(), {}) == 0, out.getvalue()
    assert out.getvalue().count("torn") == 1


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda path: path.name)
def test_a_newer_format_is_refused_and_left_untouched(golden: Path, tmp_path: Path) -> None:
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


def test_one_with_delays_is_refused_by_who_does_not_know_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As an amqpd of before them says it: its check is the one of today, with a lower number. Nothing is touched."""
    path = Path(shutil.copytree(GOLDEN[-1] / "data", tmp_path / "data"))
    before = tree(path)
    monkeypatch.setattr(checkpoint_module, "FORMAT_WITH_DELAYS", FORMAT_VERSION)
    with pytest.raises(UnknownFormat, match=r"/format: format 3 of a newer version of amqpd; this one knows 2$"):
        Storage(path, post=lambda *arguments: None)
    assert tree(path) == before


def test_a_broker_releases_what_was_delayed(tmp_path: Path, make: ModuleType) -> None:
    """All of it has been due for years: it comes in the order of its time, and says if it may have come before."""
    path = Path(shutil.copytree(HERE / "format-3" / "data", tmp_path / "data"))
    with BrokerProcess(path) as broker:
        connection = pika.BlockingConnection(pika.URLParameters(broker.url))
        channel = connection.channel()
        came = []
        for _, properties, body in channel.consume("numbered", auto_ack=True, inactivity_timeout=60):
            assert properties is not None, f"only {came}"
            came.append((body, dict(properties.headers or {})))
            if len(came) == 4 + len(make.DELAYS_MS):
                break
        connection.close()
        deadline = time.monotonic() + 60
        while broker.api("GET", "/api/delayed/%2F") != []:  # until the queue has them safe
            assert time.monotonic() < deadline
            time.sleep(0.02)
    # The boot id is another one: a power cut may have taken what tells what was released. Upper levels release nothing.
    again = [{"x-delayed-redelivered": True}] * 3 + [{}]
    released = [
        (b"after %d ms" % delay_ms, {"x-delay": -delay_ms} | more)
        for delay_ms, more in zip(make.DELAYS_MS, again, strict=True)
    ]
    assert came == [*((b"%d" % sequence, {}) for sequence in (0, 7, 3, 9)), *released]
    assert (path / "format").read_bytes() == encode_format(FORMAT_WITH_DELAYS), "and it stays so"


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
