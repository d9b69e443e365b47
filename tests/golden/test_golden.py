"""Data directories of earlier versions are read by this one; one of a later version is refused and left unchanged."""

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
    FORMAT_WITH_JOURNAL,
    FORMAT_WITH_TRANSACTIONS,
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


def test_current_format_has_a_golden_directory() -> None:
    """A change of FORMAT_VERSION or FORMAT_WITH_JOURNAL needs a new golden directory: see make.py."""
    newest = max(FORMAT_VERSION, FORMAT_WITH_DELAYS, FORMAT_WITH_JOURNAL)
    assert [path.name for path in GOLDEN] == [f"format-{number}" for number in range(1, newest + 1)]


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda path: path.name)
def test_golden_directory_is_read(golden: Path, make: ModuleType, tmp_path: Path) -> None:
    """Messages, acks, marks and metadata are equal to the byte."""
    expected: dict[str, Any] = json.loads((golden / "expected.json").read_text("utf-8"))
    path = Path(shutil.copytree(golden / "data", tmp_path / "data"))
    found = json.loads(json.dumps(make.read(path, expected["queues"])))
    rows = found.pop("metadata")
    for row in expected.pop("metadata"):  # a later version may have more fields of a row, not fewer
        assert any(row == {name: one[name] for name in row if name in one} for one in rows), row
    for later, nothing in (("delayed", []), ("producers", {}), ("last_stable_offsets", {})):
        expected.setdefault(later, nothing)
    assert found == expected
    counts = {name: len(contents["records"]) for name, contents in expected["stores"].items()}
    more = {"packed": 5 * (12 + 40 + 30) - 20} if golden.name != "format-1" else {}
    if golden.name >= "format-3":
        more["numbered"] = 4
        assert [each["level"] for each in found["delayed"]] == [0, 0, 0, 1]
        assert found["producers"] == {"5": [1, 3, 3], "1099511627776": [0, 9, 4]}
    if golden.name >= "format-4":
        more["changes"] = 4 + 4 + 1
        assert found["last_stable_offsets"] == {"changes": 11}, "one transaction is open"
    if golden.name >= "format-5":
        more["journaled"] = more["beside"] = 5
    assert counts == {"clean": 40 + 70 - 16 - 5, "compacted": counts["compacted"], "killed": 9, **more}
    compacted = expected["stores"]["compacted"]
    assert sum(record["tombstone"] for record in compacted["records"]) == 1
    assert len(compacted["records"]) < 20 < compacted["next_offset"]
    today = max(FORMAT_VERSION, int(golden.name.removeprefix("format-")))
    assert (path / "format").read_bytes() == encode_format(today), "an older amqpd must refuse it from now on"
    second_read = make.read(path, expected["queues"])
    for name, contents in second_read["stores"].items():
        assert contents["records"] == expected["stores"][name]["records"], "equal again after the first recovery"


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda path: path.name)
def test_verify_log_accepts_a_golden_directory(golden: Path) -> None:
    out, err = io.StringIO(), io.StringIO()
    assert run(["verify_log", str(golden / "data")], out, err, io.StringIO(), {}) == 0, out.getvalue()
    assert out.getvalue().count("torn") == 1


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda path: path.name)
def test_newer_format_is_refused_and_left_unchanged(golden: Path, tmp_path: Path) -> None:
    path = Path(shutil.copytree(golden / "data", tmp_path / "data"))
    (path / "format").write_bytes(encode_format(FORMAT_WITH_JOURNAL + 1))
    before = tree(path)
    with pytest.raises(UnknownFormat, match=f"format {FORMAT_WITH_JOURNAL + 1} of a newer version"):
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


def test_format_with_transactions_is_refused_by_an_older_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An older amqpd has the same check with a lower number."""
    path = Path(shutil.copytree(GOLDEN[-1] / "data", tmp_path / "data"))
    before = tree(path)
    monkeypatch.setattr(checkpoint_module, "FORMAT_WITH_JOURNAL", FORMAT_WITH_TRANSACTIONS)
    with pytest.raises(UnknownFormat, match=r"/format: format 5 of a newer version of amqpd; this one knows 4$"):
        Storage(path, post=lambda *arguments: None)
    assert tree(path) == before


def test_broker_releases_delayed_messages(tmp_path: Path, make: ModuleType) -> None:
    """All messages have been due for years: they arrive in the order of their time, marked if they may be copies."""
    path = Path(shutil.copytree(HERE / "format-3" / "data", tmp_path / "data"))
    with BrokerProcess(path) as broker:
        connection = pika.BlockingConnection(pika.URLParameters(broker.url))
        channel = connection.channel()
        received = []
        for _, properties, body in channel.consume("numbered", auto_ack=True, inactivity_timeout=60):
            assert properties is not None, f"only {received}"
            received.append((body, dict(properties.headers or {})))
            if len(received) == 4 + len(make.DELAYS_MS):
                break
        connection.close()
        deadline = time.monotonic() + 60
        while broker.api("GET", "/api/delayed/%2F") != []:  # until the released messages are safe in the queue
            assert time.monotonic() < deadline
            time.sleep(0.02)
    # The boot id differs: a power cut may have lost the marks of released messages. Upper levels release nothing.
    redelivered_headers = [{"x-delayed-redelivered": True}] * 3 + [{}]
    released = [
        (b"after %d ms" % delay_ms, {"x-delay": -delay_ms} | more)
        for delay_ms, more in zip(make.DELAYS_MS, redelivered_headers, strict=True)
    ]
    assert received == [*((b"%d" % sequence, {}) for sequence in (0, 7, 3, 9)), *released]
    assert (path / "format").read_bytes() == encode_format(FORMAT_WITH_DELAYS), "the format stays"


def test_newer_log_is_refused_and_left_unchanged(tmp_path: Path, make: ModuleType) -> None:
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


def test_damaged_format_file_is_never_a_newer_version(tmp_path: Path) -> None:
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
            check_format(filesystem, str(path))  # a flipped bit never gives a newer version
    storage = Storage(tmp_path / "new", post=lambda *arguments: None)
    assert (tmp_path / "new" / "format").read_bytes() == text
    storage.close(clean=True)
