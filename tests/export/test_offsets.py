"""Streams: their first offset, the limit of a trigger, and checkpoints that do not match the queue."""

from __future__ import annotations

import os
import resource
import shutil
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from amqpd.storage.export import offsets
from amqpd.storage.export.arrow import batches
from amqpd.storage.export.engine import PyarrowEngine
from amqpd.storage.export.files import DirectorySource, MissingQueue, QueueName
from amqpd.storage.export.job import ExportJob, ExportOptions, ExportReport
from amqpd.storage.export.options import ReadOptions, parse
from amqpd.storage.export.plan import DataLoss
from amqpd.storage.filesystem import FileSystem

KEY = "//tasks"


def at(lake: Any, offset: int) -> offsets.StreamOffset:
    return {KEY: {"id": lake.queue_id, "offset": offset}}


def fill(lake: Any, turns: int) -> None:
    """Append 20 messages in each turn: they fill a segment of 4 KiB."""
    for _ in range(turns):
        lake.append(*(b"." * 190 for _ in range(20)))
        lake.turn()


def read(lake: Any, start: offsets.StreamOffset, end: offsets.StreamOffset, **given: str) -> list[int]:
    options = lake.options(**given)
    return [row["offset"] for row in lake.read(options, offsets.stream_parts(options, start, end))]


def test_stream_begins_at_the_end_or_at_starting_offsets(lake: Any) -> None:
    lake.append(b"a", b"b")
    lake.turn()
    assert offsets.initial(lake.options()) == at(lake, 2)
    assert offsets.initial(lake.options(startingOffsets="earliest")) == at(lake, 0)
    assert offsets.initial(lake.options(startingOffsets='{"tasks": 1}')) == at(lake, 1)
    lake.append(b"c")
    lake.turn()
    assert offsets.latest(lake.options()) == at(lake, 3)
    assert read(lake, at(lake, 2), at(lake, 3)) == [2]


@settings(deadline=None)
@given(st.integers(1, 40), st.integers(1, 50))
def test_triggers_of_any_size_return_each_record_once(make_lake: Callable[..., Any], count: int, rows_max: int) -> None:
    lake = make_lake()
    lake.append(*(b"%d" % number for number in range(count)))
    lake.turn()
    options = lake.options()
    place, end = at(lake, 0), offsets.latest(options)
    seen: list[int] = []
    while True:
        reached = offsets.limited(options, place, end, rows_max)
        if reached == place:
            break
        rows = read(lake, place, reached)
        assert 0 < len(rows) <= rows_max
        seen += rows
        place = reached
    assert seen == list(range(count)) and place == end


def test_limit_is_shared_in_proportion_to_waiting_records(written: Any) -> None:
    from amqpd.storage.export.options import parse

    other, _ = written.storage.create_queue("v", "other", "/")
    store = written.storage.create_queue("v", "few", "/")[1]
    assert other
    written.store = store
    written.append(*(b"%d" % number for number in range(500)))
    written.turn()
    options = parse({"path": written.data_dir, "queuePattern": ".*", "startingOffsets": "earliest"})
    start, end = offsets.initial(options), offsets.latest(options)
    assert sorted(end) == ["//few", "//tasks"]
    reached = offsets.limited(options, start, end, 450)
    first = {key: int(str(value["offset"])) for key, value in start.items()}
    went = {key: int(str(value["offset"])) - first[key] for key, value in reached.items()}
    waiting = {key: int(str(value["offset"])) - first[key] for key, value in end.items()}
    total = sum(waiting.values())
    assert went == {key: 450 * share // total for key, share in waiting.items()}


def test_recreated_queue_is_data_loss(make_lake: Callable[..., Any]) -> None:
    lake = make_lake()
    lake.append(b"a", b"b")
    lake.turn()
    before = {KEY: {"id": "another", "offset": 70}}
    end = offsets.limited(lake.options(), before, offsets.latest(lake.options()), None)
    assert end == at(lake, 2)
    with pytest.raises(DataLoss, match="deleted and declared again since offset 70"):
        read(lake, before, end)
    assert read(lake, before, end, failOnDataLoss="false") == [0, 1]


def test_deleted_queue_is_data_loss_unless_it_was_read(lake: Any) -> None:
    lake.append(b"a", b"b")
    lake.turn()
    deleted = {"//other": {"id": "x", "offset": 5}}
    options: ReadOptions = lake.options()
    with pytest.raises(DataLoss, match="deleted before offset 5"):
        offsets.stream_parts(options, {}, deleted)
    assert offsets.stream_parts(options, deleted, deleted) == []  # nothing of it was left to read
    assert offsets.limited(options, deleted, offsets.latest(options), None) == {**deleted, **at(lake, 2)}


def test_new_queue_is_read_from_its_start(lake: Any) -> None:
    options = lake.options()
    assert offsets.initial(options) == at(lake, 0)
    lake.append(b"a", b"b")
    lake.turn()
    assert read(lake, {}, offsets.latest(options)) == [0, 1]


def test_queue_deleted_since_the_list_was_made_is_left_out(written: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another queue's deletion ends no export of a whole vhost."""
    listed = DirectorySource(written.data_dir).queues("/")
    gone = QueueName("/", "gone", "0" * 32, f"{written.place[:-32]}{'0' * 32}")
    monkeypatch.setattr(DirectorySource, "queues", lambda self, vhost: [*listed, gone])
    options = parse({"path": written.data_dir, "queuePattern": ".*"})
    with ExitStack() as stack:
        assert list(offsets.snapshots(options, stack)) == [KEY]
    assert list(offsets.latest(options)) == [KEY]
    with closing(options.source.open(gone)) as files, pytest.raises(MissingQueue, match="the queue was deleted"):
        files.sizes()


def test_queue_deleted_while_it_is_read_ends_queries_and_no_export(written: Any, caplog: Any) -> None:
    options = parse({"path": written.data_dir, "queue": "tasks"})
    (*_, part) = offsets.batch_parts(options)
    shutil.rmtree(written.place)
    with pytest.raises(MissingQueue):
        list(batches(options, part))
    assert list(batches(replace(options, is_job=True), part)) == []
    assert "queue 'tasks' was deleted during its export" in caplog.text


def test_many_queues_need_few_descriptors(
    make_lake: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A vhost may have more queues than a process may have open files."""
    lake = make_lake(4096, FileSystem(), str(tmp_path / "data"))
    fill(lake, 3)
    names = [QueueName("/", f"q{number}", lake.queue_id, lake.place) for number in range(100)]
    monkeypatch.setattr(DirectorySource, "queues", lambda self, vhost: names)
    monkeypatch.setattr(offsets, "OPEN_MAX", 5)
    source, places = {"path": lake.data_dir}, (str(tmp_path / "lake"), str(tmp_path / "check"))
    wanted = ExportOptions(source, "/", None, *places, start="2000-01-01", follow=True, max_batch_age_s=0)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len([*Path("/proc/self/fd").iterdir()]) + 40, before[1]))
    try:
        batches: list[ExportReport] = []
        assert ExportJob(wanted, PyarrowEngine(), batches.append, lambda: bool(batches)).run().rows == 6000
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_export_of_a_vhost_without_queues_says_so(
    written: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    places = (str(tmp_path / "lake"), str(tmp_path / "check"))
    options = ExportOptions({"path": written.data_dir}, "typo", None, *places)
    assert ExportJob(options, PyarrowEngine(), lambda report: None, lambda: False).run().rows == 0
    assert caplog.messages == ["vhost 'typo' has no durable queue with messages"]


def test_deleted_queue_is_not_listed_while_its_files_are_removed(written: Any) -> None:
    source = DirectorySource(written.data_dir)
    assert [each.queue for each in source.queues("/")] == ["tasks"]
    Path(written.place).rename(f"{written.place}.deleted")
    assert source.queues("/") == []


def test_segment_removed_since_the_list_was_made_ends_no_look(
    make_lake: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = make_lake(4096)
    fill(lake, 6)
    wanted = lake.snapshot()
    kind: Any = type(lake.source().open(lake.name))
    read_bytes, failing = kind.pread, [True]

    def pread(files: Any, name: str, size: int, position: int) -> bytes:
        if name.endswith(".log") and failing and failing.pop():
            raise FileNotFoundError(name)
        data: bytes = read_bytes(files, name, size, position)
        return data

    monkeypatch.setattr(kind, "pread", pread)
    assert offsets.latest(lake.options()) == at(lake, 120)
    assert not failing
    failing.append(True)
    assert wanted.log_bytes(5) == wanted.log_bytes(0)  # the next look is exact
    assert not failing


def test_list_that_lacks_the_newest_segment_is_made_again(
    make_lake: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A directory is not listed at one moment: the log seems to end before offsets that are exported."""
    lake = make_lake(4096)
    fill(lake, 6)
    kind: Any = type(lake.source().open(lake.name))
    sizes, lists = kind.sizes, []

    def sizes_without_newest_at_first(files: Any) -> dict[str, int]:
        found: dict[str, int] = sizes(files)
        lists.append(found)
        newest = max(name[:20] for name in found if name.endswith(".log"))
        return found if len(lists) > 1 else {name: found[name] for name in found if name[:20] != newest}

    monkeypatch.setattr(kind, "sizes", sizes_without_newest_at_first)
    assert offsets.latest(lake.options()) == at(lake, 120)
    assert len(lists) == 2


def test_queue_deleted_while_it_is_listed_is_missing(written: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its directory is renamed, then its files are removed: the list has some of them."""
    (name,) = DirectorySource(written.data_dir).queues("/")
    real = os.scandir

    def scandir(path: str) -> Any:
        found = real(path)
        Path(path).rename(f"{path}.deleted")
        return found

    monkeypatch.setattr(os, "scandir", scandir)
    with closing(DirectorySource(written.data_dir).open(name)) as files, pytest.raises(MissingQueue):
        files.sizes()


def test_records_removed_before_the_checkpoint_are_data_loss(make_lake: Callable[..., Any]) -> None:
    lake = make_lake(20_000)
    for _ in range(10):
        lake.append(*(b"." * 1000 for _ in range(10)))
        lake.turn()
    lake.store.ack_range(0, 59)
    lake.settled()
    lake.settled()
    start = lake.snapshot().start
    assert 5 < start <= 60
    with pytest.raises(DataLoss, match=f"offsets 5 to {start - 1} are missing: their segments have been removed"):
        read(lake, at(lake, 5), at(lake, 100))
    assert read(lake, at(lake, 5), at(lake, 100), failOnDataLoss="false") == list(range(60, 100))


def test_copy_older_than_the_checkpoint_is_data_loss(lake: Any) -> None:
    lake.append(b"a", b"b")
    lake.turn()
    with pytest.raises(DataLoss, match="the log ends before them"):
        read(lake, at(lake, 1), at(lake, 9))
    # A trigger never goes back.
    assert offsets.limited(lake.options(), at(lake, 9), offsets.latest(lake.options()), None) == at(lake, 9)
