"""One turn writes to more logs than the process may have open files, and no write fails."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any

import pytest

from amqpd.storage.local_log import LocalLog
from amqpd.storage.log.record import RecordRoute

ROUTE = RecordRoute(b"orders", b"eu.new")
COUNT = 200
BOUND = 24


def create_logs(harness: Any) -> list[LocalLog]:
    harness.create_log()
    return [harness.storage.create_queue("v", f"q{number}", "/")[1] for number in range(COUNT)]


def append_all(stores: list[LocalLog], body: bytes) -> None:
    for store in stores:
        store.append_parts(ROUTE, b"\x10\x00\x02", body, True)


class Descriptors:
    """Limits the number of open descriptors of a file system."""

    def __init__(self, harness: Any, count: int) -> None:
        filesystem = harness.filesystem
        self.open = 0
        self.most = 0
        open_file, close = filesystem.open, filesystem.close

        def limited_open(path: str, flags: int) -> int:
            if self.open >= count:
                raise OSError(errno.EMFILE, "Too many open files")
            fd = open_file(path, flags)
            self.open += 1
            self.most = max(self.most, self.open)
            return fd

        def counting_close(fd: int) -> None:
            self.open -= 1
            close(fd)

        filesystem.open, filesystem.close = limited_open, counting_close  # type: ignore[method-assign]


def test_turn_writes_to_more_logs_than_descriptors(make_harness: Callable[..., Any]) -> None:
    harness = make_harness(open_file_count_max=BOUND)
    stores = create_logs(harness)
    descriptors = Descriptors(harness, 2 * BOUND)
    for turn in range(3):
        append_all(stores, b"%d" % turn)
        harness.end_turn()
    assert [failed for _, failed in harness.commits] == [[]] * len(harness.commits)
    assert descriptors.most <= BOUND + 8, "one log may briefly exceed the bound"
    image = harness.filesystem.crashed(1)  # confirmed records survive, also in files closed before their sync
    harness.filesystem = image
    harness._open_storage()
    for store in stores:
        reopened = harness.storage.open_queue("v", store.queue_id, store.name)
        assert [record.body for record in reopened.cursor.read(0, 1000).records] == [b"0", b"1", b"2"]


def test_acks_of_more_logs_than_descriptors(make_harness: Callable[..., Any]) -> None:
    harness = make_harness(open_file_count_max=BOUND)
    stores = create_logs(harness)
    descriptors = Descriptors(harness, 2 * BOUND)
    append_all(stores, b"first")
    append_all(stores, b"second")
    harness.end_turn()
    for store in stores:
        store.mark_delivered(1)
        store.ack(0, 5)
    harness.end_turn()
    assert descriptors.most <= BOUND + 8
    harness.filesystem = harness.filesystem.killed()
    harness._open_storage()
    for store in stores:
        reopened = harness.storage.open_queue("v", store.queue_id, store.name)
        assert [record.offset for record in reopened.cursor.read(0, 1000).records] == [1]
        assert reopened.redelivered(1)


def test_log_closed_before_a_failed_sync_fails(make_harness: Callable[..., Any]) -> None:
    """No descriptor of the log is left that could show whether the error concerns it."""
    harness = make_harness(open_file_count_max=BOUND)
    stores = create_logs(harness)
    append_all(stores, b"x")
    harness.filesystem.fault = lambda name, path: OSError(errno.EIO, "I/O error") if name == "syncfs" else None
    harness.end_turn()
    failed = {store for _, each in harness.commits for store in each}
    assert len(failed) >= COUNT - BOUND
    assert all(store.failed == (store in failed) for store in stores), "the syncs of the other logs succeeded"


def test_descriptors_used_by_sockets_fail_no_append(make_harness: Callable[..., Any]) -> None:
    """Logs close files that they do not need at the moment."""
    harness = make_harness()
    stores = create_logs(harness)
    Descriptors(harness, BOUND)
    append_all(stores, b"0")
    harness.end_turn()
    append_all(stores, b"1")
    harness.end_turn()
    assert all(failed == [] for _, failed in harness.commits)
    assert not any(store.take_failed_ranges() for store in stores)
    assert [record.body for record in stores[100].cursor.read(0, 1000).records] == [b"0", b"1"]


def test_clean_stop_of_more_logs_than_descriptors(make_harness: Callable[..., Any], caplog: Any) -> None:
    """Every log gets its last acks and its mark. Otherwise acked messages come again after a clean stop."""
    harness = make_harness(open_file_count_max=BOUND)
    stores = create_logs(harness)
    descriptors = Descriptors(harness, 2 * BOUND)
    append_all(stores, b"first")
    append_all(stores, b"second")
    harness.end_turn()
    for store in stores:
        store.mark_delivered(0)
        store.ack(0, 5)
    harness.storage.close(clean=True)
    assert descriptors.most <= BOUND + 8
    assert [record.message for record in caplog.records if record.levelname != "INFO"] == []
    harness.filesystem = harness.filesystem.crashed(1)
    harness._open_storage()
    for store in stores:
        assert harness.filesystem.exists(f"{store.directory}/clean-shutdown")
        reopened = harness.storage.open_queue("v", store.queue_id, store.name)
        assert [record.offset for record in reopened.cursor.read(0, 1000).records] == [1]
        assert not reopened.redelivered(1)


@pytest.mark.parametrize("fails", [False, True])
def test_clean_stop_syncs_many_logs_together(make_harness: Callable[..., Any], fails: bool) -> None:
    """A sync for each clean-shutdown mark would let the stop of 20,000 queues take a minute."""
    harness = make_harness()
    stores = create_logs(harness)
    append_all(stores, b"x")
    harness.end_turn()
    harness.filesystem.calls.clear()
    last_mark = f"{stores[-1].directory}/clean-shutdown"

    def fault(name: str, path: str) -> OSError | None:
        # Only the sync of the marks fails, after the one of the logs.
        return OSError(errno.EIO, "I/O error") if name == "syncfs" and filesystem.exists(last_mark) else None

    filesystem = harness.filesystem
    if fails:
        filesystem.fault = fault
    harness.storage.close(clean=True)
    filesystem.fault = None
    calls = [name for name, path in harness.filesystem.calls if name == "syncfs" or "/queues/" in path]
    assert calls.count("fdatasync") == 0
    assert calls[-1] == "syncfs", "the marks are synced"
    harness.filesystem = harness.filesystem.killed()
    harness._open_storage()
    for store in stores:
        assert harness.filesystem.exists(f"{store.directory}/clean-shutdown")
        reopened = harness.storage.open_queue("v", store.queue_id, store.name)
        assert [record.body for record in reopened.cursor.read(0, 1000).records] == [b"x"]
