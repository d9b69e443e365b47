"""A log with very much to tell is read in slices of the loop's turn, and whoever cannot wait has it at once."""

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
    """What was posted, a call each turn."""

    def __init__(self) -> None:
        self.posted: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self.count = 0

    def post(self, function: Callable[..., object], *arguments: Any) -> None:
        self.posted.append((function, arguments))

    def one(self) -> bool:
        if not self.posted:
            return False
        function, arguments = self.posted.popleft()
        function(*arguments)
        self.count += 1
        return True

    def all(self) -> None:
        while self.one():
            pass


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A log of which everything was delivered, and came back twice but for each third, which is settled."""
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


def told(store: LocalLog) -> tuple[object, ...]:
    counts = [store.delivery_count(offset) for offset in range(COUNT)]
    records = [record.offset for record in store.cursor.read(0, 1 << 30).records]
    return store.record_count, store.size_bytes, store.next_offset, store.delivered_mark, counts, records


def test_in_slices_as_in_one_go(written: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openings, "SLICE_S", 0.0)
    turns = Turns()
    storage, store = start(written, tmp_path / "at once", turns)
    store.recover()
    expected = told(store)
    assert expected[0] == COUNT - len(range(0, COUNT, 3))
    storage.close(clean=False)

    storage, store = start(written, tmp_path / "slices", turns)
    called: list[int] = []
    turns.all()
    turns.count = 0
    for number in range(2):
        assert not store.open_soon(lambda number=number: called.append(number))  # type: ignore[misc]
    while not called:
        turns.one()
    assert turns.count > 2 * COUNT // PIECE_COUNT, "each piece is a turn"
    assert called == [0, 1]
    assert store.open_soon(lambda: called.append(2))
    assert told(store) == expected
    turns.all()
    assert called == [0, 1]
    storage.close(clean=True)
    storage = Storage(tmp_path / "slices", post=turns.post, segment_size_bytes=1 << 18)
    store = storage.open_queue("v", written[1], "q", "/")
    assert not store.open_soon(lambda: called.append(3))
    while 3 not in called:
        turns.one()
    store.recover()
    assert told(store) == expected
    storage.close(clean=True)


@pytest.mark.slow
@pytest.mark.parametrize("turns_before", [0, 1, 7, 25])
def test_who_cannot_wait(
    written: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, turns_before: int
) -> None:
    """He has it at once, and who waits is told. Nor does it matter that it is deleted, or the broker stops."""
    monkeypatch.setattr(openings, "SLICE_S", 0.0)
    turns = Turns()
    for what in ("recover", "delete", "stop", "kill"):
        storage, store = start(written, tmp_path / what, turns)
        called: list[int] = []
        assert not store.open_soon(lambda called=called: called.append(1))  # type: ignore[misc]
        for _ in range(turns_before):
            turns.one()
        assert not called
        if what == "recover":
            store.recover()
            assert store.record_count == COUNT - len(range(0, COUNT, 3))
            turns.all()
            assert called == [1]
        elif what == "delete":
            store.retire(lambda: None)
        storage.close(clean=what != "kill")
        turns.posted.clear()
        if what != "delete":
            storage = Storage(tmp_path / what, post=turns.post, segment_size_bytes=1 << 18)
            store = storage.open_queue("v", written[1], "q", "/")
            store.recover()
            assert store.record_count == COUNT - len(range(0, COUNT, 3))
            storage.close(clean=False)


def test_a_disk_that_fails_in_the_middle(
    written: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(openings, "SLICE_S", 0.0)
    turns = Turns()
    storage, store = start(written, tmp_path, turns)
    called: list[int] = []
    assert not store.open_soon(lambda: called.append(1))
    turns.one()

    reads = storage.filesystem.read_file

    def fails(path: str) -> bytes:
        if path.endswith("/00000000000000000000.settled"):  # a slice can be read
            return reads(path)
        raise OSError(errno.EIO, "cannot be read")

    with monkeypatch.context() as broken:
        broken.setattr(storage.filesystem, "read_file", fails)
        while not called:
            turns.one()
        with pytest.raises(OSError, match="cannot be read"):
            store.recover()
        # As a wheel of delayed messages does, which would begin anew for ever.
        assert not store.open_soon(lambda: called.append(2))
        while called == [1]:
            turns.one()
        with pytest.raises(OSError, match="cannot be read"):
            store.open_soon(lambda: called.append(3))
    assert called == [1, 2], "he tries it, and meets the error"
    store.recover()
    assert store.record_count == COUNT - len(range(0, COUNT, 3))
    storage.close(clean=False)
