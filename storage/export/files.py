"""Access to the files of queues: a directory, or a broker's admin API over HTTP.

Planning and reading use only `LogFiles`, so both ways give the same rows. A source is plain data, because Spark
sends it to workers; descriptors and connections are opened where they are used.

A directory: a running broker's data directory, or a copy of one. It changes while it is read, and nothing is
locked. A listed file may be gone when it is opened, which is a FileNotFoundError; plan.py and arrow.py decide about
it.

HTTP, for executors that do not share the broker's disk:

    GET /api/amqpd/logs/{vhost}                    the queues that the user may read
    GET /api/amqpd/logs/{vhost}/{queue}            the files and their sizes
    GET /api/amqpd/logs/{vhost}/{queue}/{file}     a range of bytes of a file

Ranges of records may be compressed on their way (`compression=zstd`); an older broker sends them as they are.

The user needs a management tag and the read permission on the queue; the broker checks names and permissions. Each
reader has one persistent connection. A range that arrives incomplete is continued with another request. A
connection that was closed between two requests is opened again once.
"""

from __future__ import annotations

import http.client
import json
import logging
import os
from abc import ABC, abstractmethod
from base64 import b64encode
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from urllib.parse import quote, unquote, urlsplit

from amqpd.client_tls import BadTlsFiles, client_context
from amqpd.storage.acks.segment_removal import DELETED

if TYPE_CHECKING:
    import ssl


logger = logging.getLogger(__name__)

DESCRIPTION = "queue.json"
KNOWN_MAX = 100_000
_descriptions: dict[str, tuple[float, QueueName]] = {}
READ_SIZE = 1 << 20


class SourceError(Exception):
    """The logs cannot be reached: no such directory, no such broker, no permission. The text is for people."""


class BrokerUnreachable(SourceError):
    """The broker does not answer, or not yet: it is being restarted, or the network is down."""


class MissingQueue(SourceError):
    """The queue was deleted, or deleted and declared again, since it was listed."""


@dataclass(frozen=True, order=True)
class QueueName:
    """A queue to read.

    Attributes:
        id: Id of this incarnation: a queue that was deleted and declared again has another one.
        place: Its directory; "" over HTTP.
    """

    vhost: str
    queue: str
    id: str = field(compare=False)
    place: str = field(compare=False)


class LogFiles(ABC):
    """The files of one queue. Methods raise SourceError and OSError.

    Attributes:
        read_size: Bytes to request at once when reading.
        header_size: Bytes to request at once when reading only batch headers.
    """

    read_size = READ_SIZE
    header_size = 4096

    @abstractmethod
    def sizes(self) -> dict[str, int]:
        """Return the size of every file by name; empty if the queue has none (yet). Raises MissingQueue."""

    @abstractmethod
    def size(self, name: str) -> int:
        """Return the size of one file; -1 if it does not exist."""

    @abstractmethod
    def pread(self, name: str, size: int, position: int) -> bytes:
        """Return `size` bytes, or fewer at the end of the file. Raises FileNotFoundError."""

    @abstractmethod
    def close(self) -> None:
        """Close open files or connections. They are opened again when they are needed."""

    def read(self, name: str) -> bytes:
        """Return a whole (small) file; empty if it does not exist."""
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
    """A place with queues. Picklable."""

    @property
    def unlisted(self) -> str:
        """Return why an existing queue may be missing in the list, for people."""
        return ""

    @abstractmethod
    def queues(self, vhost: str) -> list[QueueName]:
        """Return every durable queue of the vhost that has a log here. Raises SourceError."""

    @abstractmethod
    def open(self, queue: QueueName) -> LogFiles:
        """Return the queue's files. Opens nothing yet."""


@dataclass(frozen=True)
class DirectorySource(LogSource):
    """A data directory, or the directory of one queue."""

    path: str

    def queues(self, vhost: str) -> list[QueueName]:
        if not os.path.isdir(self.path):
            raise SourceError(f"directory {self.path} does not exist")
        if os.path.exists(f"{self.path}/{DESCRIPTION}"):
            places = [self.path]
        else:
            if os.path.exists(f"{self.path}/cluster-node.pem"):
                raise SourceError(f"{self.path} belongs to a node of a cluster: its queues are in Kafka")
            root = f"{self.path}/vhosts"
            if not os.path.isdir(root):
                raise SourceError(
                    f"{self.path} is no data directory of amqpd (no vhosts/ in it) and no queue's directory"
                )
            vhosts = [f"{root}/{each}/queues" for each in _names(root)]
            places = [f"{each}/{name}" for each in vhosts for name in _names(each)]
        found: dict[str, tuple[float, QueueName]] = {}
        for place in places:
            described = _read_description(place)
            if described is None:
                continue
            made_at, name = described
            if name.vhost != vhost and places != [self.path]:
                continue
            # The directory of a deleted queue may still exist beside that of a new queue with the same name.
            if name.queue not in found or made_at > found[name.queue][0]:
                found[name.queue] = (made_at, name)
        return sorted(name for _, name in found.values())

    def open(self, queue: QueueName) -> LogFiles:
        return _Directory(queue.place)


def _names(path: str) -> list[str]:
    """Return the names in a directory, without those of deleted queues and vhosts, whose files are being removed."""
    try:
        return sorted(name for name in os.listdir(path) if not name.endswith(DELETED))
    except (FileNotFoundError, NotADirectoryError):
        return []
    except PermissionError:
        raise SourceError(
            f"{path} is not readable: run as the broker's user, or read through the broker's url"
        ) from None


def _read_description(place: str) -> tuple[float, QueueName] | None:
    """Return the creation time of a queue's directory, and its queue. The result is cached: ids are never used
    twice.
    """
    known = _descriptions.get(place)
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
        logger.warning("%s is ignored: %s", path, error)
        return None
    if len(_descriptions) >= KNOWN_MAX:
        _descriptions.clear()
    _descriptions[place] = found
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
                        continue  # removed while listing
            os.stat(self._path)  # a deleted queue's directory is renamed before its files are removed
        except FileNotFoundError:
            raise MissingQueue(f"{self._path} does not exist any more: the queue was deleted") from None
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
        # Open it by name each time: small files are replaced by new ones with the same name.
        try:
            with open(f"{self._path}/{name}", "rb") as file:
                return file.read()
        except FileNotFoundError:
            return b""

    def close(self) -> None:
        for fd in self._fds.values():
            os.close(fd)
        self._fds.clear()


REMOTE_READ_SIZE = 8 << 20
TIMEOUT_S = 60.0
_NOT_OURS = "the answer is not that of amqpd"
_T = TypeVar("_T")
_RETRIED = (http.client.RemoteDisconnected, BrokenPipeError, ConnectionResetError, http.client.IncompleteRead)


class TlsFiles(NamedTuple):
    """PEM files for https, with paths on each executor. Each may be empty.

    Attributes:
        ca: Authorities to trust instead of the machine's.
        certificate: Client certificate; it is the login if no user is given.
        key: Its key, if it is not in the certificate's file.
    """

    ca: str = ""
    certificate: str = ""
    key: str = ""

    def context(self) -> ssl.SSLContext:
        try:
            return client_context(*self)
        except BadTlsFiles as error:
            raise SourceError(f"TLS: {error}") from error


NO_FILES = TlsFiles()


@dataclass(frozen=True)
class BrokerSource(LogSource):
    """A broker's admin API.

    Attributes:
        url: http://host:port or https://host:port.
        user: User of the management API; empty if the certificate in `tls` is the login.
        compresses: The broker compresses records for the network.
    """

    url: str
    user: str
    password: str = field(repr=False)
    tls: TlsFiles = NO_FILES
    compresses: bool = False

    @staticmethod
    def from_url(
        url: str, user: str = "", password: str = "", tls: TlsFiles = NO_FILES, *, compresses: bool = False
    ) -> BrokerSource:
        """Return the source for http://user:password@host:port. The other arguments override the URL.

        Without a user, the certificate or the user guest is the login. Raises SourceError.
        """
        parts = urlsplit(url)
        try:
            port = parts.port
        except ValueError:  # its text may have a part of the password
            port = -1
        is_whole = parts.path in ("", "/") and not parts.query and not parts.fragment
        if parts.scheme not in ("http", "https") or not parts.hostname or not is_whole or port == -1:
            raise SourceError("url: expected http://user:password@host:15672, or https://...:15671")
        if parts.scheme == "http" and any(tls):
            raise SourceError("url: TLS files need https://")
        guest = "" if tls.certificate else "guest"
        host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
        return BrokerSource(
            f"{parts.scheme}://{host}:{port or (15671 if parts.scheme == 'https' else 15672)}",
            user or unquote(parts.username or guest),
            password or unquote(parts.password or guest),
            tls,
            compresses,
        )

    def connection(self, timeout_s: float) -> http.client.HTTPConnection:
        """Return a connection that is not connected yet. Raises SourceError."""
        parts = urlsplit(self.url)
        host, port = parts.hostname or "", parts.port
        if parts.scheme == "https":
            return http.client.HTTPSConnection(host, port, timeout=timeout_s, context=self.tls.context())
        return http.client.HTTPConnection(host, port, timeout=timeout_s)

    def credentials(self) -> dict[str, str]:
        """Return the header with the login; empty if the certificate is the login."""
        if not self.user:
            return {}
        token = b64encode(f"{self.user}:{self.password}".encode()).decode()
        return {"Authorization": f"Basic {token}"}

    @property
    def unlisted(self) -> str:
        return f", or {self.shown_user} may not read it"

    @property
    def shown_user(self) -> str:
        return f"user '{self.user}'" if self.user else "the certificate's user"

    def queues(self, vhost: str) -> list[QueueName]:
        client = _Client(self)
        try:
            return client.json(
                f"/api/amqpd/logs/{quote(vhost, safe='')}",
                lambda found: sorted(QueueName(vhost, str(each["queue"]), str(each["id"]), "") for each in found),
            )
        finally:
            client.close()

    def open(self, queue: QueueName) -> LogFiles:
        return _Remote(self, queue)


class _Remote(LogFiles):
    read_size = REMOTE_READ_SIZE
    header_size = 1 << 20

    def __init__(self, source: BrokerSource, queue: QueueName) -> None:
        self._client = _Client(source)
        self._source = source
        self._queue = queue
        self._path = f"/api/amqpd/logs/{quote(queue.vhost, safe='')}/{quote(queue.queue, safe='')}"
        self._id = queue.id
        self._compresses = source.compresses

    def sizes(self) -> dict[str, int]:
        try:
            return self._client.json(self._path, self._sizes, error=MissingQueue)
        except MissingQueue as error:
            if self._queue in self._source.queues(self._queue.vhost):
                raise SourceError(str(error)) from None  # its log is elsewhere: in a cluster, Kafka has it
            raise

    def _sizes(self, answer: Any) -> dict[str, int]:
        if answer["id"] != self._id:
            raise MissingQueue("the queue was deleted and declared again while it was being read")
        return {str(each["name"]): int(each["size"]) for each in answer["files"]}

    def size(self, name: str) -> int:
        try:
            return self._range(name, 1, 0)[1]
        except FileNotFoundError:
            return -1

    def pread(self, name: str, size: int, position: int) -> bytes:
        data, total = self._range(name, size, position)
        while data and len(data) < size and position + len(data) < total:
            more, total = self._range(name, size - len(data), position + len(data))
            if not more:
                break
            data += more
        return data

    def _range(self, name: str, size: int, position: int) -> tuple[bytes, int]:
        """Return (bytes, size of the whole file). Raises FileNotFoundError, SourceError."""
        headers = {"Range": f"bytes={position}-{position + size - 1}", "If-Match": f'"{self._id}"'}
        query = "?compression=zstd" if self._compresses and ".log" in name else ""
        status, data, span = self._client.request(f"{self._path}/{name}{query}", headers)
        if status == 404:
            raise FileNotFoundError(name)
        if status == 416:
            return b"", 0
        if status == 412:
            raise MissingQueue("the queue was deleted and declared again while it was being read")
        if status != 206:
            raise SourceError(f"{self._client.url}: {name}: {_reason(status, data)}")
        total = span.rpartition("/")[2]
        if not total.isdecimal():
            raise SourceError(f"{self._client.url}: {name}: {_NOT_OURS}")
        return data, int(total)

    def close(self) -> None:
        self._client.close()


class _Client:
    def __init__(self, source: BrokerSource) -> None:
        self.url = source.url
        self._source = source
        self._headers = source.credentials()
        self._connection: http.client.HTTPConnection | None = None

    def json(self, path: str, read: Callable[[Any], _T], error: type[SourceError] = SourceError) -> _T:
        """Return what `read` makes of the answer. Raises SourceError, BrokerUnreachable.

        Args:
            error: Raised if the broker does not know the path.
        """
        status, data, _ = self.request(path, {})
        if status != 200:
            raise (error if status == 404 else SourceError)(f"{self.url}{path}: {_reason(status, data)}")
        try:
            return read(json.loads(data))
        except (ValueError, KeyError, TypeError):
            raise SourceError(f"{self.url}{path}: {_NOT_OURS}") from None

    def request(self, path: str, headers: dict[str, str]) -> tuple[int, bytes, str]:
        """Return (status, body, Content-Range). Raises SourceError, BrokerUnreachable."""
        for attempt in (0, 1):
            connection = self._connection or self._source.connection(TIMEOUT_S)
            self._connection = connection
            try:
                connection.request("GET", path, headers={**self._headers, **headers})
                answer = connection.getresponse()
                data = answer.read()
            except (OSError, http.client.HTTPException) as error:
                self.close()
                if attempt == 0 and isinstance(error, _RETRIED):
                    continue
                what = str(error) or type(error).__name__
                raise BrokerUnreachable(f"the broker at {self.url} does not answer: {what}") from error
            if answer.status == 401:
                raise SourceError(
                    f"{self.url}: {self._source.shown_user} is not allowed: {_reason(answer.status, data)}"
                )
            if answer.status == 503:
                raise BrokerUnreachable(f"{self.url}{path}: {_reason(answer.status, data)}")
            span = answer.getheader("Content-Range", "")
            if answer.getheader("Content-Type", "").startswith("application/zstd"):
                data = self._unpacked(data, span)
            return answer.status, data, span
        raise AssertionError("unreachable")

    def _unpacked(self, data: bytes, span: str) -> bytes:
        """Return a range that was compressed. Raises SourceError."""
        import cramjam

        first, _, last = span.removeprefix("bytes ").partition("/")[0].partition("-")
        if not first.isdigit() or not last.isdigit():
            raise SourceError(f"{self.url}: a compressed range has no place in its file: Content-Range is {span!r}")
        found = bytearray(int(last) - int(first) + 1)
        try:
            size = cramjam.zstd.decompress_into(data, found)
        except cramjam.DecompressionError as error:
            raise SourceError(f"{self.url}: a compressed range is damaged: {error}") from error
        if size != len(found):
            raise SourceError(f"{self.url}: a compressed range has {size} bytes in place of {len(found)}")
        return bytes(found)

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


def _reason(status: int, data: bytes) -> str:
    try:
        found = json.loads(data)
        return f"{status} {found['detail' if 'detail' in found else 'reason']}"
    except (ValueError, KeyError, TypeError):
        return str(status)
