"""Settled messages of a log become live again, where they stand: all of them or none, whatever happens meanwhile.

Four steps, of which the second is the one that counts:

    file       what is to be taken back is written to the file `rewind` (replay_file.py), in the committer's thread
    synced     with its name. From here on a crash ends with all of it live: recovery does what the file says
    settled    the segments know it, and their `.settled` files are written anew (ack_files.py), which takes a job
    gone       those files have their names, synced; then `rewind` goes, synced too

The owner gives nothing of it to anybody before the last step: so nothing in the file can have been settled once more
while it is there. A log that fails on the way is left to the next start, which finds the file and does it.

What has left the log meanwhile is not taken back; `taken` says what is.
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
    """One of them, of one log: what is to be taken back is added, it begins, and `go_on` is called until `over`.

    taken: by base offset of the segment, those that are taken back; at the end, that were. body_bytes: of each
    segment's. count, size_bytes: how many were, and of their bodies. error: why nothing was taken back; None: it was.
    """

    def __init__(self, store: LocalLog, submit: Callable[[Task], None], gather: Callable[[LocalLog], None]) -> None:
        self.taken: dict[int, AckSet] = {}
        self.body_bytes: dict[int, int] = {}
        self.count = 0
        self.size_bytes = 0
        self.error: Exception | None = None
        self._store = store
        self._submit = submit
        self._gather = gather
        self._path = f"{store.log.directory}/{replay_file.NAME}"
        self._step = _WRITING
        self._segment: Segment | None = None  # of what was added last
        # Base offsets of the segments that are still to know it; those that do; whose new file has no name yet.
        self._todo: deque[int] = deque()
        self._done: list[Segment] = []
        self._swapping: deque[Segment] = deque()

    def add(self, offset: int, body_size_bytes: int) -> None:
        """A message that is settled and still in the log. Ascending offsets cost least: 0.5 us."""
        segment = self._segment
        if segment is None or not segment.base <= offset < segment.end:
            segment = self._segment = self._store.log.segment_of(offset)
            if segment is None:
                return  # it has left the log
            if segment.base not in self.taken:
                self.taken[segment.base] = AckSet(segment.base)
                self.body_bytes[segment.base] = 0
        self.taken[segment.base].add(offset, offset)
        self.body_bytes[segment.base] += body_size_bytes

    def bases(self) -> list[int]:
        """Base offsets of the segments of which something is, or was, taken back, ascending."""
        return sorted(base for base, offsets in self.taken.items() if offsets.count > 0)

    def ranges_of(self, base: int) -> list[tuple[int, int]]:
        """Of this segment: ascending, ends included. Cost: a step per range, or per offset where they are many."""
        return self.taken[base].ranges()

    def ranges(self) -> list[tuple[int, int]]:
        """Of all of them."""
        return [each for base in self.bases() for each in self.ranges_of(base)]

    @property
    def over(self) -> bool:
        """Whether it is done, or has come to nothing."""
        return self._step == _OVER

    def begin(self) -> None:
        """Nothing is added any more. Raises nothing."""
        self._todo.extend(self.bases())
        store = self._store
        log = store.log
        store.flush_batches()
        try:
            if store.failed or store.deleted:
                raise LogFailed(store.name)
            if not log.begun:
                log.begin()
        except (OSError, LogFailed) as error:
            self._end(error)
            return
        epoch = log.epoch
        self._gather(store)
        self._submit(Task(lambda: self._write(epoch), self._written))

    def _write(self, epoch: int) -> None:
        """In the committer's thread. What it reads changes no more before this has returned."""
        data = replay_file.encode_rewind(self.taken, self.body_bytes, epoch)
        filesystem = self._store.log.filesystem
        filesystem.replace_file(self._path, data, sync=True)
        filesystem.fsync_dir(self._store.log.directory)

    def _written(self, error: OSError | None) -> None:
        self._step = _WRITTEN
        if error is not None:
            # It may be there all the same, with or without its name.
            self._remove(error)

    def go_on(self) -> None:
        """Does what can be done now. Raises nothing."""
        store = self._store
        if self._step not in (_WRITTEN, _SETTLED):
            return
        if store.failed or store.deleted:
            self._end(LogFailed(store.name))  # the next start does it
        elif self._step == _WRITTEN:
            clock = store.context.clock
            began_s = clock.monotonic()
            while self._take_back() and clock.monotonic() - began_s <= SLICE_S:
                pass
        else:
            while self._swapping and not (self._swapping[0].swapping and _is_there(self._swapping[0])):
                self._swapping.popleft()
            if not self._swapping:
                self._remove(None)

    def _next(self) -> Segment | None:
        """The next that is still there."""
        todo = self._todo
        while todo:
            segment = self._store.log.segment_of(todo[0])
            if segment is not None and segment.base == todo[0] and _is_there(segment):
                return segment
            todo.popleft()
        return None

    def _take_back(self) -> bool:
        """One segment after the other: what has come back of some is nobody's yet. Whether there may be more to do."""
        store = self._store
        log = store.log
        store.write_late()  # nothing may be told behind the new files that was true before
        segment = self._next()
        if segment is None:
            self._taken_back()
            return False
        if segment.swapping:
            self._gather(store)
            return False
        if log.settled_files.pending:
            self._undo(log.error or OSError("what was settled could not be written"))
            return False
        offsets = self.taken[segment.base]
        before = _size_bytes(segment)
        count = segment.settled.take_out(offsets)
        segment.settled_body_bytes = max(0, segment.settled_body_bytes - self.body_bytes[segment.base])
        self.count += count
        self._done.append(segment)
        store.changed_beneath(offsets.highest + 1)
        store.record_count += count
        store.size_bytes += _size_bytes(segment) - before
        # The new file says as well that all of it was delivered once: what said so of each may have gone with its ack.
        mark = max(log.delivered_mark, offsets.highest)
        if not log.settled_files.rewrite_now(segment, mark, store.returned):
            self._undo(log.error or OSError("the settlements could not be written"))
            return False
        log.delivered_mark = mark
        self._todo.popleft()
        self._gather(store)
        return True

    def _taken_back(self) -> None:
        there = [segment.base for segment in self._done if _is_there(segment)]
        self.taken = {base: self.taken[base] for base in there}
        self.size_bytes = sum(self.body_bytes[base] for base in there)
        self._swapping.extend(self._done)
        self._step = _SETTLED
        self._gather(self._store)

    def _undo(self, error: Exception) -> None:
        """No room: as if nothing had been asked."""
        store = self._store
        for segment in self._done:
            if _is_there(segment):
                for first, last in self.taken[segment.base].ranges():
                    store.log.settle(first, last, 0)
                segment.settled_body_bytes += self.body_bytes[segment.base]
        store.recount()
        self.count = 0
        self._remove(error)

    def _remove(self, why: Exception | None) -> None:
        """The file goes. why: what has come in between; None: all is done."""
        self._step = _REMOVING
        self._submit(Task(self._unlink, lambda error: self._removed(why, error)))

    def _unlink(self) -> None:
        """In the committer's thread. The names of the new files are on the medium before it goes."""
        log = self._store.log
        log.filesystem.fsync_dir(log.directory)
        log.filesystem.unlink(self._path)
        log.filesystem.fsync_dir(log.directory)

    def _removed(self, why: Exception | None, error: OSError | None) -> None:
        if error is not None:
            logger.error("%s: %s; after a crash what was rewound may come back once more", self._path, error)
        self._end(why)

    def _end(self, error: Exception | None) -> None:
        self.error = error
        self._step = _OVER


def _is_there(segment: Segment) -> bool:
    return not segment.gone and not segment.removing


def _size_bytes(segment: Segment) -> int:
    """Of the bodies that are live, as a log counts them."""
    return max(0, segment.body_bytes - segment.settled_body_bytes) if segment.live > 0 else 0
