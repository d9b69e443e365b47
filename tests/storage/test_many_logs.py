"""One turn writes to more logs than the process may have open files, and no write fails."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any

from amqpd.storage.local_log import LocalLog
from amqpd.storage.log.record import RecordRoute

ROUTE = RecordRoute(b"orders", b"eu.new")
COUNT = 200
BOUND = 24


def create_logs(house: Any) -> list[LocalLog]:
    house.begin()
    return [house.storage.create_queue("v", f"q{number}", "/")[1] for number in range(COUNT)]


def append_all(stores: list[LocalLog], body: bytes) -> None:
    for store in stores:
        store.append_parts(ROUTE, b"\x10\x00\x02", body, True)


class Descriptors:
    """Limits the number of open descriptors of a file system."""

    def __init__(self, house: Any, count: int) -> None:
        filesystem = house.filesystem
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


def test_turn_writes_to_more_logs_than_descriptors(make_house: Callable[..., Any]) -> None:
    house = make_house(open_file_count_max=BOUND)
    stores = create_logs(house)
    descriptors = Descriptors(house, 2 * BOUND)
    for turn in range(3):
        append_all(stores, b"%d" % turn)
        house.turn()
    assert [failed for _, failed in house.commits] == [[]] * len(house.commits)
    assert descriptors.most <= BOUND + 8, "one log may briefly exceed the bound"
    image = house.filesystem.crashed(1)  # confirmed records survive, also in files closed before their sync
    house.filesystem = image
    house._storage()
    for store in stores:
        again = house.storage.open_queue("v", store.queue_id, store.name)
        assert [record.body for record in again.cursor.read(0, 1000).records] == [b"0", b"1", b"2"]


def test_acks_of_more_logs_than_descriptors(make_house: Callable[..., Any]) -> None:
    house = make_house(open_file_count_max=BOUND)
    stores = create_logs(house)
    descriptors = Descriptors(house, 2 * BOUND)
    append_all(stores, b"first")
    append_all(stores, b"second")
    house.turn()
    for store in stores:
        store.mark_delivered(1)
        store.ack(0, 5)
    house.turn()
    assert descriptors.most <= BOUND + 8
    house.filesystem = house.filesystem.killed()
    house._storage()
    for store in stores:
        again = house.storage.open_queue("v", store.queue_id, store.name)
        assert [record.offset for record in again.cursor.read(0, 1000).records] == [1]
        assert again.redelivered(1)


def test_log_closed_before_a_failed_sync_fails(make_house: Callable[..., Any]) -> None:
    """No descriptor of the log is left that could show whether the error concerns it."""
    house = make_house(open_file_count_max=BOUND)
    stores = create_logs(house)
    append_all(stores, b"x")
    house.filesystem.fault = lambda name, path: OSError(errno.EIO, "I/O error") if name == "syncfs" else None
    house.turn()
    failed = {store for _, each in house.commits for store in each}
    assert len(failed) >= COUNT - BOUND
    assert all(store.failed == (store in failed) for store in stores), "the syncs of the other logs succeeded"


def test_descriptors_used_by_sockets_fail_no_append(make_house: Callable[..., Any]) -> None:
    """Logs close files that they do not need at the moment."""
    house = make_house()
    stores = create_logs(house)
    Descriptors(house, BOUND)
    append_all(stores, b"0")
    house.turn()
    append_all(stores, b"1")
    house.turn()
    assert all(failed == [] for _, failed in house.commits)
    assert not any(store.take_failed_ranges() for store in stores)
    assert [record.body for record in stores[100].cursor.read(0, 1000).records] == [b"0", b"1"]
