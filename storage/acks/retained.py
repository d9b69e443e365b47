"""What keeps drained segments of a work queue's log for a while: messages that are settled, and can be had again.

A work queue's sealed segment goes when all in it is settled. With retention it goes when, besides, what is settled in
it is older than the log is to keep, or when the segments behind it hold as many bytes of settled messages as it is to
keep. So files go as a whole, a log keeps at least what it is told to, and at most a segment more; `segment_size_bytes`
and `segment_age_ms` see to it that segments are small enough for that. A message is as old as its append (as
retention.py has it for logs that are merely read), whenever it was settled.

Nothing of it is on the disk: who owns the log says so before it is opened, and again after each start. What an export
holds (retained.py) stays whatever is said here, and the other way round.

What keeps drained segments of a log for those who still want to export them.

    export-NAME.offset      one per exporter, in the queue's directory, text, replaced whole:
                            version, offset (all below is exported), byte limit, CRC-32C of what stands before it

A work queue's sealed segment goes when all in it is settled. With a hold it goes when, besides, every exporter has
committed past it, or when the drained segments that are kept are larger than the limit: then the oldest go, what is
lost is logged and counted, and an export finds its offsets missing (`failOnDataLoss`).

A queue declared with `x-export: NAME` has that hold from the start, `amqpctl set_export` sets one on a live queue. The
file is the hold: it is written, and synced, when the hold is set (one that is declared stands in the metadata, and gets
its file with the log's directory), read when the queue is opened, and
an exporter sees by it that what is settled is there on purpose. The broker writes it; an export job does only while no
broker runs. One that is damaged counts as offset 0: too much is kept rather than too little.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from google_crc32c import value as crc32c

from amqpd.storage.filesystem import FileSystem

if TYPE_CHECKING:
    from amqpd.storage.clock_watch import ClockWatch
    from amqpd.storage.log.segment import Segment


SEGMENTS: Final = 8
"""In so many of them stands what is to be kept, about, so that an eighth too much is kept at most."""
SEGMENT_SIZE_BYTES_MIN: Final = 1 << 20
SEGMENT_AGE_MS_MIN: Final = 10_000


class RetainedBytes:
    """What all logs of a data directory keep because of retention: bytes of drained segments' `.log` files."""

    def __init__(self) -> None:
        self.bytes = 0


class AckedRetention:
    """Of one log. Loop thread only.

    max_age_ms, max_bytes: -1 for none; with both, what either lets go. kept_bytes: of drained segments, by their
    `.log`, when one was last looked at.
    """

    def __init__(self, watch: ClockWatch, kept: RetainedBytes) -> None:
        self.max_age_ms = -1
        self.max_bytes = -1
        self.kept_bytes = 0
        self._watch = watch
        self._kept = kept

    @property
    def segment_age_ms(self) -> int:
        """How old the first message of the active segment may get before it is rolled; -1: as old as any log's."""
        return -1 if self.max_age_ms < 0 else max(self.max_age_ms // SEGMENTS, SEGMENT_AGE_MS_MIN)

    def segment_size_bytes(self, usual: int) -> int:
        """At which the active segment is rolled. usual: that of all logs."""
        return usual if self.max_bytes < 0 else min(usual, max(self.max_bytes // SEGMENTS, SEGMENT_SIZE_BYTES_MIN))

    def keeps(self, segments: list[Segment]) -> set[int]:
        """Bases of the drained segments that may not go yet. Cost: a step per segment, when one has been drained."""
        kept = self._wanted(segments)
        size = sum(segment.size for segment in kept)
        self._count(size)
        return {segment.base for segment in kept}

    def lets_go(self, segments: list[Segment]) -> bool:
        """Whether a drained segment has become old enough to go. Cost: a step per segment."""
        drained = sum(1 for segment in segments if _is_drained(segment))
        return drained > 0 and len(self._wanted(segments)) < drained

    def end(self) -> None:
        """The log keeps nothing any more, or is deleted."""
        self._count(0)

    def _count(self, size: int) -> None:
        self._kept.bytes += size - self.kept_bytes
        self.kept_bytes = size

    def _wanted(self, segments: list[Segment]) -> list[Segment]:
        found: list[Segment] = []
        settled_bytes = 0  # in the segments behind
        until_ms = self._watch.agreed_ms() - self.max_age_ms if self.max_age_ms >= 0 else -1
        for segment in reversed(segments):
            if segment.gone or segment.removing:
                continue
            if _is_drained(segment):
                enough = 0 <= self.max_bytes <= settled_bytes
                if not enough and (until_ms < 0 or segment.latest_ms() >= until_ms):
                    found.append(segment)
            count = segment.end - segment.base
            if count > 0:
                settled_bytes += segment.size * (count - segment.live) // count
        return found


def _is_drained(segment: Segment) -> bool:
    return segment.sealed and segment.live == 0 and not segment.gone and not segment.removing


class Retained(NamedTuple):
    """What of a log is settled and still there.

    messages, body_bytes: how many, and their bodies; settlements of the last 50 ms may be missing in the latter.
    first_offset, first_timestamp_ms: of the first message the log has, settled or not, and when it was appended; -1:
    it has none, or nothing tells.
    """

    messages: int
    body_bytes: int
    first_offset: int
    first_timestamp_ms: int


def retained_of(segments: list[Segment], next_offset: int, record_count: int) -> Retained:
    """Of an open log with these segments, which ends before `next_offset`, and of which so many messages are not
    settled. Cost: a step per segment."""
    there = [segment for segment in segments if not segment.gone and segment.end > segment.base]
    if not there:
        return Retained(0, 0, -1, -1)
    offsets = sum(segment.end - segment.base for segment in there) + next_offset - there[-1].end
    body_bytes = sum(segment.settled_body_bytes for segment in there)
    return Retained(max(0, offsets - record_count), body_bytes, there[0].base, there[0].first_timestamp_ms)


def offsets_there(segments: list[Segment], begin: int, begin_ms: int, until: int) -> tuple[int, int]:
    """(the first offset from `begin` on that is still in the log, in a segment with a message of `begin_ms` (since
    1970) or later; how many of begin..until - 1 are not in it any more). Cost: a step per segment.
    """
    first = until
    there = 0
    for segment in segments:
        if segment.gone or segment.removing or segment.end <= begin or segment.base >= until:
            continue
        there += min(segment.end, until) - max(segment.base, begin)
        if first == until and segment.latest_ms() >= begin_ms:
            first = max(segment.base, begin)
    return first, max(0, until - begin - there)


logger = logging.getLogger(__name__)

LIMIT_BYTES: Final = 16 << 30
VERSION: Final = 1
NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
_FILE: Final = re.compile(r"export-(.+)\.offset")


class ExportLosses:
    """What all logs of a data directory have given up unexported, since the start."""

    def __init__(self) -> None:
        self.records = 0
        self.bytes = 0


class ExportHold:
    """The exporters of one log, and what is kept for them. Loop thread only.

    exported: name -> offset below which it has everything. limit_bytes: of drained segments kept, by their `.log`;
    kept_bytes: how much that was when a segment was last looked at.
    """

    def __init__(self, filesystem: FileSystem, directory_chain: list[str], queue: str, losses: ExportLosses) -> None:
        self.exported: dict[str, int] = {}
        self.limit_bytes = LIMIT_BYTES
        self.kept_bytes = 0
        self.losses = losses
        self.declared = ""  # the exporter that the queue's declaration names, which stays
        self._filesystem = filesystem
        self._chain = directory_chain
        self._directory = directory_chain[-1]
        self._queue = queue
        self._given_up = -1  # segments below it go in any case

    def load(self) -> None:
        """Reads the files there are. Cost: one listing of the directory."""
        for name in self._filesystem.listdir(self._directory):
            match = _FILE.fullmatch(name)
            if match is None:
                continue
            offset, limit = _decode(self._filesystem.read_file(f"{self._directory}/{name}"), name)
            self.exported[match[1]] = offset
            if limit and not self.declared:
                self.limit_bytes = limit

    def declare(self, name: str, limit_bytes: int | None) -> None:
        """As `add`, for a queue that is being made or opened: writes nothing yet."""
        self.exported.setdefault(name, 0)
        self.declared = name
        if limit_bytes is not None:
            self.limit_bytes = limit_bytes

    def add(self, name: str, limit_bytes: int | None = None) -> None:
        """Another exporter; its offset stays if it is known. Safe when this returns, also where the log has no
        directory yet: what is settled from now on has to stay. Raises: OSError; then nothing is held.
        """
        before = dict(self.exported), self.limit_bytes
        self.exported.setdefault(name, 0)
        if limit_bytes is not None:
            self.limit_bytes = limit_bytes
        try:
            self._make_directory()
            self.write(sync=True)
        except OSError:
            self.exported, self.limit_bytes = before
            raise

    def _make_directory(self) -> None:
        filesystem = self._filesystem
        for index, path in enumerate(self._chain):
            if (filesystem.mkdir(path) or path not in filesystem.safe_directories) and index > 0:
                filesystem.fsync_dir(self._chain[index - 1])
        filesystem.safe_directories.update(self._chain[:-1])

    def clear(self, name: str) -> bool:
        """Nothing is kept for it any more, also after a power cut. False: it was not known. Raises: OSError."""
        if self.exported.pop(name, None) is None:
            return False
        path = f"{self._directory}/{file_name(name)}"
        if self._filesystem.exists(path):
            self._filesystem.unlink(path)
            self._filesystem.fsync_dir(self._directory)
        return True

    def commit(self, name: str, offset: int) -> bool:
        """All below `offset` is exported. False: no such exporter. Offsets do not go back. Raises: OSError."""
        known = self.exported.get(name)
        if known is None:
            return False
        if offset > known:
            self.exported[name] = offset
            self.write()
        return True

    def write(self, *, sync: bool = False) -> None:
        """The files, if the log has its directory. Without sync: an older offset keeps too much. Raises: OSError."""
        if not self._filesystem.exists(self._directory):
            return
        for name, offset in self.exported.items():
            path = f"{self._directory}/{file_name(name)}"
            self._filesystem.replace_file(path, _encode(offset, self.limit_bytes), sync=sync)
        if sync:
            self._filesystem.fsync_dir(self._directory)

    def keeps(self, segments: list[Segment]) -> set[int]:
        """Bases of the drained segments that may not go yet. Cost: a step per segment, when one has been drained."""
        committed = min(self.exported.values(), default=1 << 62)
        kept = [each for each in self._drained(segments) if each.end > committed and each.base > self._given_up]
        size = sum(each.size for each in kept)
        while size > self.limit_bytes:
            oldest = kept.pop(0)
            size -= oldest.size
            self._given_up = oldest.base
            count = oldest.end - max(oldest.base, committed)
            self.losses.records += count
            self.losses.bytes += oldest.size
            behind = ", ".join(f"'{name}' is at {at}" for name, at in self.exported.items() if at < oldest.end)
            logger.error(
                "queue '%s': offsets %d to %d go unexported: more than %d bytes are kept for exports (%s)",
                self._queue, max(oldest.base, committed), oldest.end - 1, self.limit_bytes, behind,
            )  # fmt: skip
        self.kept_bytes = size
        return {each.base for each in kept}

    @staticmethod
    def _drained(segments: list[Segment]) -> Iterator[Segment]:
        return (each for each in segments if each.sealed and each.live == 0 and not each.gone and not each.removing)


def find_hold(filesystem: FileSystem, directory: str) -> bool:
    """Whether a log's directory has exporters' files to load. Cost: one listing."""
    return any(map(is_hold, filesystem.listdir(directory)))


def is_hold(name: str) -> bool:
    """Whether a file of this name is an exporter's."""
    return _FILE.fullmatch(name) is not None


def file_name(name: str) -> str:
    """Of an exporter's file."""
    return f"export-{name}.offset"


def write_offset(directory: Path, name: str, offset: int) -> None:
    """Commits for an exporter while no broker runs; nothing if the queue keeps nothing for it. Raises: OSError."""
    filesystem = FileSystem()
    path = f"{directory}/{file_name(name)}"
    if not filesystem.exists(path):
        return
    known, limit = _decode(filesystem.read_file(path), file_name(name))
    if offset > known:
        filesystem.replace_file(path, _encode(offset, limit or LIMIT_BYTES), sync=False)


def _encode(offset: int, limit_bytes: int) -> bytes:
    text = f"{VERSION} {offset} {limit_bytes}"
    return f"{text} {crc32c(text.encode())}\n".encode()


def _decode(data: bytes, name: str) -> tuple[int, int]:
    """(offset, limit); 0, 0 where the bytes are damaged."""
    found = decode_hold(data)
    if found is None:
        logger.warning("%s is damaged: everything is kept until its exporter commits again", name)
        return 0, 0
    return found


def decode_hold(data: bytes) -> tuple[int, int] | None:
    """(offset, limit) that an exporter's file tells; None where the bytes are damaged."""
    try:
        text, _, crc = data.decode("ascii").strip().rpartition(" ")
        version, offset, limit = map(int, text.split())
        good = crc32c(text.encode()) == int(crc) and version == VERSION
    except ValueError:
        return None
    return (offset, limit) if good else None
