"""Where logs are read from: the files of a queue, listed and read, and nothing else.

Two kinds: a directory here (a live broker's data directory, or a copy of one), and a broker's admin API (files.py).
Planning and reading know only what stands here, so both give the same answers. A source is plain data, since Spark
sends it to its workers; descriptors and connections are opened where they are used.

A live directory changes while it is read. Nothing here locks: what is listed may be gone when it is opened, which is a
FileNotFoundError here and a decision in plan.py and arrow.py.

The files of a queue over HTTP, from a broker's admin API: for executors that share no disk with it.

    GET /api/amqpd/logs/{vhost}                    the queues the caller may read
    GET /api/amqpd/logs/{vhost}/{queue}            the files and their sizes
    GET /api/amqpd/logs/{vhost}/{queue}/{file}     bytes of one, by ranges

The caller needs a management tag and the read permission on the queue. Names, permissions and files are the broker's
to check; here is one kept-alive connection for each reader, and errors as words. A range that comes back short is
asked for again from where it stopped; a connection that was closed between two requests is made anew once.
"""

from __future__ import annotations

import http.client
import json
import logging
import os
from abc import ABC, abstractmethod
from base64 import b64encode
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote, unquote, urlsplit

from amqpd.client_tls import BadTlsFiles, client_context

if TYPE_CHECKING:
    import ssl


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
    def unlisted(self) -> str:
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


REMOTE_READ_SIZE = 8 << 20
TIMEOUT_S = 60.0
_RETRIED = (http.client.RemoteDisconnected, BrokenPipeError, ConnectionResetError, http.client.IncompleteRead)


class TlsFiles(NamedTuple):
    """PEM files of whoever reads over https, where they are on each executor; each may be empty.

    ca: instead of the machine's own authorities. certificate: to show, a login where no user is named. key: where it is
    not in the certificate's file.
    """

    ca: str = ""
    certificate: str = ""
    key: str = ""

    def context(self) -> ssl.SSLContext:
        """Raises: SourceError."""
        try:
            return client_context(*self)
        except BadTlsFiles as error:
            raise SourceError(f"TLS: {error}") from error


NO_FILES = TlsFiles()


@dataclass(frozen=True)
class BrokerSource(LogSource):
    """A broker's admin API. url: http://host:port, https too. user, password: as for the management API.

    user: empty where the certificate of `tls` is the login.
    """

    url: str
    user: str
    password: str = field(repr=False)
    tls: TlsFiles = NO_FILES

    @staticmethod
    def from_url(url: str, user: str = "", password: str = "", tls: TlsFiles = NO_FILES) -> BrokerSource:
        """From http://user:password@host:port; what is given besides counts more. Raises: SourceError.

        Without a user that is the certificate's, or guest.
        """
        parts = urlsplit(url)
        try:
            port = parts.port
        except ValueError:
            raise SourceError(f"url: {url!r} has no port that is a number") from None
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.path not in ("", "/"):
            raise SourceError("url: expected http://user:password@host:15672, or https://...:15671")
        if parts.scheme == "http" and any(tls):
            raise SourceError("url: files of TLS go with https://")
        guest = "" if tls.certificate else "guest"
        host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
        return BrokerSource(
            f"{parts.scheme}://{host}:{port or (15671 if parts.scheme == 'https' else 15672)}",
            user or unquote(parts.username or guest),
            password or unquote(parts.password or guest),
            tls,
        )

    def connection(self, timeout_s: float) -> http.client.HTTPConnection:
        """One that has not connected yet. Raises: SourceError."""
        parts = urlsplit(self.url)
        host, port = parts.hostname or "", parts.port
        if parts.scheme == "https":
            return http.client.HTTPSConnection(host, port, timeout=timeout_s, context=self.tls.context())
        return http.client.HTTPConnection(host, port, timeout=timeout_s)

    def credentials(self) -> dict[str, str]:
        """The header of a request; none where the certificate says who asks."""
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
            found = client.json(f"/api/amqpd/logs/{quote(vhost, safe='')}")
            return sorted(QueueName(vhost, str(each["queue"]), str(each["id"]), "") for each in found)
        finally:
            client.close()

    def open(self, queue: QueueName) -> LogFiles:
        return _Remote(self, queue)


class _Remote(LogFiles):
    read_size = REMOTE_READ_SIZE
    header_size = 1 << 20

    def __init__(self, source: BrokerSource, queue: QueueName) -> None:
        self._client = _Client(source)
        self._path = f"/api/amqpd/logs/{quote(queue.vhost, safe='')}/{quote(queue.queue, safe='')}"
        self._id = queue.id

    def sizes(self) -> dict[str, int]:
        answer = self._client.json(self._path)
        if answer["id"] != self._id:
            raise SourceError("the queue was deleted and declared again while it was being read")
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
        """(bytes, size of the whole file). Raises: FileNotFoundError, SourceError."""
        headers = {"Range": f"bytes={position}-{position + size - 1}", "If-Match": f'"{self._id}"'}
        status, data, span = self._client.request(f"{self._path}/{name}", headers)
        if status == 404:
            raise FileNotFoundError(name)
        if status == 416:
            return b"", 0
        if status == 412:
            raise SourceError("the queue was deleted and declared again while it was being read")
        if status != 206:
            raise SourceError(f"{self._client.url}: {name}: {_reason(status, data)}")
        return data, int(span.rpartition("/")[2])

    def close(self) -> None:
        self._client.close()


class _Client:
    def __init__(self, source: BrokerSource) -> None:
        self.url = source.url
        self._source = source
        self._headers = source.credentials()
        self._connection: http.client.HTTPConnection | None = None

    def json(self, path: str) -> Any:
        status, data, _ = self.request(path, {})
        if status != 200:
            raise SourceError(f"{self.url}{path}: {_reason(status, data)}")
        return json.loads(data)

    def request(self, path: str, headers: dict[str, str]) -> tuple[int, bytes, str]:
        """(status, body, Content-Range). Raises: SourceError."""
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
                raise SourceError(f"the broker at {self.url} does not answer: {what}") from error
            if answer.status == 401:
                raise SourceError(f"{self.url}: {self._source.shown_user} may not: {_reason(answer.status, data)}")
            return answer.status, data, answer.getheader("Content-Range", "")
        raise AssertionError("unreachable")

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


def _reason(status: int, data: bytes) -> str:
    try:
        return f"{status} {json.loads(data)['reason']}"
    except (ValueError, KeyError, TypeError):
        return str(status)
