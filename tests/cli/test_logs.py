"""dump_log and verify_log on real data directories: compared with kafka-python, and on damaged files."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fake_broker import Ctl
from foreign_batches import check_batches

from amqpd.protocol.properties import Properties, encode_properties
from amqpd.storage.acks.retained import ExportHold, ExportLosses
from amqpd.storage.filesystem import FileSystem
from amqpd.storage.log.record import RecordRoute
from amqpd.storage.storage import Storage

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # kafka-python uses importlib.resources.read_text
    from kafka.record.memory_records import MemoryRecords

ROUTE = RecordRoute(b"orders", b"eu.new")
NOTHING = dict.fromkeys(Properties._fields)


class DataDirectory:
    """A data directory with one queue: several segments, settled messages, a transaction, a binary body."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.posted: list[tuple[Callable[..., object], tuple[Any, ...]]] = []
        self.storage = Storage(path, post=self.post, segment_size_bytes=20_000, inline=True)
        self.queue_id, self.store = self.storage.create_queue("v1", "tasks", "/")
        self.directory = path / "vhosts" / "v1" / "queues" / self.queue_id

    def post(self, function: Callable[..., object], *arguments: Any) -> None:
        self.posted.append((function, arguments))

    def end_turn(self) -> None:
        self.storage.commits.end_of_turn()
        while self.posted:
            function, arguments = self.posted.pop(0)
            function(*arguments)

    def fill(self) -> None:
        headers = {"n": 7, "é": b"\xff", "no json": [math.inf]}
        properties = encode_properties(
            Properties(**{**NOTHING, "content_type": "text/plain", "delivery_mode": 2, "headers": headers})
        )
        for turn in range(20):
            for number in range(5):
                self.store.append_parts(ROUTE, properties, b"%d.%d " % (turn, number) + b"." * 500, turn % 4 != 3)
            self.end_turn()
        self.store.begin_transaction()
        for number in range(80):
            self.store.append_parts(ROUTE, properties, b"tx %d" % number, True)
        self.store.end_transaction()
        self.store.append_parts(ROUTE, b"\x00\x00", b"\xff\x00\n", True)
        self.end_turn()
        for offset in (0, 1, 2, 50):
            self.store.ack(offset)
        self.store.mark_delivered(60)
        self.end_turn()
        self.storage.commits.flush()
        self.end_turn()

    def file(self, suffix: str, number: int = 0) -> Path:
        return sorted(self.directory.glob("*" + suffix))[number]


@pytest.fixture
def data(tmp_path: Path) -> Any:
    data = DataDirectory(tmp_path / "data")
    data.fill()
    yield data
    data.storage.close(clean=False)


def dump_as_json(ctl: Ctl, *arguments: str) -> list[dict[str, Any]]:
    result = ctl("dump_log", *arguments, "--formatter", "json")
    assert (result.code, result.err) == (0, "")
    found = json.loads(result.out)
    assert len(result.out.splitlines()) == len(found) + 2, "each line has one object"
    return found


def read_with_kafka(path: Path) -> list[tuple[int, bytes, bytes, list[tuple[str, bytes]], int]]:
    found = []
    records = MemoryRecords(path.read_bytes())
    while (batch := records.next_batch()) is not None:
        assert batch.validate_crc()
        if not batch.is_control_batch:
            found += [
                (record.offset, record.key, record.value, list(record.headers), record.timestamp) for record in batch
            ]
    return found


def test_dump_equals_kafka_python(ctl: Ctl, data: DataDirectory) -> None:
    """The data directory is in use; dump_log and kafka-python read the same files."""
    found = dump_as_json(ctl, str(data.directory), "--deep")
    own_records = [each for each in found if each["type"] == "record"]
    kafka_records = [each for path in sorted(data.directory.glob("*.log")) for each in read_with_kafka(path)]
    assert len(own_records) == len(kafka_records) == 181
    for own, (offset, key, value, headers, timestamp_ms) in zip(own_records, kafka_records, strict=True):
        assert own["offset"] == offset
        assert own["routing_key"].encode() == key
        assert own["exchange"].encode() == dict(headers)["exchange"]
        assert own["timestamp_ms"] == timestamp_ms
        assert own["body_size_bytes"] == len(value)
        if own["body_encoding"] == "string":
            assert own["body"].encode() == value
    assert own_records[0]["properties"] == {
        "content_type": "text/plain",
        "delivery_mode": 2,
        "headers": {"n": 7, "é": "\\xff", "no json": ["inf"]},
    }
    assert (own_records[-1]["body"], own_records[-1]["body_encoding"], own_records[-1]["properties"]) == (
        "/wAK",
        "base64",
        {},
    )
    batches = [each for each in found if each["type"] == "batch"]
    assert sum(each["record_count"] for each in batches if "marker" not in each["flags"]) == 181
    assert [each["flags"] for each in batches if "marker" in each["flags"]] == [["transaction", "marker"]]
    assert any(each["flags"] == ["transient"] for each in batches)
    assert {each["type"] for each in found} == {"file", "batch", "record", "index", "timeindex", "settled", "text"}
    assert [each["file"] for each in found if each["type"] == "file"] == [
        str(path) for path in sorted(data.directory.iterdir())
    ]


@pytest.mark.parametrize("codec", [0, 1, 2, 3, 4])
def test_dump_of_compressed_kafka_batch_equals_kafka_python(
    ctl: Ctl, data: DataDirectory, kafka_batch: Any, codec: int
) -> None:
    """The records have individual timestamps. verify_log finds no damage."""
    headers = [("exchange", b"orders"), ("properties", b"\x00\x00")]
    records = [(1_700_000_000_000 + 7 * number, b"%d " % number * 50) for number in range(40)]
    first = data.store.appender.append_checked(check_batches(kafka_batch(codec, records, headers)))
    data.end_turn()
    data.storage.commits.flush()
    data.end_turn()
    found = dump_as_json(ctl, str(data.directory), "--deep", "--offsets", f"{first}-")
    (batch,) = [each for each in found if each["type"] == "batch"]
    assert batch["flags"] == ["create-time", *(["gzip", "snappy", "lz4", "zstd"][codec - 1 : codec] if codec else [])]
    own_records = [each for each in found if each["type"] == "record"]
    kafka_records = read_with_kafka(data.file(".log", -1))[-40:]
    assert [(each["offset"], each["timestamp_ms"], each["body"].encode()) for each in own_records] == [
        (offset, timestamp_ms, value) for offset, _, value, _, timestamp_ms in kafka_records
    ]
    assert own_records[39]["timestamp_ms"] == 1_700_000_000_000 + 7 * 39
    assert ctl("verify_log", str(data.directory)).code == 0


def test_dump_prints_text(ctl: Ctl, data: DataDirectory) -> None:
    path = str(data.file(".log"))
    plain = ctl("dump_log", path)
    assert plain.code == 0
    assert plain.out.splitlines()[0] == f"Dumping {path}"
    assert plain.out.splitlines()[1].startswith("offsets 0-4  records 5  position 0  size ")
    deep = ctl("dump_log", "--deep", path).out
    assert len(deep.splitlines()) > len(plain.out.splitlines())
    assert '  offset 0  exchange "orders"  key "eu.new"  properties {"content_type":"text/plain",' in deep
    assert 'body 504 "0.0 ....' in deep
    last = ctl("dump_log", "--deep", str(data.file(".log", -1))).out.splitlines()[-1]
    assert last.endswith('properties {}  body 3 "\\xff\\x00\\n"')


@pytest.mark.parametrize(
    ("offsets", "wanted"),
    [
        ("7-12", range(7, 13)),
        ("99", range(99, 100)),
        ("170-", range(170, 182)),
        ("-3", range(4)),
        ("500-600", range(0)),
    ],
)
def test_offsets_option_selects_records(ctl: Ctl, data: DataDirectory, offsets: str, wanted: range) -> None:
    found = dump_as_json(ctl, str(data.directory), "--deep", "--offsets", offsets)
    marker = {180}
    assert [each["offset"] for each in found if each["type"] == "record"] == sorted(set(wanted) - marker)
    assert all(each["base_offset"] <= wanted[-1] for each in found if each["type"] == "batch")


def test_dump_of_indexes_and_small_files(ctl: Ctl, data: DataDirectory) -> None:
    index = dump_as_json(ctl, str(data.file(".index")))[1:]
    assert len(index) == 2
    positions = {
        each["position"]: each["last_offset"]
        for each in dump_as_json(ctl, str(data.file(".log")))
        if each["type"] == "batch"
    }
    assert all(positions[each["position"]] == each["offset"] for each in index)
    times = dump_as_json(ctl, str(data.file(".timeindex")))[1:]
    assert {each["offset"] for each in times} <= set(positions.values())
    kinds = [each["kind"] for each in dump_as_json(ctl, str(data.file(".settled")))[1:]]
    assert kinds[0] == "header"
    assert {"boot", "totals", "times", "settled", "transient"} <= set(kinds)
    assert "offsets below 182 are synced" in ctl("dump_log", str(data.directory / "high-watermark")).out
    assert '"queue": "tasks"' in ctl("dump_log", str(data.directory / "queue.json")).out


def test_dump_of_whole_data_directory(ctl: Ctl, data: DataDirectory) -> None:
    other = DataDirectory(data.path.parent / "other")
    other.fill()
    other.storage.close(clean=True)
    files = [each["file"] for each in dump_as_json(ctl, str(other.path)) if each["type"] == "file"]
    assert files == [str(path) for path in sorted(other.directory.iterdir())]
    assert str(other.directory / "clean-shutdown") in files


def test_verify_of_undamaged_directory_changes_nothing(ctl: Ctl, data: DataDirectory) -> None:
    before = {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in data.directory.iterdir()}
    result = ctl("verify_log", str(data.path))
    assert (result.code, result.err) == (0, "")
    assert result.out.startswith(f"queue 'tasks' of vhost '/' in {data.directory}: offsets 0 to 182, ")
    assert "181 records" in result.out
    assert result.out.endswith("1 queues: no damage\n")
    assert ctl("-q", "verify_log", str(data.path)).out == ""
    assert ctl("dump_log", str(data.path), "--deep").code == 0
    after = {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in data.directory.iterdir()}
    assert after == before, "verify_log or dump_log changed a file"
    (report,) = json.loads(ctl("verify_log", str(data.path), "--formatter", "json").out)
    assert (report["queue"], report["record_count"], report["next_offset"]) == ("tasks", 181, 182)
    assert report["settled_count"] >= 4


def test_flipped_bit_in_log_is_located(ctl: Ctl, data: DataDirectory) -> None:
    """Every 997th byte is tried. The commands name file and position of the batch and exit with 65."""
    path = data.file(".log")
    whole = path.read_bytes()
    starts = [each["position"] for each in dump_as_json(ctl, str(path)) if each["type"] == "batch"]
    for position in range(0, len(whole), 997):
        wrong = bytearray(whole)
        wrong[position] ^= 1 << position % 8
        path.write_bytes(wrong)
        start = max(each for each in starts if each <= position)
        if position - start in range(12, 16):
            continue  # the checksum does not cover the epoch
        for command in ("verify_log", "dump_log"):
            result = ctl(command, str(data.path))
            if result.code == 0:
                assert position - start in range(16), "the checksum covers all but base offset and epoch"
                continue
            assert result.code == 65
            assert f"DAMAGED {path} at {start}" in result.out or position - start < 8
            assert "damaged place" in result.err


@pytest.mark.parametrize(
    ("name", "position", "text"),
    [
        (".index", 1, "no batch at position"),
        (".index", 15, "no batch at position"),
        (".timeindex", 0, "no batch of"),
        (".timeindex", 11, "no batch of"),
        (".settled", 40, "wrong checksum"),
        ("clean-shutdown", 3, "wrong checksum"),
        ("recovery-point-checkpoint", 0, "not a checkpoint"),
        ("queue.json", 0, "not JSON"),
    ],
)
def test_damage_in_other_files_is_located(ctl: Ctl, data: DataDirectory, name: str, position: int, text: str) -> None:
    data.storage.close(clean=True)
    path = data.file(name)
    wrong = bytearray(path.read_bytes())
    wrong[position] ^= 0x40
    path.write_bytes(wrong)
    result = ctl("verify_log", str(data.path))
    assert result.code == 65
    (line,) = [line for line in result.out.splitlines() if "DAMAGED" in line]
    assert line.startswith(f"  DAMAGED {path} at ")
    assert text in line


def test_torn_tail_above_high_watermark_is_not_damage(ctl: Ctl, data: DataDirectory) -> None:
    path = data.file(".log", -1)
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:100])
    result = ctl("verify_log", str(data.path))
    assert result.code == 0
    assert f"torn, cut off by the next start: {path} at {len(whole)}" in result.out
    path.write_bytes(whole[:-3])
    assert ctl("verify_log", str(data.path)).code == 65, "the missing bytes were synced and may be confirmed"
    first = data.file(".log")
    path.write_bytes(whole)
    first.write_bytes(first.read_bytes()[:-3])
    assert ctl("verify_log", str(data.path)).code == 65, "a sealed segment has no torn tail"


def test_newer_format_is_reported(ctl: Ctl, data: DataDirectory) -> None:
    from amqpd.storage.acks.ack_set import HEADER, encode_entry

    path = data.file(".settled")
    path.write_bytes(encode_entry(HEADER, 0, 9, 0) + path.read_bytes()[32:])
    result = ctl("verify_log", str(data.path))
    assert result.code == 65
    assert "format 9 of a newer version" in result.out


@pytest.mark.parametrize(
    ("line", "code", "text"),
    [
        ("dump_log /nowhere/at/all", 65, "there is no /nowhere/at/all"),
        ("verify_log /nowhere/at/all", 65, "there is no /nowhere/at/all"),
        ("dump_log --offsets 9-3 x", 64, "--offsets : 9-3"),
        ("dump_log --offsets a x", 64, "--offsets : a"),
        ("dump_log --formatter csv x", 64, "--formatter : csv"),
        ("verify_log a b", 64, "too many arguments"),
    ],
)
def test_bad_arguments_are_errors(ctl: Ctl, line: str, code: int, text: str) -> None:
    result = ctl(*line.split())
    assert result.code == code
    assert text in result.err


def test_foreign_file_is_reported(ctl: Ctl, data: DataDirectory, tmp_path: Path) -> None:
    (data.directory / "notes.txt").write_text("mine")
    result = ctl("verify_log", str(data.path))
    assert (result.code, "notes.txt: not a file of amqpd" in result.out) == (0, True)
    assert ctl("dump_log", str(data.directory / "notes.txt")).code == 65
    assert ctl("dump_log", str(tmp_path)).code == 65


def test_dump_of_export_file(ctl: Ctl, data: DataDirectory) -> None:
    path = data.directory / "export-nightly.offset"
    ExportHold(FileSystem(), [str(data.path), str(data.directory)], "q", ExportLosses()).add("nightly", 1000)
    assert "exported below offset 0; at most 1000 bytes" in ctl("dump_log", str(path)).out
    assert "export-nightly" not in ctl("verify_log", str(data.path)).out
    path.write_bytes(path.read_bytes().replace(b"0", b"1", 1))
    assert "a wrong checksum" in ctl("verify_log", str(data.path)).out


def test_queue_is_found_by_name(data: DataDirectory, ctl: Ctl) -> None:
    """The result equals that for its directory. An existing path takes precedence, unless --vhost is given."""
    environment = {"AMQPD_DATA_DIR": str(data.path)}
    by_path = ctl("dump_log", str(data.directory))
    assert ctl("dump_log", "tasks", environment=environment) == by_path
    assert ctl("dump_log", "-p", "/", "tasks", environment=environment) == by_path
    assert ctl("dump_log", "--data-dir", str(data.path), "tasks", environment={}) == by_path
    named = ctl("verify_log", "tasks", environment=environment)
    assert named == ctl("verify_log", str(data.directory))
    assert ctl("verify_log", environment=environment).out.splitlines()[-1] == "1 queues: no damage"


def test_unknown_queue_name_is_an_error(data: DataDirectory, ctl: Ctl) -> None:
    environment = {"AMQPD_DATA_DIR": str(data.path)}
    for line in (("dump_log", "nosuch"), ("dump_log", "-p", "shop", "tasks"), ("verify_log", "nosuch")):
        result = ctl(*line, environment=environment)
        assert result.code == 65
        assert "no log of a queue" in result.err
    result = ctl("--uri", "http://a:b@host", "dump_log", "tasks")
    assert result.code == 65
    assert "on the broker's machine" in result.err
