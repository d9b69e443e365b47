"""What keeps drained segments of a log for those who still want to export them.

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
from typing import TYPE_CHECKING, Final

from google_crc32c import value as crc32c

from amqpd.storage.filesystem import FileSystem

if TYPE_CHECKING:
    from amqpd.storage.log.segment import Segment

logger = logging.getLogger(__name__)

LIMIT_BYTES: Final = 16 << 30
VERSION: Final = 1
NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
_FILE: Final = re.compile(r"export-(.+)\.offset")


class Losses:
    """What all logs of a data directory have given up unexported, since the start."""

    def __init__(self) -> None:
        self.records = 0
        self.bytes = 0


class Hold:
    """The exporters of one log, and what is kept for them. Loop thread only.

    exported: name -> offset below which it has everything. limit_bytes: of drained segments kept, by their `.log`;
    kept_bytes: how much that was when a segment was last looked at.
    """

    def __init__(self, filesystem: FileSystem, directory_chain: list[str], queue: str, losses: Losses) -> None:
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
