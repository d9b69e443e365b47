"""A disk without a free block is still freed by what is settled: removing segments is what makes room."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any

from simulated_filesystem import SimulatedFileSystem

from amqpd.storage.fsync_thread import run_job
from amqpd.storage.sync_job import SyncBatch, SyncPart


class FullUntilFreed(SimulatedFileSystem):
    """Takes no small file while `log` is there."""

    log = "/data/0.log"

    def replace_file(self, path: str, data: bytes, *, sync: bool) -> None:
        if self.exists(self.log):
            raise OSError(errno.ENOSPC, "No space left on device", path)
        super().replace_file(path, data, sync=sync)


def test_what_is_settled_goes_before_a_checkpoint_that_has_no_room() -> None:
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


def settle(house: Any, start: int, stop: int) -> None:
    """Messages of 600 bytes, and time for what follows."""
    for offset in range(start, stop):
        house.store.ack(offset, 600)
    for _ in range(4):
        house.clock.now_ms += 1000
        house.turn()
        house.storage.commits.flush()
        house.loop()


def test_a_segment_goes_whose_last_settlements_have_no_room(make_house: Callable[..., Any]) -> None:
    """Nothing of it is live, and nothing can be written: it goes, and what follows finds its room."""
    house = make_house(segment_size_bytes=4000)
    store = house.begin()
    for number in range(30):
        house.append(b"%03d" % number * 200)
        house.turn()
    first, second = store.log.segments[:2]
    assert first.sealed and second.sealed
    house.filesystem.unlink("/data/reserve")  # it was given up before, and somebody else has its room
    house.storage._resources.reserve.held = False
    house.filesystem.capacity = house.filesystem.used()
    settle(house, first.base, second.end)
    assert first.is_removed and second.is_removed
    assert not any(house.filesystem.exists(f"{segment.prefix}.log") for segment in (first, second))
    assert not store.failed
    house.append(b"there is room")
    house.turn()
    assert house.commits[-1][1] == []
    assert house.bodies()[-1] == b"there is room"


def test_a_start_on_a_disk_without_a_block(make_house: Callable[..., Any]) -> None:
    """Recovery has to write a `.settled` file and cannot: the log is drained, and takes nothing before it has."""
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
    for _ in range(2):  # the second one finds what the first could not mend
        store = house.again()
        assert house.bodies() == kept
    first = store.log.segments[0]
    for offset in range(first.end):
        store.mark_delivered(offset)
    refused = house.append(b"no room")[0]
    house.turn()
    assert store.take_failed_ranges() == [(refused, refused)]
    assert not store.failed
    settle(house, first.base, first.end)
    assert first.is_removed
    assert house.bodies() == kept[first.end :]
    house.append(b"there is room")
    house.turn()
    assert house.commits[-1][1] == []
    for _ in range(2):  # the second one finds what the first has left
        house.again()
        assert house.bodies() == [*kept[first.end :], b"there is room"]
        assert not house.store.lost
