"""Where logs are read from: the files of a queue, listed and read, and nothing else.

Two kinds: a directory here (a live broker's data directory, or a copy of one), and a broker's admin API (remote.py).
Planning and reading know only what stands here, so both give the same answers. A source is plain data, since Spark
sends it to its workers; descriptors and connections are opened where they are used.

A live directory changes while it is read. Nothing here locks: what is listed may be gone when it is opened, which is a
FileNotFoundError here and a decision in plan.py and read.py.
"""

from __future__ import annotations

import json
import logging
import os
from abc import ABC, abstractmethod
from dataclasses import dataclass, field

logger = logging.getLogger(__name__)

DESCRIPTION = "queue.json"
KNOWN_MAX = 100_000
_known: dict[str, tuple[float, QueueName]] = {}
READ_SIZE = 1 << 20


class SourceError(Exception):
    """The logs cannot be reached at all: no such directory, no such broker, no permission. The text is for people."""


@dataclass(frozen=True, order=True)
class QueueName:
    """A queue to read. id: of this incarnation, so that one deleted and declared again is another queue."""

    vhost: str
    queue: str
    id: str = field(compare=False)
    place: str = field(compare=False)


class LogFiles(ABC):
    """The files of one queue. read_size: bytes to ask for at once when reading on; header_size: when skipping."""

    read_size = READ_SIZE
    header_size = 4096

    @abstractmethod
    def sizes(self) -> dict[str, int]:
        """Name -> bytes of every file there is; empty when the queue has none (yet). Raises: SourceError, OSError."""

    @abstractmethod
    def size(self, name: str) -> int:
        """Bytes of one file, -1 when it is not there. Raises: SourceError, OSError."""

    @abstractmethod
    def pread(self, name: str, size: int, position: int) -> bytes:
        """Up to `size` bytes from there, fewer only at the end. Raises: FileNotFoundError, SourceError, OSError."""

    @abstractmethod
    def close(self) -> None:
        """Gives back what is open."""

    def read(self, name: str) -> bytes:
        """A whole (small) file; empty when it is not there."""
        parts: list[bytes] = []
        position = 0
        try:
            while part := self.pread(name, 1 << 20, position):
                parts.append(part)
                position += len(part)
                if len(part) < 1 << 20:
                    break
        except FileNotFoundError:
            return b""
        return b"".join(parts)


class LogSource(ABC):
    """Where queues are found. Picklable."""

    @property
    def unseen(self) -> str:
        """Why a queue that is there may not be listed; for people."""
        return ""

    @abstractmethod
    def queues(self, vhost: str) -> list[QueueName]:
        """Every durable queue of the vhost that has a log here. Raises: SourceError."""

    @abstractmethod
    def open(self, queue: QueueName) -> LogFiles:
        """Its files; opens nothing yet."""


@dataclass(frozen=True)
class DirectorySource(LogSource):
    """A data directory, or one queue's directory."""

    path: str

    def queues(self, vhost: str) -> list[QueueName]:
        if not os.path.isdir(self.path):
            raise SourceError(f"there is no directory {self.path}")
        if os.path.exists(f"{self.path}/{DESCRIPTION}"):
            places = [self.path]
        else:
            root = f"{self.path}/vhosts"
            if not os.path.isdir(root):
                raise SourceError(f"{self.path} is neither a data directory of amqpd (it has no vhosts/) nor a queue's")
            vhosts = [f"{root}/{each}/queues" for each in _names(root)]
            places = [f"{each}/{name}" for each in vhosts for name in _names(each)]
        found: dict[str, tuple[float, QueueName]] = {}
        for place in places:
            described = _described(place)
            if described is None:
                continue
            made_at, name = described
            if name.vhost != vhost and places != [self.path]:
                continue
            # A deleted queue's directory stands until it is removed, beside that of a new queue of the same name.
            if name.queue not in found or made_at > found[name.queue][0]:
                found[name.queue] = (made_at, name)
        return sorted(name for _, name in found.values())

    def open(self, queue: QueueName) -> LogFiles:
        return _Directory(queue.place)


def _names(path: str) -> list[str]:
    try:
        return sorted(os.listdir(path))
    except (FileNotFoundError, NotADirectoryError):
        return []
    except PermissionError:
        raise SourceError(f"{path} may not be read: run as the broker's user, or read through its url") from None


def _described(place: str) -> tuple[float, QueueName] | None:
    """When the directory was made, and whose it is. Ids are never used twice, so what was read once stays true."""
    known = _known.get(place)
    if known is not None:
        return known
    path = f"{place}/{DESCRIPTION}"
    try:
        with open(path, "rb") as file:
            text = json.loads(file.read())
            made_at = os.fstat(file.fileno()).st_mtime
        found = made_at, QueueName(str(text["vhost"]), str(text["queue"]), str(text["id"]), place)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        logger.warning("%s is passed over: %s", path, error)
        return None
    if len(_known) >= KNOWN_MAX:
        _known.clear()
    _known[place] = found
    return found


class _Directory(LogFiles):
    def __init__(self, path: str) -> None:
        self._path = path
        self._fds: dict[str, int] = {}

    def sizes(self) -> dict[str, int]:
        found: dict[str, int] = {}
        try:
            with os.scandir(self._path) as entries:
                for entry in entries:
                    try:
                        found[entry.name] = entry.stat().st_size
                    except FileNotFoundError:
                        continue  # removed while we looked
        except FileNotFoundError:
            return {}
        return found

    def size(self, name: str) -> int:
        try:
            return os.stat(f"{self._path}/{name}").st_size
        except FileNotFoundError:
            return -1

    def pread(self, name: str, size: int, position: int) -> bytes:
        fd = self._fds.get(name)
        if fd is None:
            fd = self._fds[name] = os.open(f"{self._path}/{name}", os.O_RDONLY | os.O_CLOEXEC)
        return os.pread(fd, size, position)

    def read(self, name: str) -> bytes:
        # By its name anew each time: small files are replaced by others of the same name.
        try:
            with open(f"{self._path}/{name}", "rb") as file:
                return file.read()
        except FileNotFoundError:
            return b""

    def close(self) -> None:
        for fd in self._fds.values():
            os.close(fd)
        self._fds.clear()
