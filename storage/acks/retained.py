"""Settled segments of a work queue that stay on the disk: retention (`x-retain`) and exports (`x-export`).

Without either, a sealed segment is removed when all its messages are settled.

**Retention** (`AckedRetention`). The segment stays until its messages are older than the maximum age, or the segments
after it contain the maximum of settled bytes. Whole segments are removed, so a log keeps at least what was asked for,
and at most one segment more; `segment_size_bytes` and `segment_age_ms` make segments small enough for that. The age
counts from the append, not from the acknowledgement. Retention is not stored in the log: its owner sets it after each
start, before the log is opened.

**Exports** (`ExportHold`). The segment stays until every exporter has committed past it. If the kept segments exceed
the byte limit, the oldest are removed. The loss is logged and counted, and the export finds its offsets missing
(`failOnDataLoss`).

    export-NAME.offset    one per exporter, in the queue's directory; text, replaced as a whole: version, offset (all
                          below is exported), byte limit, CRC-32C of the text before it

A queue declared with `x-export: NAME` has a hold from the start; `amqpctl set_export` sets one on a live queue. The
hold exists when its file is written and synced. A declared hold is also in the metadata, and gets its file with the
log's directory. The broker reads the files when it opens the queue and writes them; an export job writes one only
while no broker runs. A damaged file counts as offset 0, so that too much is kept rather than too little.

A segment is removed only when both retention and exports permit it.
"""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from google_crc32c import value as crc32c

from amqpd.storage.filesystem import FileSystem

if TYPE_CHECKING:
    from amqpd.storage.clock_watch import ClockWatch
    from amqpd.storage.log.segment import Segment


SEGMENTS: Final = 8
"""Segments per retention limit: at most an eighth more than the limit is kept."""
SEGMENT_SIZE_BYTES_MIN: Final = 1 << 20
SEGMENT_AGE_MS_MIN: Final = 10_000


class RetainedBytes:
    """Bytes of drained `.log` files that retention keeps, in all logs of a data directory."""

    def __init__(self) -> None:
        self.bytes = 0


class AckedRetention:
    """Retention of settled messages in one log. Loop thread only.

    Attributes:
        max_age_ms: -1 for none.
        max_bytes: -1 for none. With both limits, a segment that exceeds one of them is removed.
        kept_bytes: size of the drained `.log` files, at the last look.
    """

    def __init__(self, watch: ClockWatch, kept: RetainedBytes) -> None:
        self.max_age_ms = -1
        self.max_bytes = -1
        self.kept_bytes = 0
        self._watch = watch
        self._total = kept

    @property
    def segment_age_ms(self) -> int:
        """Return the maximum age of the active segment before it is rolled, -1 for the default."""
        return -1 if self.max_age_ms < 0 else max(self.max_age_ms // SEGMENTS, SEGMENT_AGE_MS_MIN)

    def segment_size_bytes(self, usual: int) -> int:
        """Return the size at which the active segment is rolled. `usual` is the default."""
        return usual if self.max_bytes < 0 else min(usual, max(self.max_bytes // SEGMENTS, SEGMENT_SIZE_BYTES_MIN))

    def kept_bases(self, segments: list[Segment]) -> set[int]:
        """Return the bases of drained segments to keep. Cost: a step per segment."""
        kept = self._kept_segments(segments)
        size = sum(segment.size for segment in kept)
        self._set_kept_bytes(size)
        return {segment.base for segment in kept}

    def has_expired(self, segments: list[Segment]) -> bool:
        """Return whether a drained segment has become old enough to be removed. Cost: a step per segment."""
        drained = sum(1 for segment in segments if _is_drained(segment))
        return drained > 0 and len(self._kept_segments(segments)) < drained

    def stop(self) -> None:
        """Stop keeping segments: retention was switched off, or the log is deleted."""
        self._set_kept_bytes(0)

    def _set_kept_bytes(self, size: int) -> None:
        self._total.bytes += size - self.kept_bytes
        self.kept_bytes = size

    def _kept_segments(self, segments: list[Segment]) -> list[Segment]:
        found: list[Segment] = []
        settled_bytes = 0  # in the later segments
        until_ms = self._watch.agreed_ms() - self.max_age_ms if self.max_age_ms >= 0 else -1
        for segment in reversed(segments):
            if segment.is_removed or segment.removing:
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
    return segment.sealed and segment.live == 0 and not segment.is_removed and not segment.removing


class Retained(NamedTuple):
    """Settled messages of a log that are still on the disk.

    Attributes:
        messages: how many.
        body_bytes: size of their bodies, perhaps without acknowledgements of the last 50 ms.
        first_offset: the offset of the first message in the log, settled or not; -1 for none.
        first_timestamp_ms: time of its append, -1 if unknown.
    """

    messages: int
    body_bytes: int
    first_offset: int
    first_timestamp_ms: int


def retained_of(segments: list[Segment], next_offset: int, record_count: int) -> Retained:
    """Return the settled messages of an open log. Cost: a step per segment.

    Args:
        record_count: messages of the log that are not settled.
    """
    there = [segment for segment in segments if not segment.is_removed and segment.end > segment.base]
    if not there:
        return Retained(0, 0, -1, -1)
    offsets = sum(segment.end - segment.base for segment in there) + next_offset - there[-1].end
    body_bytes = sum(segment.settled_body_bytes for segment in there)
    return Retained(max(0, offsets - record_count), body_bytes, there[0].base, there[0].first_timestamp_ms)


def find_replay_start(segments: list[Segment], begin: int, begin_ms: int, until: int) -> tuple[int, int]:
    """Return where a replay of begin..until - 1 starts, and how many of these offsets are no longer in the log.

    It starts with the first offset in a segment that has a message of `begin_ms` (since 1970) or later.

    Cost: a step per segment.
    """
    first = until
    there = 0
    for segment in segments:
        if segment.is_removed or segment.removing or segment.end <= begin or segment.base >= until:
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
    """Records and bytes removed before their export since the start, in all logs of a data directory."""

    def __init__(self) -> None:
        self.records = 0
        self.bytes = 0


class ExportHold:
    """The exporters of one log, and the segments kept for them. Loop thread only.

    Attributes:
        exported: name -> offset; the exporter has all messages below it.
        limit_bytes: maximum size of the kept `.log` files.
        kept_bytes: their size, at the last look.
        declared: the exporter in the queue's declaration, if any.
    """

    def __init__(self, filesystem: FileSystem, directory_chain: list[str], queue: str, losses: ExportLosses) -> None:
        self.exported: dict[str, int] = {}
        self.limit_bytes = LIMIT_BYTES
        self.kept_bytes = 0
        self.losses = losses
        self.declared = ""
        self._filesystem = filesystem
        self._chain = directory_chain
        self._directory = directory_chain[-1]
        self._queue = queue
        self._given_up = -1  # segments up to this base are removed anyway

    def load(self) -> None:
        """Read the exporters' files. Cost: one listing of the directory."""
        for name in self._filesystem.listdir(self._directory):
            match = _FILE.fullmatch(name)
            if match is None:
                continue
            offset, limit = _decode(self._filesystem.read_file(f"{self._directory}/{name}"), name)
            self.exported[match[1]] = offset
            if limit and not self.declared:
                self.limit_bytes = limit

    def declare(self, name: str, limit_bytes: int | None) -> None:
        """Add the exporter of a queue that is being created or opened. Writes no file yet."""
        self.exported.setdefault(name, 0)
        self.declared = name
        if limit_bytes is not None:
            self.limit_bytes = limit_bytes

    def add(self, name: str, limit_bytes: int | None = None) -> None:
        """Add an exporter and sync its file; a known one keeps its offset. Creates the log's directory if necessary.

        Raises: OSError; then nothing is held.
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
        """Remove an exporter and its file, synced. Return False if it is unknown.

        Raises: OSError; then it stays, and the call can be repeated.
        """
        if name not in self.exported:
            return False
        if self._filesystem.exists(self._directory):
            self._filesystem.unlink(f"{self._directory}/{file_name(name)}")
            self._filesystem.fsync_dir(self._directory)
        del self.exported[name]
        return True

    def commit(self, name: str, offset: int) -> bool:
        """Record that all messages below `offset` are exported. A lower offset than before is ignored.

        Return False if the exporter is unknown. Raises: OSError.
        """
        known = self.exported.get(name)
        if known is None:
            return False
        if offset > known:
            self.exported[name] = offset
            self.write()
        return True

    def write(self, *, sync: bool = False) -> None:
        """Write the files if the log has its directory. A lost write (`sync` is False) keeps too much. Raises:
        OSError.
        """
        if not self._filesystem.exists(self._directory):
            return
        for name, offset in self.exported.items():
            path = f"{self._directory}/{file_name(name)}"
            self._filesystem.replace_file(path, _encode(offset, self.limit_bytes), sync=sync)
        if sync:
            self._filesystem.fsync_dir(self._directory)

    def kept_bases(self, segments: list[Segment]) -> set[int]:
        """Return the bases of drained segments to keep. Gives up the oldest ones if they exceed the limit.

        Cost: a step per segment.
        """
        committed = min(self.exported.values(), default=1 << 62)
        kept = [each for each in segments if _is_drained(each) and each.end > committed and each.base > self._given_up]
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
                "queue '%s': offsets %d to %d are removed before their export: "
                "more than %d bytes are kept for exports (%s)",
                self._queue, max(oldest.base, committed), oldest.end - 1, self.limit_bytes, behind,
            )  # fmt: skip
        self.kept_bytes = size
        return {each.base for each in kept}


def find_hold(filesystem: FileSystem, directory: str) -> bool:
    """Return whether a log's directory has exporters' files. Cost: one listing."""
    return any(map(is_hold, filesystem.listdir(directory)))


def is_hold(name: str) -> bool:
    """Return whether this is the name of an exporter's file."""
    return _FILE.fullmatch(name) is not None


def file_name(name: str) -> str:
    """Return the name of the file of an exporter."""
    return f"export-{name}.offset"


def write_offset(directory: Path, name: str, offset: int) -> None:
    """Commit an offset while no broker runs. Does nothing if the exporter has no file in this directory. Raises:
    OSError.
    """
    filesystem = FileSystem()
    path = f"{directory}/{file_name(name)}"
    if not filesystem.exists(path):
        return
    known, limit = _decode(filesystem.read_file(path), file_name(name))
    if offset > known:
        filesystem.replace_file(path, _encode(offset, limit or LIMIT_BYTES), sync=False)
        filesystem.give_to_owner(path)


def _encode(offset: int, limit_bytes: int) -> bytes:
    text = f"{VERSION} {offset} {limit_bytes}"
    return f"{text} {crc32c(text.encode())}\n".encode()


def _decode(data: bytes, name: str) -> tuple[int, int]:
    """Return (offset, limit), or (0, 0) and a log line if the bytes are damaged."""
    found = decode_hold(data)
    if found is None:
        logger.warning("%s is damaged: all segments are kept until its exporter commits again", name)
        return 0, 0
    return found


def decode_hold(data: bytes) -> tuple[int, int] | None:
    """Return (offset, limit) from an exporter's file, None if the bytes are damaged."""
    try:
        text, _, crc = data.decode("ascii").strip().rpartition(" ")
        version, offset, limit = map(int, text.split())
        good = crc32c(text.encode()) == int(crc) and version == VERSION
    except ValueError:
        return None
    return (offset, limit) if good else None
