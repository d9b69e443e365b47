"""On a full disk, acked segments can still be removed, and that frees space."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any

from simulated_filesystem import SimulatedFileSystem

from amqpd.storage.fsync_thread import run_job
from amqpd.storage.sync_job import SyncBatch, SyncPart


class FullUntilFreed(SimulatedFileSystem):
    """A file system on which `replace_file` fails with ENOSPC while `log` exists."""

    log = "/data/0.log"

    def replace_file(self, path: str, data: bytes, *, sync: bool) -> None:
        if self.exists(self.log):
            raise OSError(errno.ENOSPC, "No space left on device", path)
        super().replace_file(path, data, sync=sync)


def test_acked_segment_is_removed_before_a_checkpoint_is_written() -> None:
    filesystem = FullUntilFreed()
    filesystem.mkdir("/data")
    for name in ("0.log", "0.index", "9.settled"):
        SimulatedFileSystem.replace_file(filesystem, f"/data/{name}", b"x", sync=False)
    part = SyncPart("tasks")
    part.checkpoints = [("/data/log-start", b"1")]
    part.unlinks = ["/data/9.settled", "/data/0.log", "/data/0.index"]
    job = SyncBatch(1)
    job.parts = [part]
    run_job(filesystem, job, -1)
    assert sorted(filesystem.listdir("/data")) == ["log-start"]
    assert not part.failed


def ack_and_remove(house: Any, start: int, stop: int) -> None:
    """Ack messages of 600 bytes and run the turns that remove their segments."""
    for offset in range(start, stop):
        house.store.ack(offset, 600)
    for _ in range(4):
        house.clock.now_ms += 1000
        house.turn()
        house.storage.commits.flush()
        house.loop()


def test_segment_is_removed_although_its_acks_cannot_be_written(make_house: Callable[..., Any]) -> None:
    """No message of the segment is live and no ack can be written. Removal makes space for the next append."""
    house = make_house(segment_size_bytes=4000)
    store = house.begin()
    for number in range(30):
        house.append(b"%03d" % number * 200)
        house.turn()
    first, second = store.log.segments[:2]
    assert first.sealed and second.sealed
    house.filesystem.unlink("/data/reserve")  # the reserve was released before, and its space is used
    house.storage._resources.reserve.held = False
    house.filesystem.capacity = house.filesystem.used()
    ack_and_remove(house, first.base, second.end)
    assert first.is_removed and second.is_removed
    assert not any(house.filesystem.exists(f"{segment.prefix}.log") for segment in (first, second))
    assert not store.failed
    house.append(b"there is room")
    house.turn()
    assert house.commits[-1][1] == []
    assert house.bodies()[-1] == b"there is room"


def test_start_on_a_full_disk(make_house: Callable[..., Any]) -> None:
    """Recovery cannot write a `.settled` file. The log can be drained, and appends fail until that has freed space."""
    house = make_house(segment_size_bytes=4000)
    house.begin()
    for number in range(30):
        house.append(b"%03d" % number * 200)
        house.turn()
    kept = house.bodies()
    house.log().extend(b"a torn tail")
    house.filesystem.unlink(f"{house.directory}/recovery-point-checkpoint")  # every segment is checked again
    house.filesystem.unlink("/data/reserve")
    house.filesystem.capacity = house.filesystem.used() - len(b"a torn tail")
    for _ in range(2):  # the second restart meets what the first could not repair
        store = house.again()
        assert house.bodies() == kept
    first = store.log.segments[0]
    for offset in range(first.end):
        store.mark_delivered(offset)
    refused = house.append(b"no room")[0]
    house.turn()
    assert store.take_failed_ranges() == [(refused, refused)]
    assert not store.failed
    ack_and_remove(house, first.base, first.end)
    assert first.is_removed
    assert house.bodies() == kept[first.end :]
    house.append(b"there is room")
    house.turn()
    assert house.commits[-1][1] == []
    for _ in range(2):  # the second restart reads what the first has written
        house.again()
        assert house.bodies() == [*kept[first.end :], b"there is room"]
        assert not house.store.lost
