"""A client of the admin API: one HTTP connection, over the unix socket in the data directory or over TCP.

The socket needs no password: its mode is 0600, and the broker checks the peer's uid. Over TCP the URI has the
credentials; over TLS a certificate can be the login. http.client is imported at the first request, because `help`
and `version` need none: it costs 30 ms, a third of a short command. ssl is imported for https only.

TLS options, for `--uri https://...`; the command line comes before the environment:

    --tls-ca-cert-file FILE     AMQPCTL_TLS_CA_CERT_FILE     authorities to trust, instead of the machine's
    --tls-cert-file FILE        AMQPCTL_TLS_CERT_FILE        client certificate; a login if the broker accepts it as one
    --tls-key-file FILE         AMQPCTL_TLS_KEY_FILE         its private key, if it is in another file
    --insecure                                               no check of the broker's certificate, with a warning
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from amqpd.cli.errors import (
    NO_PERMISSION,
    SOFTWARE,
    TIMED_OUT,
    UNAVAILABLE,
    USAGE,
    ApiRefused,
    AppRuns,
    AppStopped,
    Failure,
    UsageError,
)
from amqpd.client_tls import BadTlsFiles, client_context

if TYPE_CHECKING:
    import ssl
    from http.client import HTTPConnection

    from amqpd.cli.options import CommandLine


OPTIONS: Final = ("tls-ca-cert-file", "tls-cert-file", "tls-key-file")
INSECURE: Final = "insecure"
WARNING: Final = (
    "Warning: --insecure: the broker's certificate is not checked. Another machine can read the password and answer "
    "in its place.\n"
)


class Tls(NamedTuple):
    """Paths of PEM files, each may be empty. `insecure`: the broker's certificate is not checked."""

    ca: str = ""
    certificate: str = ""
    key: str = ""
    insecure: bool = False

    def context(self) -> ssl.SSLContext:
        """Return an SSL context. Raises: UsageError if a file cannot be used."""
        try:
            context = client_context(self.ca, self.certificate, self.key)
        except BadTlsFiles as error:
            raise UsageError(f"TLS: {error}") from None
        if self.insecure:
            import ssl

            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context


def tls_of(line: CommandLine, environment: Mapping[str, str], uri: str) -> Tls:
    """Return the TLS options for an https URI, from the command line or the environment. Raises: UsageError."""
    secure = uri.lower().startswith("https://")
    given = [name for name in (*OPTIONS, INSECURE) if name in line.given]
    if not secure:
        if given:
            raise UsageError(f"--{given[0]} goes with --uri https://HOST:15671")
        return Tls()
    files = [
        line.given.get(name) or environment.get("AMQPCTL_" + name.replace("-", "_").upper(), "") for name in OPTIONS
    ]
    ca, certificate, key = files
    if key and not certificate:
        raise UsageError("--tls-key-file goes with --tls-cert-file")
    return Tls(ca, certificate, key, INSECURE in line.given)


SOCKET_NAME: Final = "amqpctl.sock"
# While AMQP is stopped, the broker refuses a request with this header with 503 before it does anything.
NEEDS_APP: Final = "Amqpd-Needs-App"
# Header of an answer: nodes of a cluster whose part is missing in it.
MISSING: Final = "Amqpd-Missing-Nodes"
_PATH_SIZE_BYTES_MAX: Final = 107  # sun_path without its final zero


class ApiAnswer(NamedTuple):
    """An answer of the broker. `data` is the decoded JSON, None without a body."""

    status: int
    data: Any

    @property
    def ok(self) -> bool:
        return 200 <= self.status < 300

    @property
    def reason(self) -> str:
        """Return the broker's text about a refusal."""
        if isinstance(self.data, dict):
            for name in ("detail", "reason", "error"):
                if self.data.get(name):
                    return str(self.data[name])
        return f"the broker answered HTTP {self.status}"

    def failure(self) -> Failure:
        return Failure(SOFTWARE if self.status >= 500 else UNAVAILABLE, self.reason)

    def checked(self, missing: Failure | None = None) -> ApiAnswer:
        """Return self if the status is 2xx. Raises: `missing` for 404, if given; else Failure."""
        if self.ok:
            return self
        raise missing if missing is not None and self.status == 404 else self.failure()

    def accepted(self) -> ApiAnswer:
        """As `checked`, but a request that cannot be done (400) is exit code 64."""
        if self.status == 400:
            raise Failure(USAGE, self.reason)
        return self.checked()


class ApiClient:
    """A connection to one broker.

    Attributes:
        uri: the admin API's URI; empty: the unix socket in `data_dir`
        data_dir: the broker's data directory; empty: `uri`
        node: the broker's name in messages
        timeout_s: maximum silence of the broker; None: no limit
        otherwise: URI to try if there is no socket; empty: none
        tls: for `https`; may be replaced before the first request
        missing: nodes of the cluster that did not answer, so that lists lack their part
    """

    def __init__(self, uri: str, data_dir: str, node: str, timeout_s: float | None, needs_app: bool = True) -> None:
        self.uri = uri
        self.data_dir = data_dir
        self.node = node
        self.timeout_s = timeout_s
        self.otherwise = ""
        self.tls = Tls()
        self.missing: set[str] = set()
        self._connection: HTTPConnection | None = None
        self._headers: dict[str, str] = {NEEDS_APP: "true"} if needs_app else {}
        self._prefix = ""

    @property
    def is_local(self) -> bool:
        return not self.uri

    @property
    def host(self) -> str:
        """Return the broker's host as in the URI; empty: this machine."""
        if not self.uri:
            return ""
        from urllib.parse import urlsplit

        return urlsplit(self.uri).hostname or ""

    @property
    def address(self) -> str:
        """Return the socket's path or the URI without its password."""
        if not self.uri:
            return os.path.join(self.data_dir, SOCKET_NAME)  # noqa: PTH118 - pathlib is 3 ms of start-up
        scheme, separator, rest = self.uri.partition("://")
        if not scheme.isalpha() or not separator:  # no scheme, but the begin of a name and a password
            return self.uri.rpartition("@")[2]
        return f"{scheme}://{rest.rpartition('@')[2]}"

    def get(self, path: str) -> Any:
        """Return the JSON at a path. Raises: as `send`, and Failure for any status that is not 2xx."""
        return self.send("GET", path).checked().data

    def send(self, method: str, path: str, body: object = None, headers: dict[str, str] | None = None) -> ApiAnswer:
        """Send one request. Return the answer, which can be a refusal.

        Raises:
            ApiRefused: 69 if the broker is unreachable or another server answers, 75 if the broker is silent, 77 if
                the user is not allowed
            AppStopped, AppRuns: the broker said so
            UsageError: a bad URI
        """
        if self.timeout_s == 0:
            raise self._timed_out(path)
        if self._connection is None:
            self._connection = self._connect()
        sent = {**self._headers, **(headers or {})}
        data = None
        if body is not None:
            data = json.dumps(body).encode()
            sent["Content-Type"] = "application/json"
        from http.client import HTTPException

        try:
            self._connection.request(method, self._prefix + path, data, sent)
            response = self._connection.getresponse()
            text = response.read()
        except TimeoutError:
            self.close()
            raise self._timed_out(path) from None
        except (OSError, HTTPException) as error:
            self.close()
            if self._has_found_another():
                return self.send(method, path, body, headers)
            raise self._unreachable(error) from None
        try:
            answer = ApiAnswer(response.status, json.loads(text) if text else None)
        except ValueError:  # another server, or a proxy with a page of its own
            shown = text[:200].decode("utf-8", "replace")
            answer = ApiAnswer(response.status, {"error": shown})
            if answer.ok:
                why = f"it answered HTTP {response.status} with something else than JSON: {shown[:60]!r}"
                raise self._unreachable(ValueError(why)) from None
        if response.status in {401, 403}:
            raise ApiRefused(NO_PERMISSION, self._not_allowed(answer))
        self.missing.update(filter(None, (response.getheader(MISSING) or "").split(",")))
        if answer.status == 503 and isinstance(answer.data, dict) and answer.data.get("error") == "app_stopped":
            raise AppStopped
        if answer.status == 409 and isinstance(answer.data, dict) and answer.data.get("error") == "app_running":
            raise AppRuns
        return answer

    def _has_found_another(self) -> bool:
        """Return whether a broker answers at `otherwise`. If it does, use that broker."""
        uri, self.otherwise = self.otherwise, ""
        if not uri:
            return False
        another = ApiClient(uri, "", self.node, self.timeout_s, False)
        try:
            if not another.send("GET", "/api/whoami").ok:
                return False
        except Failure:
            return False
        finally:
            another.close()
        self.uri, self.data_dir = uri, ""
        return True

    def close(self) -> None:
        """Close the connection. The next request opens a new one."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _connect(self) -> HTTPConnection:
        """Return an HTTP connection that is not open yet. Raises: UsageError."""
        import http.client
        import socket

        if not self.uri:
            return _unix_connection(self.address, self.timeout_s)
        from urllib.parse import unquote, urlsplit

        wrong = f"--uri {self.address}: expected http://USER:PASSWORD@HOST:15672, or https://...:15671"
        try:
            parts = urlsplit(self.uri)
            port = parts.port
        except ValueError:  # its text may have a part of the password
            raise UsageError(f"{wrong}; in a password, / ? # are %2F %3F %23") from None
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise UsageError(wrong)
        if parts.username is not None:
            from base64 import b64encode

            credentials = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            self._headers["Authorization"] = "Basic " + b64encode(credentials.encode()).decode()
        self._prefix = parts.path.rstrip("/")
        timeout_s: Any = socket.getdefaulttimeout() if self.timeout_s is None else self.timeout_s
        if parts.scheme == "http":
            return http.client.HTTPConnection(parts.hostname, port or 15672, timeout=timeout_s)
        context = self.tls.context()
        return http.client.HTTPSConnection(parts.hostname, port or 15671, timeout=timeout_s, context=context)

    def _timed_out(self, path: str) -> ApiRefused:
        return ApiRefused(
            TIMED_OUT,
            f"operation on node {self.node} timed out: no answer to {path.partition('?')[0]} from {self.address}. "
            f"Timeout value used: {round((self.timeout_s or 0) * 1000)}",
        )

    def _not_allowed(self, answer: ApiAnswer) -> str:
        advice = "check the user's tags (set_user_tags) and permissions"
        if self.is_local:
            advice = "run amqpctl as the user the broker runs as, or use --uri http://USER:PASSWORD@HOST:15672"
        elif "Authorization" not in self._headers:
            advice = "put credentials into the URI: --uri http://USER:PASSWORD@HOST:15672"
            if self.tls.certificate:
                advice = "see auth.mechanisms and auth.ssl_cert_login_from of the broker, and that it has such a user"
        elif answer.reason == "Login failed":
            advice = "check the user's name and password; guest can log in only on the broker's machine"
        return f"{self.address} refuses: {answer.reason}. What to do: {advice}."

    def _unreachable(self, error: Exception) -> ApiRefused:
        """Return the error with exit code 69 (rabbit). Its text says what the user can do next."""
        from http.client import BadStatusLine, RemoteDisconnected

        why = getattr(error, "strerror", None) or str(error) or type(error).__name__
        if isinstance(error, BadStatusLine) and not isinstance(error, RemoteDisconnected):
            why = f"no HTTP there, the answer begins with {str(error)[:60]!r}"
        start = "amqpd" if self.data_dir in {"", "./amqpd-data"} else f"amqpd --data-dir {self.data_dir}"
        advice = [
            f"The broker may not be running. Start it: {start}",
            "It may use another data directory. Name it: --data-dir DIR, or AMQPD_DATA_DIR=DIR",
            "It may run elsewhere. Talk HTTP to it: --uri http://USER:PASSWORD@HOST:15672, or AMQPCTL_URI",
        ]
        if self.uri:
            advice = [
                "The broker may not be running. Start it there: amqpd",
                "Its admin API may listen elsewhere: see http.host and http.port in `amqpd --print-settings`",
                "On the broker's own machine, use its data directory: --data-dir DIR",
            ]
            if isinstance(error, RemoteDisconnected) and not self.uri.lower().startswith("https://"):
                advice.insert(0, "That port may be for HTTPS. Use https:// instead of http://")
            elif getattr(error, "reason", "") == "WRONG_VERSION_NUMBER":
                advice[:1] = ["That port has no TLS. Use http://, or the port of the broker's setting http.tls.port"]
            elif self.uri.lower().startswith("https://") and not isinstance(error, ConnectionRefusedError):
                advice[:1] = [
                    "Its certificate may be signed by an authority of your own. Name it: --tls-ca-cert-file FILE",
                    "It may want a certificate of yours: --tls-cert-file FILE, --tls-key-file FILE",
                ]
        elif isinstance(error, PermissionError):
            advice = [
                "The broker runs as another user. Run amqpctl as that user",
                "Or talk HTTP to it: --uri http://USER:PASSWORD@HOST:15672",
            ]
        lines = [f"unable to reach node '{self.node}' at {self.address}: {why}.", "", "What to do:", ""]
        return ApiRefused(UNAVAILABLE, "\n".join([*lines, *(f" * {one}" for one in advice)]))


def quoted(name: str) -> str:
    """Return a name as one segment of a path: `/` is `%2F`."""
    from urllib.parse import quote

    return quote(name, safe="")


def _unix_connection(path: str, timeout_s: float | None) -> HTTPConnection:
    import http.client
    import socket

    class UnixConnection(http.client.HTTPConnection):
        """HTTP over a unix socket, with `Host: localhost`."""

        def connect(self) -> None:
            self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self.sock.settimeout(timeout_s)
            if len(os.fsencode(path)) <= _PATH_SIZE_BYTES_MAX:
                self.sock.connect(path)
                return
            # A longer path does not fit into a socket address. A path through an open directory does.
            directory = os.open(os.path.dirname(path), os.O_PATH | os.O_DIRECTORY)  # noqa: PTH120
            try:
                self.sock.connect(f"/proc/self/fd/{directory}/{SOCKET_NAME}")
            finally:
                os.close(directory)

    return UnixConnection("localhost")
