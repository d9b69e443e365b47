"""A whole data directory on a real file system: groups, threads, starting and stopping."""

from __future__ import annotations

import json
import queue
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from amqpd.storage.data_directory import DataDirectoryInUse
from amqpd.storage.local_log import LocalLog
from amqpd.storage.log.record import RecordRoute
from amqpd.storage.storage import Storage

ROUTE = RecordRoute(b"", b"tasks")


class Loop:
    """Stands for the event loop: what the committer posts is called here."""

    def __init__(self) -> None:
        self._posted: queue.Queue[tuple[Callable[..., object], tuple[Any, ...]]] = queue.Queue()
        self.commits: list[tuple[int, list[LocalLog]]] = []

    def post(self, function: Callable[..., object], *arguments: Any) -> None:
        self._posted.put((function, arguments))

    def commit(self, generation: int, failed: list[LocalLog]) -> None:
        self.commits.append((generation, failed))

    def until(self, ready: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 30
        while not ready():
            function, arguments = self._posted.get(timeout=max(0.01, deadline - time.monotonic()))
            function(*arguments)


@pytest.fixture
def loop() -> Loop:
    return Loop()


@pytest.fixture
def storage(tmp_path: Path, loop: Loop) -> Iterator[Storage]:
    storage = Storage(tmp_path / "data", post=loop.post)
    storage.commits.on_commit = loop.commit
    yield storage
    storage.close(clean=False)


def test_groups_merge_while_one_is_synced(storage: Storage, loop: Loop) -> None:
    _, first = storage.create_queue("v", "first", "/")
    _, second = storage.create_queue("v", "second", "/")
    generations = []
    for turn in range(50):
        store = first if turn % 2 else second
        generations.append(storage.commits.generation)
        store.append_parts(ROUTE, b"", b"x" * 100, True)
        storage.commits.end_of_turn()
    assert storage.commits.unsynced_bytes > 5000
    loop.until(lambda: storage.commits.unsynced_bytes == 0)
    assert generations[0] == 1
    assert generations == sorted(generations)
    assert [generation for generation, _ in loop.commits] == list(range(1, generations[-1] + 1))
    assert all(failed == [] for _, failed in loop.commits)
    assert (first.high_watermark, second.high_watermark) == (25, 25)


def test_a_turn_without_anything_costs_nothing(storage: Storage, loop: Loop) -> None:
    generation = storage.commits.generation
    for _ in range(1000):
        storage.commits.end_of_turn()
    assert storage.commits.generation == generation


def test_transient_messages_are_not_waited_for(storage: Storage, loop: Loop) -> None:
    _, store = storage.create_queue("v", "first", "/")
    store.append_parts(ROUTE, b"", b"x", False)
    generation = storage.commits.generation
    storage.commits.end_of_turn()
    assert storage.commits.generation == generation, "no sync was begun for it"


def test_settlements_alone_are_synced_after_a_while(storage: Storage, loop: Loop) -> None:
    _, store = storage.create_queue("v", "first", "/")
    store.append_parts(ROUTE, b"", b"x", True)
    storage.commits.end_of_turn()
    loop.until(lambda: len(loop.commits) == 1)
    storage.commits._settled_handed_s = time.monotonic() + 60  # the disk may have taken longer than they wait
    began = time.monotonic()
    store.ack(0, 1)
    storage.commits.end_of_turn()
    assert storage.commits.generation == 2
    loop.until(lambda: len(loop.commits) == 2)
    assert time.monotonic() - began >= 0.04


def test_a_commit_soon_after_the_last_leaves_settlements_for_later(storage: Storage) -> None:
    """They cost a sync of their own. One that asks for them gets it."""
    _, store = storage.create_queue("v", "first", "/")
    synced: list[list[str]] = []
    storage._committer.submit = lambda job: synced.append([file.path for file in job.parts[0].files])  # type: ignore[method-assign, union-attr]
    storage.commits._settled_handed_s = time.monotonic() + 60
    for urgent, expected in ((False, {"log", "settled"}), (False, {"log"}), (True, {"log", "settled"})):
        store.append_parts(ROUTE, b"", b"x", True)
        store.ack(store.next_offset - 1, 1)
        if urgent:
            storage.commits.flush()
        else:
            storage.commits.end_of_turn()
        job = storage.commits._job
        assert job is not None
        assert {path.rpartition(".")[2] for path in synced[-1]} == expected, "a new file's settlements go at once"
        storage.commits.committed(job)


def test_deleted_while_its_messages_wait(storage: Storage, loop: Loop, tmp_path: Path) -> None:
    """The group counts as done for it, and its files go."""
    queue_id, store = storage.create_queue("v", "first", "/")
    gone: list[bool] = []
    store.append_parts(ROUTE, b"", b"x", True)
    storage.commits.end_of_turn()
    store.append_parts(ROUTE, b"", b"y", True)
    storage.commits.end_of_turn()
    generation = storage.commits.generation
    storage.delete_queue(store, lambda: gone.append(True))
    loop.until(lambda: bool(gone) and len(loop.commits) >= generation)
    assert loop.commits[-1] == (generation, [])
    assert not (tmp_path / "data" / "vhosts" / "v" / "queues" / queue_id).exists()


def test_one_process_per_directory(storage: Storage, loop: Loop, tmp_path: Path) -> None:
    with pytest.raises(DataDirectoryInUse):
        Storage(tmp_path / "data", post=loop.post)


def test_clean_stop_and_start(tmp_path: Path, loop: Loop) -> None:
    storage = Storage(tmp_path, post=loop.post, segment_size_bytes=20_000)
    queue_id, store = storage.create_queue("v", 'näme "1"', "/shop")
    for number in range(300):
        store.append_parts(ROUTE, b"", b"%d" % number * 100, True)
        storage.commits.end_of_turn()
    store.ack_range(10, 19)
    store.mark_delivered(25)
    storage.close(clean=True)
    directory = tmp_path / "vhosts" / "v" / "queues" / queue_id
    told = json.loads((directory / "queue.json").read_text())
    assert (told["queue"], told["vhost"], told["id"]) == ('näme "1"', "/shop", queue_id)
    assert (directory / "clean-shutdown").exists()
    storage = Storage(tmp_path, post=loop.post, segment_size_bytes=20_000)
    store = storage.open_queue("v", queue_id, 'näme "1"')
    assert not store.ready
    assert [record.offset for record in store.cursor.read(0, 1 << 30).records] == [*range(10), *range(20, 300)]
    assert (store.record_count, store.next_offset, store.delivered_mark) == (290, 300, 25)
    assert store.size_bytes == sum(len(b"%d" % number * 100) for number in [*range(10), *range(20, 300)]) + sum(
        len(b"%d" % number * 100) for number in range(10, 20)
    ), "bytes that settle_range was not told of are taken off when the segment is drained"
    assert (directory / "clean-shutdown").exists(), "it is only read so far"
    store.append_parts(ROUTE, b"", b"new", True)
    storage.commits.end_of_turn()
    assert not (directory / "clean-shutdown").exists()
    storage.close(clean=False)


def test_who_asks_again_for_a_log_that_a_thread_has_made_whole_has_it(tmp_path: Path, loop: Loop) -> None:
    storage = Storage(tmp_path, post=loop.post)
    storage.commits.on_commit = loop.commit
    queue_id, store = storage.create_queue("v", "tasks", "/")
    store.append_parts(ROUTE, b"", b"kept", True)
    storage.commits.end_of_turn()
    loop.until(lambda: len(loop.commits) == 1)
    storage.close(clean=False)
    (log,) = (tmp_path / "vhosts" / "v" / "queues" / queue_id).glob("*.log")
    with log.open("ab") as file:
        file.write(b"torn" * 10)
    storage = Storage(tmp_path, post=loop.post)
    store = storage.open_queue("v", queue_id, "tasks")
    called: list[int] = []
    assert not store.open_soon(lambda: called.append(1)), "a torn tail is cut off, which another thread syncs"
    assert not store.open_soon(lambda: called.append(2)), "it is at it"
    loop.until(lambda: len(called) == 2)
    assert store.open_soon(lambda: called.append(3)), "nobody would call any more"
    assert store.ready
    assert [record.body for record in store.cursor.read(0, 1 << 20).records] == [b"kept"]
    assert called == [1, 2]
    storage.close(clean=False)


def test_what_stands_in_the_directory(tmp_path: Path, loop: Loop) -> None:
    storage = Storage(tmp_path, post=loop.post)
    known, store = storage.create_queue("v", "known", "/")
    unknown, other = storage.create_queue("v", "unknown", "/")
    gone, third = storage.create_queue("w", "gone", "/other")
    for each in (store, other, third):
        each.append_parts(ROUTE, b"", b"x", True)
    storage.commits.end_of_turn()
    retired: list[bool] = []
    storage.retire_queue(third, lambda: retired.append(True))
    loop.until(lambda: bool(retired))
    storage.close(clean=True)
    storage = Storage(tmp_path, post=loop.post)
    found = storage.survey()
    assert (sorted(found.queues["v"]), found.queues["w"]) == (sorted([known, unknown]), [])
    assert (found.deleted, found.deleted_vhosts) == ({"w": [gone]}, [])
    moved = storage.set_aside("v", unknown)
    assert Path(moved).parent == tmp_path / "lost+found"
    assert unknown in moved
    assert (Path(moved) / "queue.json").exists()
    assert storage.open_queue("v", known).cursor.read_one(0) is not None
    storage.close(clean=False)


@pytest.mark.parametrize("there", ["damaged", "of an earlier version"])
def test_a_description_that_says_something_else_is_written_anew(tmp_path: Path, loop: Loop, there: str) -> None:
    storage = Storage(tmp_path, post=loop.post)
    queue_id, store = storage.create_queue("v", "q", "/", auto_delete=True, arguments=b"table")
    store.append_parts(ROUTE, b"", b"x", True)
    storage.close(clean=True)
    path = tmp_path / "vhosts" / "v" / "queues" / queue_id / "queue.json"
    right = path.read_bytes()
    old = b'{"queue": "q", "vhost": "/", "id": "%s"}' % queue_id.encode()
    path.write_bytes(right[:40] if there == "damaged" else old)
    storage = Storage(tmp_path, post=loop.post)
    store = storage.open_queue("v", queue_id, "q", "/", None, True, b"table")
    store.append_parts(ROUTE, b"", b"y", True)
    storage.close(clean=True)
    assert path.read_bytes() == right


def test_temporary_queues_are_gone_at_the_next_start(tmp_path: Path, loop: Loop) -> None:
    storage = Storage(tmp_path, post=loop.post)
    store = storage.temporary_queue("spill")
    store.append_parts(ROUTE, b"", b"x" * 100, True)
    assert store.cursor.read_one(0).body == b"x" * 100
    generation = storage.commits.generation
    storage.commits.end_of_turn()
    assert storage.commits.generation == generation
    assert list((tmp_path / "spill").iterdir())
    storage.close(clean=False)
    storage = Storage(tmp_path, post=loop.post)
    assert not (tmp_path / "spill").exists()
    storage.close(clean=False)


def test_open_files_are_bounded(tmp_path: Path, loop: Loop) -> None:
    storage = Storage(tmp_path, post=loop.post, open_file_count_max=40)
    storage.commits.on_commit = loop.commit
    stores = [storage.create_queue("v", f"q{number}", "/")[1] for number in range(100)]
    for _ in range(3):
        for store in stores:
            store.append_parts(ROUTE, b"", b"x", True)
            storage.commits.end_of_turn()
            loop.until(lambda: storage.commits.unsynced_bytes == 0)
    assert sum(store.log.open_file_count() for store in stores) <= 42
    assert storage.filesystem.open_file_count == sum(store.log.open_file_count() for store in stores)
    assert [record.offset for record in stores[50].cursor.read(0, 1000).records] == [0, 1, 2]
    storage.close(clean=True)


def test_what_spills_is_synced_in_large_pieces(storage: Storage, loop: Loop) -> None:
    """Not for its own sake: the kernel would stop the loop when too much waits for the disk."""
    store = storage.temporary_queue("spill")
    synced: list[int] = []
    fdatasync = storage.filesystem.fdatasync

    def noted(fd: int) -> None:
        synced.append(fd)
        fdatasync(fd)

    storage.filesystem.fdatasync = noted  # type: ignore[method-assign]
    body = bytes(1 << 20)
    for _ in range(15):
        store.append_parts(ROUTE, b"\x00\x00", body, False)
        storage.commits.end_of_turn()
    assert storage.commits.unsynced_bytes == 0
    for _ in range(2):
        store.append_parts(ROUTE, b"\x00\x00", body, False)
        storage.commits.end_of_turn()
    assert storage.commits.unsynced_bytes >= 16 << 20, "publishers are held by what spills, too"
    loop.until(lambda: storage.commits.unsynced_bytes == 0)
    assert len(synced) == 1
    assert [len(record.body) for record in store.cursor.read(0, 1 << 30).records] == [1 << 20] * 17


def test_what_the_last_sync_makes_safe_is_settled_where_it_came_from(tmp_path: Path, loop: Loop) -> None:
    """A message was moved just before a clean stop: its copy is safe with the last sync, and it goes at its source."""
    storage = Storage(tmp_path / "data", post=loop.post)
    source_id, source = storage.create_queue("v", "source", "/")
    _, target = storage.create_queue("v", "target", "/")
    for body in (b"moved", b"stays"):
        source.append_parts(ROUTE, b"", body, True)
    storage.commits.end_of_turn()
    target.append_parts(ROUTE, b"", b"moved", True)

    def safe(generation: int, failed: list[LocalLog]) -> None:
        if not failed and target.record_count == 1 and source.record_count == 2 and target.high_watermark == 1:
            source.ack(0, 5)

    storage.commits.on_commit = safe
    storage.close(clean=True)
    assert source.record_count == 1
    storage = Storage(tmp_path / "data", post=loop.post)
    source = storage.open_queue("v", source_id, "source", "/")
    source.recover()
    assert [record.body for record in source.cursor.read(0, 1000).records] == [b"stays"]
    assert source.record_count == 1
    storage.close(clean=True)
