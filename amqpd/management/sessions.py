"""Logins of the page: a cookie that script cannot read stands for a name and password that nobody keeps.

`POST /api/amqpd/session` takes a form with `username` and `password`, as /api/login does, and sets the cookie; from
then on requests that carry it are that user's, with the rights he has at each of them. `GET` says who that is, `DELETE`
ends it, here and in the browser. A session ends by itself after `http.login_session_timeout_s`, with the user, and with
the password it was opened with. It outlives the broker's restart: FILE in the data directory (mode 0600) has whose it
is, until when, and digests of token and password hash, with which nobody can log in. A broker that dies while it is
written has the former one; where it cannot be read or written, the log says so and users log in again. It is written
on a thread of its own.

In a cluster a session is kept by the node that made it, whose name the cookie's value ends with: any other node asks
that one at each request, over the inner port and by the cookie's digest, so a logout or another password ends it
everywhere at once. While that node is away its sessions open nothing, and users log in again, at another one.

Another site's page can do nothing with it. The cookie is SameSite=Strict, so requests that another site makes come
without it; a change by cookie wants a header besides (`Amqpd-Page`), which a form cannot send and a foreign script may
not; and Origin and Sec-Fetch-Site are checked as for every change (`server.py`). Over HTTPS the cookie is Secure and
has the prefix __Host-. Its name ends with the port, as browsers keep one jar for all ports of a host: two brokers on a
machine do not log each other out.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol
from urllib.parse import urlsplit

from amqpd.auth.internal_backend import NoSuchUser

if TYPE_CHECKING:
    from pathlib import Path

    from amqpd.auth.internal_backend import InternalBackend

log = logging.getLogger(__name__)

FILE: Final = "page-sessions.json"
COOKIE: Final = "amqpd-session"
SECURE: Final = "__Host-"
TOKEN_SIZE_BYTES: Final = 32
OF_USER_MAX: Final = 100
"""Sessions of one user; the oldest ends when there is one more."""


class LoginSession(NamedTuple):
    """password: a digest of its hash as it was at the login; another one ends the session. ends_at: s since 1970."""

    user: str
    password: str
    ends_at: float


class RemoteSessions(Protocol):
    """The other nodes' sessions. name: this node's."""

    name: str

    async def session(self, node: str, digest: str, end: bool) -> str:
        """Whose session a node keeps under a digest; empty: none, or the node is away. end: it is over now."""
        raise NotImplementedError


class LoginSessions:
    """Who is logged in by a cookie. path: of FILE; None keeps nothing. clock: seconds since 1970. elsewhere: in a
    cluster.
    """

    def __init__(
        self,
        lasts_s: float,
        path: Path | None = None,
        clock: Callable[[], float] = time.time,
        elsewhere: RemoteSessions | None = None,
    ) -> None:
        self._lasts_s = lasts_s
        self._path = path
        self._clock = clock
        self._elsewhere = elsewhere
        self._writer = ThreadPoolExecutor(1, "page-sessions")
        self._text = ""
        self._by_digest: dict[str, LoginSession] = {}
        if path is not None:
            self._by_digest = _read(path)

    @property
    def clustered(self) -> bool:
        return self._elsewhere is not None

    def open(self, user: str, auth: InternalBackend) -> str:
        """A new session's token. Raises: NoSuchUser. Cost: a look at each session."""
        row = auth.user(user)
        now = self._clock()
        for digest in [digest for digest, each in self._by_digest.items() if each.ends_at <= now]:
            del self._by_digest[digest]
        own = [digest for digest, each in self._by_digest.items() if each.user == user]
        for digest in own[: max(0, len(own) - OF_USER_MAX + 1)]:
            del self._by_digest[digest]
        token = secrets.token_urlsafe(TOKEN_SIZE_BYTES)
        if self._elsewhere is not None:
            token += "." + urlsafe_b64encode(self._elsewhere.name.encode()).decode().rstrip("=")
        self._by_digest[_digest(token)] = LoginSession(user, _digest(row.password_hash), now + self._lasts_s)
        self._keep()
        return token

    def user(self, token: str, auth: InternalBackend) -> str | None:
        """Whose session it is; None: there is none any more. Cost: 3 us."""
        return self.kept(_digest(token), auth)

    async def find(self, token: str, auth: InternalBackend) -> str | None:
        """As `user`, whichever node keeps it."""
        return self.user(token, auth) or await self._ask(token, False) or None

    def kept(self, digest: str, auth: InternalBackend) -> str | None:
        """As `user`, for a node that has been sent the cookie."""
        session = self._by_digest.get(digest)
        if session is None:
            return None
        try:
            same = _digest(auth.user(session.user).password_hash) == session.password
        except NoSuchUser:
            same = False
        if not same or session.ends_at <= self._clock():
            self.end(digest)
            return None
        return session.user

    async def _ask(self, token: str, end: bool) -> str:
        node = _node_of(token)
        if self._elsewhere is None or node in ("", self._elsewhere.name):
            return ""
        return await self._elsewhere.session(node, _digest(token), end)

    def left_s(self, token: str) -> float | None:
        session = self._by_digest.get(_digest(token))
        return None if session is None else max(0.0, session.ends_at - self._clock())

    def end(self, digest: str) -> None:
        """Of a session that this node keeps, or of none."""
        if self._by_digest.pop(digest, None) is not None:
            self._keep()

    async def close(self, token: str) -> None:
        """Ends it, whichever node keeps it."""
        self.end(_digest(token))
        await self._ask(token, True)

    def written(self) -> None:
        """Returns when FILE has what there is; nothing is kept from then on. Waits for the disk."""
        self._writer.shutdown()

    def _keep(self) -> None:
        """For the next start. Not synced: what a power cut takes is a login."""
        if self._path is not None:
            self._text = json.dumps(self._by_digest)
            self._writer.submit(self._write, self._path, self._text)

    def _write(self, path: Path, text: str) -> None:
        """On the thread."""
        if text is not self._text:
            return  # a newer one is on its way
        new = path.with_suffix(".new")
        try:
            descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(text)
            new.replace(path)
        except OSError as error:
            log.warning("logins of the page will not outlive this broker: %s", error)


def _digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()


def _node_of(token: str) -> str:
    """Who keeps it; empty for a token that names nobody."""
    encoded = token.partition(".")[2]
    try:
        return urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4)).decode()
    except ValueError:
        return ""


def _read(path: Path) -> dict[str, LoginSession]:
    try:
        found = json.loads(path.read_text("utf-8"))
        return {
            digest: LoginSession(str(user), str(password), float(at)) for digest, (user, password, at) in found.items()
        }
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError, AttributeError) as error:
        log.warning("%s cannot be read, users of the page log in again: %s", path, error)
        return {}


def _name(headers: Mapping[str, str]) -> str:
    try:
        port = urlsplit("//" + headers.get("Host", "")).port
    except ValueError:
        port = None
    return COOKIE if port is None else f"{COOKIE}-{port}"


def token_of(headers: Mapping[str, str]) -> str:
    """What the cookie says; empty without."""
    name = _name(headers)
    found: dict[str, str] = {}
    for part in headers.get("Cookie", "").split(";"):
        key, _, value = part.strip().partition("=")
        found.setdefault(key, value)
    return found.get(SECURE + name) or found.get(name, "")


def cookie(headers: Mapping[str, str], token: str, lasts_s: int) -> str:
    """What sets it. The browser says by Origin what it speaks to us, also through a proxy that ends TLS."""
    secure = headers.get("Origin", "").lower().startswith("https://")
    name = (SECURE if secure else "") + _name(headers)
    return f"{name}={token}; Path=/; HttpOnly; SameSite=Strict; Max-Age={lasts_s}" + ("; Secure" if secure else "")
