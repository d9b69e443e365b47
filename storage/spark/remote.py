"""The files of a queue over HTTP, from a broker's admin API: for executors that share no disk with it.

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
from base64 import b64encode
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote, unquote, urlsplit

from amqpd.client_tls import BadTlsFiles, client_context
from amqpd.storage.spark.files import LogFiles, LogSource, QueueName, SourceError

if TYPE_CHECKING:
    import ssl

READ_SIZE = 8 << 20
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
    def unseen(self) -> str:
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
    read_size = READ_SIZE
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
