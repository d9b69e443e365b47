"""Recovery of a large log runs in slices of loop turns; a caller that cannot wait gets the log at once."""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from amqpd.storage import storage as openings
from amqpd.storage.local_log import LocalLog
from amqpd.storage.log.record import RecordRoute
from amqpd.storage.log.recovery import PIECE_COUNT
from amqpd.storage.storage import Storage

ROUTE = RecordRoute(b"", b"q")
COUNT = 20 * PIECE_COUNT


class Turns:
    """Posted calls; one call is one turn."""

    def __init__(self) -> None:
        self.posted: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self.count = 0

    def post(self, function: Callable[..., object], *arguments: Any) -> None:
        self.posted.append((function, arguments))

    def run_one(self) -> bool:
        if not self.posted:
            return False
        function, arguments = self.posted.popleft()
        function(*arguments)
        self.count += 1
        return True

    def run_all(self) -> None:
        while self.run_one():
            pass


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A log whose messages were delivered. Two thirds were returned twice; each third message is acked."""
    path = tmp_path_factory.mktemp("data")
    turns = Turns()
    storage = Storage(path, post=turns.post, segment_size_bytes=1 << 18)
    queue_id, store = storage.create_queue("v", "q", "/")
    for number in range(COUNT):
        store.append_parts(ROUTE, b"", b"%d" % number, True)
        if number % 500 == 499:
            storage.commits.end_of_turn()
    store.mark_delivered(COUNT - 1)
    for count in (1, 2):
        for number in range(COUNT):
            if number % 3:
                store.mark_returned(number, count)
            elif count == 2:
                store.ack(number, len(b"%d" % number))
        storage.commits.end_of_turn()
    storage.commits.flush()
    storage.close(clean=False)
    assert len(list((path / "vhosts" / "v" / "queues" / queue_id).glob("*.log"))) > 3
    return path, queue_id


def start(written: tuple[Path, str], tmp_path: Path, turns: Turns) -> tuple[Storage, LocalLog]:
    import shutil

    shutil.copytree(written[0], tmp_path, dirs_exist_ok=True)
    storage = Storage(tmp_path, post=turns.post, segment_size_bytes=1 << 18)
    return storage, storage.open_queue("v", written[1], "q", "/")


def log_contents(store: LocalLog) -> tuple[object, ...]:
    counts = [store.delivery_count(offset) for offset in range(COUNT)]
    records = [record.offset for record in store.cursor.read(0, 1 << 30).records]
    return store.record_count, store.size_bytes, store.next_offset, store.delivered_mark, counts, records


def test_recovery_in_slices_equals_recovery_at_once(
    written: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(openings, "SLICE_S", 0.0)
    turns = Turns()
    storage, store = start(written, tmp_path / "at once", turns)
    store.recover()
    expected = log_contents(store)
    assert expected[0] == COUNT - len(range(0, COUNT, 3))
    storage.close(clean=False)

    storage, store = start(written, tmp_path / "slices", turns)
    called: list[int] = []
    turns.run_all()
    turns.count = 0
    for number in range(2):
        assert not store.open_soon(lambda number=number: called.append(number))  # type: ignore[misc]
    while not called:
        turns.run_one()
    assert turns.count > 2 * COUNT // PIECE_COUNT, "each piece is a turn"
    assert called == [0, 1]
    assert store.open_soon(lambda: called.append(2))
    assert log_contents(store) == expected
    turns.run_all()
    assert called == [0, 1]
    storage.close(clean=True)
    storage = Storage(tmp_path / "slices", post=turns.post, segment_size_bytes=1 << 18)
    store = storage.open_queue("v", written[1], "q", "/")
    assert not store.open_soon(lambda: called.append(3))
    while 3 not in called:
        turns.run_one()
    store.recover()
    assert log_contents(store) == expected
    storage.close(clean=True)


@pytest.mark.slow
@pytest.mark.parametrize("turns_before", [0, 1, 7, 25])
def test_recover_delete_or_stop_during_sliced_recovery(
    written: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, turns_before: int
) -> None:
    """`recover` finishes at once and calls the callback. Deleting the log or stopping the broker is also safe."""
    monkeypatch.setattr(openings, "SLICE_S", 0.0)
    turns = Turns()
    for action in ("recover", "delete", "stop", "kill"):
        storage, store = start(written, tmp_path / action, turns)
        called: list[int] = []
        assert not store.open_soon(lambda called=called: called.append(1))  # type: ignore[misc]
        for _ in range(turns_before):
            turns.run_one()
        assert not called
        if action == "recover":
            store.recover()
            assert store.record_count == COUNT - len(range(0, COUNT, 3))
            turns.run_all()
            assert called == [1]
        elif action == "delete":
            store.retire(lambda: None)
        storage.close(clean=action != "kill")
        turns.posted.clear()
        if action != "delete":
            storage = Storage(tmp_path / action, post=turns.post, segment_size_bytes=1 << 18)
            store = storage.open_queue("v", written[1], "q", "/")
            store.recover()
            assert store.record_count == COUNT - len(range(0, COUNT, 3))
            storage.close(clean=False)


def test_disk_error_during_sliced_recovery(
    written: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(openings, "SLICE_S", 0.0)
    turns = Turns()
    storage, store = start(written, tmp_path, turns)
    called: list[int] = []
    assert not store.open_soon(lambda: called.append(1))
    turns.run_one()

    read_file = storage.filesystem.read_file

    def failing_read(path: str) -> bytes:
        if path.endswith("/00000000000000000000.settled"):  # a slice can be read
            return read_file(path)
        raise OSError(errno.EIO, "cannot be read")

    with monkeypatch.context() as broken:
        broken.setattr(storage.filesystem, "read_file", failing_read)
        while not called:
            turns.run_one()
        with pytest.raises(OSError, match="cannot be read"):
            store.recover()
        # A delayed-message wheel does the same; without the error it would start again forever.
        assert not store.open_soon(lambda: called.append(2))
        while called == [1]:
            turns.run_one()
        with pytest.raises(OSError, match="cannot be read"):
            store.open_soon(lambda: called.append(3))
    assert called == [1, 2], "the caller tries again and gets the error"
    store.recover()
    assert store.record_count == COUNT - len(range(0, COUNT, 3))
    storage.close(clean=False)
