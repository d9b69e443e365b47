"""A whole data directory on a real file system: commit groups, threads, start and stop."""

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
from amqpd.storage.queue_json import survey
from amqpd.storage.storage import Storage

ROUTE = RecordRoute(b"", b"tasks")


class Loop:
    """Runs the calls that the fsync thread posts, in place of the event loop."""

    def __init__(self) -> None:
        self._posted: queue.Queue[tuple[Callable[..., object], tuple[Any, ...]]] = queue.Queue()
        self.commits: list[tuple[int, list[LocalLog]]] = []

    def post(self, function: Callable[..., object], *arguments: Any) -> None:
        self._posted.put((function, arguments))

    def commit(self, generation: int, failed: list[LocalLog]) -> None:
        self.commits.append((generation, failed))

    def run_until(self, ready: Callable[[], bool]) -> None:
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
    loop.run_until(lambda: storage.commits.unsynced_bytes == 0)
    assert generations[0] == 1
    assert generations == sorted(generations)
    assert [generation for generation, _ in loop.commits] == list(range(1, generations[-1] + 1))
    assert all(failed == [] for _, failed in loop.commits)
    assert (first.high_watermark, second.high_watermark) == (25, 25)


def test_empty_turn_starts_no_commit(storage: Storage, loop: Loop) -> None:
    generation = storage.commits.generation
    for _ in range(1000):
        storage.commits.end_of_turn()
    assert storage.commits.generation == generation


def test_transient_messages_start_no_sync(storage: Storage, loop: Loop) -> None:
    _, store = storage.create_queue("v", "first", "/")
    store.append_parts(ROUTE, b"", b"x", False)
    generation = storage.commits.generation
    storage.commits.end_of_turn()
    assert storage.commits.generation == generation, "a sync was started for it"


def test_acks_alone_are_synced_after_a_delay(storage: Storage, loop: Loop) -> None:
    _, store = storage.create_queue("v", "first", "/")
    store.append_parts(ROUTE, b"", b"x", True)
    storage.commits.end_of_turn()
    loop.run_until(lambda: len(loop.commits) == 1)
    storage.commits._settled_handed_s = time.monotonic() + 60  # the sync may have taken longer than the delay of acks
    began = time.monotonic()
    store.ack(0, 1)
    storage.commits.end_of_turn()
    assert storage.commits.generation == 2
    loop.run_until(lambda: len(loop.commits) == 2)
    assert time.monotonic() - began >= 0.04


def test_commit_soon_after_the_last_leaves_acks_for_later(storage: Storage) -> None:
    """Acks cost a sync of their own. A flush syncs them at once."""
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
        assert {path.rpartition(".")[2] for path in synced[-1]} == expected, "the acks of a new file are synced at once"
        storage.commits.committed(job)


def test_queue_deleted_before_its_commit(storage: Storage, loop: Loop, tmp_path: Path) -> None:
    """The group counts as done for the queue, and its files are removed."""
    queue_id, store = storage.create_queue("v", "first", "/")
    removed: list[bool] = []
    store.append_parts(ROUTE, b"", b"x", True)
    storage.commits.end_of_turn()
    store.append_parts(ROUTE, b"", b"y", True)
    storage.commits.end_of_turn()
    generation = storage.commits.generation
    storage.delete_queue(store, lambda: removed.append(True))
    loop.run_until(lambda: bool(removed) and len(loop.commits) >= generation)
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
    description = json.loads((directory / "queue.json").read_text())
    assert (description["queue"], description["vhost"], description["id"]) == ('näme "1"', "/shop", queue_id)
    assert (directory / "clean-shutdown").exists()
    storage = Storage(tmp_path, post=loop.post, segment_size_bytes=20_000)
    store = storage.open_queue("v", queue_id, 'näme "1"')
    assert not store.ready
    assert [record.offset for record in store.cursor.read(0, 1 << 30).records] == [*range(10), *range(20, 300)]
    assert (store.record_count, store.next_offset, store.delivered_mark) == (290, 300, 25)
    assert store.size_bytes == sum(len(b"%d" % number * 100) for number in [*range(10), *range(20, 300)]) + sum(
        len(b"%d" % number * 100) for number in range(10, 20)
    ), "bytes not passed to ack_range are subtracted when the segment is drained"
    assert (directory / "clean-shutdown").exists(), "the log has only been read"
    store.append_parts(ROUTE, b"", b"new", True)
    storage.commits.end_of_turn()
    assert not (directory / "clean-shutdown").exists()
    storage.close(clean=False)


def test_open_soon_after_a_torn_tail_was_synced(tmp_path: Path, loop: Loop) -> None:
    storage = Storage(tmp_path, post=loop.post)
    storage.commits.on_commit = loop.commit
    queue_id, store = storage.create_queue("v", "tasks", "/")
    store.append_parts(ROUTE, b"", b"kept", True)
    storage.commits.end_of_turn()
    loop.run_until(lambda: len(loop.commits) == 1)
    storage.close(clean=False)
    (log,) = (tmp_path / "vhosts" / "v" / "queues" / queue_id).glob("*.log")
    with log.open("ab") as file:
        file.write(b"torn" * 10)
    storage = Storage(tmp_path, post=loop.post)
    store = storage.open_queue("v", queue_id, "tasks")
    called: list[int] = []
    assert not store.open_soon(lambda: called.append(1)), "another thread syncs the log without its torn tail"
    assert not store.open_soon(lambda: called.append(2)), "the sync is in progress"
    loop.run_until(lambda: len(called) == 2)
    assert store.open_soon(lambda: called.append(3)), "the log is open"
    assert store.ready
    assert [record.body for record in store.cursor.read(0, 1 << 20).records] == [b"kept"]
    assert called == [1, 2]
    storage.close(clean=False)


def test_deleted_vhosts_and_their_directories_leave_nothing_in_memory(storage: Storage, loop: Loop) -> None:
    """Ids are never used again, so a path that is kept would stay until the broker stops."""

    def write(*stores: LocalLog) -> None:
        seen = len(loop.commits)
        for store in stores:
            store.append_parts(ROUTE, b"", b"x", True)
        storage.commits.end_of_turn()
        loop.run_until(lambda: len(loop.commits) > seen)

    def use_and_delete(vhost_id: str) -> None:
        done: list[None] = []
        _, store = storage.create_queue(vhost_id, "q", "/")
        chain = storage.delay_chain(vhost_id, "x", "bucket")
        bucket = storage.create_log(chain, "bucket", "/", vhost_id)
        write(store, bucket)
        assert chain[-2] in storage.filesystem.safe_directories
        storage.retire_directory(chain[:-1], [bucket], lambda: done.append(None))
        loop.run_until(lambda: len(done) == 1)
        assert chain[-2] not in storage.filesystem.safe_directories
        storage.retire_vhost(vhost_id, [store], lambda: done.append(None))
        loop.run_until(lambda: len(done) == 2)

    write(storage.create_queue("kept", "q", "/")[1])
    safe = set(storage.filesystem.safe_directories)
    for number in range(3):
        use_and_delete(f"v{number}")
    assert storage.filesystem.safe_directories == safe != set()
    assert list(storage.data_directory._chains) == ["kept"]


def test_survey_finds_known_unknown_and_deleted_queues(tmp_path: Path, loop: Loop) -> None:
    storage = Storage(tmp_path, post=loop.post)
    known, store = storage.create_queue("v", "known", "/")
    unknown, other = storage.create_queue("v", "unknown", "/")
    deleted, third = storage.create_queue("w", "gone", "/other")
    for each in (store, other, third):
        each.append_parts(ROUTE, b"", b"x", True)
    storage.commits.end_of_turn()
    retired: list[bool] = []
    storage.retire_queue(third, lambda: retired.append(True))
    loop.run_until(lambda: bool(retired))
    storage.close(clean=True)
    storage = Storage(tmp_path, post=loop.post)
    found = survey(storage.filesystem, storage.data_dir)
    assert (sorted(found.queues["v"]), found.queues["w"]) == (sorted([known, unknown]), [])
    assert (found.deleted, found.deleted_vhosts) == ({"w": [deleted]}, [])
    moved = storage.data_directory.set_aside("v", unknown)
    assert Path(moved).parent == tmp_path / "lost+found"
    assert unknown in moved
    assert (Path(moved) / "queue.json").exists()
    assert storage.open_queue("v", known).cursor.read_one(0) is not None
    storage.close(clean=False)


@pytest.mark.parametrize("description", ["damaged", "of an earlier version"])
def test_wrong_queue_description_is_rewritten(tmp_path: Path, loop: Loop, description: str) -> None:
    storage = Storage(tmp_path, post=loop.post)
    queue_id, store = storage.create_queue("v", "q", "/", auto_delete=True, arguments=b"table")
    store.append_parts(ROUTE, b"", b"x", True)
    storage.close(clean=True)
    path = tmp_path / "vhosts" / "v" / "queues" / queue_id / "queue.json"
    expected = path.read_bytes()
    old = b'{"queue": "q", "vhost": "/", "id": "%s"}' % queue_id.encode()
    path.write_bytes(expected[:40] if description == "damaged" else old)
    storage = Storage(tmp_path, post=loop.post)
    store = storage.open_queue("v", queue_id, "q", "/", None, True, b"table")
    store.append_parts(ROUTE, b"", b"y", True)
    storage.close(clean=True)
    assert path.read_bytes() == expected


def test_temporary_queues_are_removed_at_the_next_start(tmp_path: Path, loop: Loop) -> None:
    storage = Storage(tmp_path, post=loop.post)
    store = storage.temporary_queue()
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


def test_open_files_are_limited(tmp_path: Path, loop: Loop) -> None:
    storage = Storage(tmp_path, post=loop.post, open_file_count_max=40)
    storage.commits.on_commit = loop.commit
    stores = [storage.create_queue("v", f"q{number}", "/")[1] for number in range(100)]
    for _ in range(3):
        for store in stores:
            store.append_parts(ROUTE, b"", b"x", True)
            storage.commits.end_of_turn()
            loop.run_until(lambda: storage.commits.unsynced_bytes == 0)
    assert sum(store.log.open_file_count() for store in stores) <= 42
    assert storage.filesystem.open_file_count == sum(store.log.open_file_count() for store in stores)
    assert [record.offset for record in stores[50].cursor.read(0, 1000).records] == [0, 1, 2]
    storage.close(clean=True)


def test_temporary_queue_is_synced_in_large_pieces(storage: Storage, loop: Loop) -> None:
    """The sync is not for durability: with too many dirty pages the kernel would block the loop."""
    store = storage.temporary_queue()
    synced: list[int] = []
    fdatasync = storage.filesystem.fdatasync

    def recording_fdatasync(fd: int) -> None:
        synced.append(fd)
        fdatasync(fd)

    storage.filesystem.fdatasync = recording_fdatasync  # type: ignore[method-assign]
    body = bytes(1 << 20)
    for _ in range(15):
        store.append_parts(ROUTE, b"\x00\x00", body, False)
        storage.commits.end_of_turn()
    assert storage.commits.unsynced_bytes == 0
    for _ in range(2):
        store.append_parts(ROUTE, b"\x00\x00", body, False)
        storage.commits.end_of_turn()
    assert storage.commits.unsynced_bytes >= 16 << 20, "spilled bytes count as unsynced, too"
    loop.run_until(lambda: storage.commits.unsynced_bytes == 0)
    assert len(synced) == 1
    assert [len(record.body) for record in store.cursor.read(0, 1 << 30).records] == [1 << 20] * 17


def test_message_moved_before_a_clean_stop_is_acked_at_its_source(tmp_path: Path, loop: Loop) -> None:
    """The source is acked when the last sync has made the message's copy safe."""
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
