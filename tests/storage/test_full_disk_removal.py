"""On a full disk, acked segments can still be removed, and that frees space."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any

from simulated_filesystem import SimulatedFileSystem

from amqpd.storage.fsync_thread import sync_parts
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
    sync_parts(filesystem, job.parts, -1)
    assert sorted(filesystem.listdir("/data")) == ["log-start"]
    assert not part.failed


def ack_and_remove(harness: Any, start: int, stop: int) -> None:
    """Ack messages of 600 bytes and run the turns that remove their segments."""
    for offset in range(start, stop):
        harness.store.ack(offset, 600)
    for _ in range(4):
        harness.clock.now_ms += 1000
        harness.end_turn()
        harness.storage.commits.flush()
        harness.run_callbacks()


def test_segment_is_removed_although_its_acks_cannot_be_written(make_harness: Callable[..., Any]) -> None:
    """No message of the segment is live and no ack can be written. Removal makes space for the next append."""
    harness = make_harness(segment_size_bytes=4000)
    store = harness.create_log()
    for number in range(30):
        harness.append(b"%03d" % number * 200)
        harness.end_turn()
    first, second = store.log.segments[:2]
    assert first.sealed and second.sealed
    harness.filesystem.unlink("/data/reserve")  # the reserve was released before, and its space is used
    harness.storage._resources.reserve.held = False
    harness.filesystem.capacity = harness.filesystem.used()
    ack_and_remove(harness, first.base, second.end)
    assert first.is_removed and second.is_removed
    assert not any(harness.filesystem.exists(f"{segment.prefix}.log") for segment in (first, second))
    assert not store.failed
    harness.append(b"there is room")
    harness.end_turn()
    assert harness.commits[-1][1] == []
    assert harness.bodies()[-1] == b"there is room"


def test_start_on_a_full_disk(make_harness: Callable[..., Any]) -> None:
    """Recovery cannot write a `.settled` file. The log can be drained, and appends fail until that has freed space."""
    harness = make_harness(segment_size_bytes=4000)
    harness.create_log()
    for number in range(30):
        harness.append(b"%03d" % number * 200)
        harness.end_turn()
    kept = harness.bodies()
    harness.log().extend(b"a torn tail")
    harness.filesystem.unlink(f"{harness.directory}/recovery-point-checkpoint")  # every segment is checked again
    harness.filesystem.unlink("/data/reserve")
    harness.filesystem.capacity = harness.filesystem.used() - len(b"a torn tail")
    for _ in range(2):  # the second restart meets what the first could not repair
        store = harness.restart()
        assert harness.bodies() == kept
    first = store.log.segments[0]
    for offset in range(first.end):
        store.mark_delivered(offset)
    refused = harness.append(b"no room")[0]
    harness.end_turn()
    assert store.take_failed_ranges() == [(refused, refused)]
    assert not store.failed
    ack_and_remove(harness, first.base, first.end)
    assert first.is_removed
    assert harness.bodies() == kept[first.end :]
    harness.append(b"there is room")
    harness.end_turn()
    assert harness.commits[-1][1] == []
    for _ in range(2):  # the second restart reads what the first has written
        harness.restart()
        assert harness.bodies() == [*kept[first.end :], b"there is room"]
        assert not harness.store.lost
