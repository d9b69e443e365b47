"""Replay in place: settled messages of a log become live again. All of them or none, also after a crash.

Steps:

    1 write     the offsets go into the file `rewind` (replay_file.py), in the fsync thread
    2 sync      the file has its name. From here on a crash completes the replay: recovery does what the file says
    3 segments  the offsets are taken out of the settled sets, and the `.settled` files are rewritten (ack_files.py),
                which takes a job
    4 remove    the rewritten files have their names, synced; then `rewind` is removed, synced too

The queue delivers none of these messages before the last step, so none of them can be settled again while the file
exists. If the log fails on the way, the next start finds the file and completes the replay.

Compaction removes settled messages. A replay ends a running one first, and none begins before the replay has ended.

Messages that have left the log meanwhile stay settled; `taken` has the others.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import Final

from amqpd.storage.acks import replay_file
from amqpd.storage.acks.ack_set import AckSet
from amqpd.storage.fsync_thread import Task
from amqpd.storage.local_log import LocalLog
from amqpd.storage.log.segment import Segment
from amqpd.storage.queue_log import LogFailed

logger = logging.getLogger(__name__)

SLICE_S: Final = 0.002
_WRITING: Final[int] = 0
_WRITTEN: Final[int] = 1
_SETTLED: Final[int] = 2
_REMOVING: Final[int] = 3
_OVER: Final[int] = 4


class AckedReplay:
    """One replay in one log. The caller adds offsets, calls `begin`, and then `run_slice` until `is_finished`.

    Args:
        when_free: calls a function when the log is not being compacted (`LogMaintenance.when_free`).

    Attributes:
        taken: base of a segment -> offsets to make live; at the end, those that were.
        body_bytes: base of a segment -> size of their bodies.
        count: messages that are live again.
        size_bytes: size of their bodies.
        error: reason of a failure, None after success.
    """

    def __init__(
        self,
        queue_log: LocalLog,
        submit: Callable[[Task], None],
        gather: Callable[[LocalLog], None],
        when_free: Callable[[LocalLog, Callable[[], None]], None],
    ) -> None:
        self.taken: dict[int, AckSet] = {}
        self.body_bytes: dict[int, int] = {}
        self.count = 0
        self.size_bytes = 0
        self.error: Exception | None = None
        self._queue_log = queue_log
        self._submit = submit
        self._gather = gather
        self._when_free = when_free
        self._path = f"{queue_log.log.directory}/{replay_file.NAME}"
        self._step = _WRITING
        self._segment: Segment | None = None  # of the last added offset
        self._segments: dict[int, Segment] = {}  # by their bases, as they were when offsets were added
        # Bases of segments to process; processed segments; segments whose new file has no name yet.
        self._todo: deque[int] = deque()
        self._done: list[Segment] = []
        self._swapping: deque[Segment] = deque()

    def add(self, offset: int, body_size_bytes: int) -> None:
        """Add a settled message that is still in the log. Cost: 0.5 us for ascending offsets."""
        segment = self._segment
        if segment is None or not segment.base <= offset < segment.end:
            segment = self._segment = self._queue_log.log.segment_of(offset)
            if segment is None:
                return  # the message has left the log
            if segment.base not in self.taken:
                self.taken[segment.base] = AckSet(segment.base)
                self.body_bytes[segment.base] = 0
                self._segments[segment.base] = segment
            elif self._segments[segment.base] is not segment:
                return  # compaction has removed it
        self.taken[segment.base].add(offset, offset)
        self.body_bytes[segment.base] += body_size_bytes

    def bases(self) -> list[int]:
        """Return the bases of the affected segments, ascending."""
        return sorted(base for base, offsets in self.taken.items() if offsets.count > 0)

    def ranges_of(self, base: int) -> list[tuple[int, int]]:
        """Return the offsets of one segment as ascending ranges, both ends inclusive."""
        return self.taken[base].ranges()

    @property
    def is_finished(self) -> bool:
        """Return whether the replay has ended, with or without success."""
        return self._step == _OVER

    def begin(self) -> None:
        """Start the replay; nothing is added afterwards. Raises nothing."""
        self._queue_log.log.is_replaying = True
        self._when_free(self._queue_log, self._begin)

    def _begin(self) -> None:
        queue_log = self._queue_log
        self._todo.extend(filter(self._is_unchanged, self.bases()))
        log = queue_log.log
        queue_log.flush_batches()
        try:
            if queue_log.failed or queue_log.deleted:
                raise LogFailed(queue_log.name)
            if not log.begun:
                log.begin()
        except (OSError, LogFailed) as error:
            self._end(error)
            return
        epoch = log.epoch
        taken = {base: self.taken[base] for base in self._todo}
        self._gather(queue_log)
        self._submit(Task(lambda: self._write(taken, epoch), self._after_write))

    def _write(self, taken: dict[int, AckSet], epoch: int) -> None:
        """Write the `rewind` file, in the fsync thread. The loop does not change `taken` meanwhile."""
        data = replay_file.encode_rewind(taken, self.body_bytes, epoch)
        filesystem = self._queue_log.log.filesystem
        filesystem.replace_file(self._path, data, sync=True)
        filesystem.fsync_dir(self._queue_log.log.directory)

    def _after_write(self, error: OSError | None) -> None:
        self._step = _WRITTEN
        if error is not None:
            # The file may exist nevertheless, with or without its name.
            self._remove(error)

    def run_slice(self) -> None:
        """Do the next steps that are possible now, for about 2 ms. Raises nothing."""
        queue_log = self._queue_log
        if self._step not in (_WRITTEN, _SETTLED):
            return
        if queue_log.failed or queue_log.deleted:
            self._end(LogFailed(queue_log.name))  # the next start completes the replay
        elif self._step == _WRITTEN:
            clock = queue_log.context.clock
            began_s = clock.monotonic()
            while self._replay_segment() and clock.monotonic() - began_s <= SLICE_S:
                pass
        else:
            while self._swapping and not (self._swapping[0].swapping and _is_on_disk(self._swapping[0])):
                self._swapping.popleft()
            if not self._swapping:
                self._remove(None)

    def _next(self) -> Segment | None:
        """Return the next segment that is still on the disk."""
        todo = self._todo
        while todo:
            segment = self._queue_log.log.segment_of(todo[0])
            if segment is not None and segment.base == todo[0] and _is_on_disk(segment):
                return segment
            todo.popleft()
        return None

    def _replay_segment(self) -> bool:
        """Process one segment. Return whether there may be more to do now."""
        queue_log = self._queue_log
        log = queue_log.log
        queue_log.write_late()  # else older facts would be written after the new files
        segment = self._next()
        if segment is None:
            self._segments_done()
            return False
        if segment.swapping:
            self._gather(queue_log)
            return False
        if log.ack_file_writer.pending:
            self._undo(log.error or OSError("acknowledgements could not be written"))
            return False
        offsets = self.taken[segment.base]
        before = _size_bytes(segment)
        count = segment.settled.remove_all(offsets)
        segment.settled_body_bytes = max(0, segment.settled_body_bytes - self.body_bytes[segment.base])
        self.count += count
        self._done.append(segment)
        queue_log.on_segments_changed(offsets.highest + 1)
        queue_log.record_count += count
        queue_log.size_bytes += _size_bytes(segment) - before
        # The new file must also say that they were delivered: the entries that said so may have gone with the acks.
        mark = max(log.delivered_mark, offsets.highest)
        if not log.ack_file_writer.rewrite_segment(segment, mark, queue_log.returned):
            self._undo(log.error or OSError("acknowledgements could not be written"))
            return False
        log.delivered_mark = mark
        self._todo.popleft()
        self._gather(queue_log)
        return True

    def _segments_done(self) -> None:
        there = [segment.base for segment in self._done if _is_on_disk(segment)]
        self.taken = {base: self.taken[base] for base in there}
        self.size_bytes = sum(self.body_bytes[base] for base in there)
        self._swapping.extend(self._done)
        self._step = _SETTLED
        self._gather(self._queue_log)

    def _undo(self, error: Exception) -> None:
        """Settle the messages again: the disk has no room."""
        queue_log = self._queue_log
        for segment in self._done:
            if _is_on_disk(segment):
                for first, last in self.taken[segment.base].ranges():
                    queue_log.log.ack(first, last, 0)
                segment.settled_body_bytes += self.body_bytes[segment.base]
        queue_log.recompute_counts()
        self.count = 0
        self._remove(error)

    def _remove(self, why: Exception | None) -> None:
        """Remove the `rewind` file.

        Args:
            why: the error of the replay, None after success.
        """
        self._step = _REMOVING
        self._submit(Task(self._unlink, lambda error: self._after_remove(why, error)))

    def _unlink(self) -> None:
        """Remove the file, in the fsync thread, after the names of the new `.settled` files are synced."""
        log = self._queue_log.log
        log.filesystem.fsync_dir(log.directory)
        log.filesystem.unlink(self._path)
        log.filesystem.fsync_dir(log.directory)

    def _after_remove(self, why: Exception | None, error: OSError | None) -> None:
        if error is not None:
            logger.error(
                "%s: cannot remove the file: %s; after a crash the replayed messages may come back again",
                self._path,
                error,
            )
        self._end(why)

    def _is_unchanged(self, base: int) -> bool:
        """Return whether compaction has not removed settled messages from the segment since they were added."""
        return self._queue_log.log.segment_of(base) is self._segments[base]

    def _end(self, error: Exception | None) -> None:
        self._queue_log.log.is_replaying = False
        self.error = error
        self._step = _OVER


def _is_on_disk(segment: Segment) -> bool:
    return not segment.is_removed and not segment.removing


def _size_bytes(segment: Segment) -> int:
    """Return the size of the live bodies, as a log counts it."""
    return max(0, segment.body_bytes - segment.settled_body_bytes) if segment.live > 0 else 0
