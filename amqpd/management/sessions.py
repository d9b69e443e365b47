"""Login sessions of the web page: a cookie that scripts cannot read.

`POST /api/amqpd/session` takes the same form as /api/login (`username`, `password`) and sets the cookie. Requests
with the cookie have the user's current rights. `GET` returns the user, `DELETE` ends the session here and in the
browser. A session also ends after `http.login_session_timeout_s`, if the user is deleted, and if the password
changes.

**Restart.** FILE in the data directory (mode 0600) has the user, the end, and digests of token and password hash;
none of them allows a login. A thread writes it. If the broker dies meanwhile, the previous file remains. If it cannot
be read or written, the log reports it and users must log in again.

**Cluster.** The node that created a session keeps it, and the cookie ends with that node's name. Other nodes ask it
for each request, over the inner port and with the cookie's digest. So logout and password changes take effect
everywhere at once. While that node is down, its users must log in at another node.

**Other sites** cannot use the cookie. It is SameSite=Strict, so browsers send it only with requests of our page.
Changes also need the header `Amqpd-Page`, which forms cannot set and foreign scripts may not set. `server.py` checks
Origin and Sec-Fetch-Site. Over HTTPS the cookie is Secure, with the prefix __Host-. Its name ends with the port,
because browsers share cookies between all ports of a host.
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
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import urlsplit

from amqpd.auth.internal_backend import NoSuchUser

if TYPE_CHECKING:
    from pathlib import Path

    from amqpd.auth.internal_backend import InternalBackend
    from amqpd.management.cluster_gateway import ClusterApi

log = logging.getLogger(__name__)

FILE: Final = "page-sessions.json"
COOKIE: Final = "amqpd-session"
SECURE: Final = "__Host-"
TOKEN_SIZE_BYTES: Final = 32
USER_SESSIONS_MAX: Final = 100
"""Limit of sessions per user. One more ends the oldest."""


class LoginSession(NamedTuple):
    """A session.

    Attributes:
        password: digest of the user's password hash at login. The session ends when the hash changes.
        ends_at: seconds since 1970.
    """

    user: str
    password: str
    ends_at: float


class LoginSessions:
    """The login sessions of this node.

    Args:
        path: the path of FILE; None: sessions are not stored.
        clock: returns seconds since 1970.
        remote: the sessions of other nodes, in a cluster.
    """

    def __init__(
        self,
        lasts_s: float,
        path: Path | None = None,
        clock: Callable[[], float] = time.time,
        remote: ClusterApi | None = None,
    ) -> None:
        self._lasts_s = lasts_s
        self._path = path
        self._clock = clock
        self._remote = remote
        self._writer = ThreadPoolExecutor(1, "page-sessions")
        self._text = ""
        self._by_digest: dict[str, LoginSession] = {}
        if path is not None:
            self._by_digest = _read(path)

    @property
    def clustered(self) -> bool:
        return self._remote is not None

    def open(self, user: str, auth: InternalBackend) -> str:
        """Create a session and return its token. Raises: NoSuchUser. Cost: linear in the number of sessions."""
        row = auth.user(user)
        now = self._clock()
        for digest in [digest for digest, each in self._by_digest.items() if not _is_valid(each, auth, now)]:
            del self._by_digest[digest]
        own = [digest for digest, each in self._by_digest.items() if each.user == user]
        for digest in own[: max(0, len(own) - USER_SESSIONS_MAX + 1)]:
            del self._by_digest[digest]
        token = secrets.token_urlsafe(TOKEN_SIZE_BYTES)
        if self._remote is not None:
            token += "." + urlsafe_b64encode(self._remote.name.encode()).decode().rstrip("=")
        self._by_digest[_digest(token)] = LoginSession(user, _digest(row.password_hash), now + self._lasts_s)
        self._save()
        return token

    def user(self, token: str, auth: InternalBackend) -> str | None:
        """Return the user of a session on this node, or None if it has ended. Cost: 3 us."""
        return self.user_of_digest(_digest(token), auth)

    async def find(self, token: str, auth: InternalBackend) -> str | None:
        """Return the user of a session on any node."""
        return self.user(token, auth) or await self._ask_node(token, False) or None

    def user_of_digest(self, digest: str, auth: InternalBackend) -> str | None:
        """As `user`, for another node that has received the cookie."""
        session = self._by_digest.get(digest)
        if session is None:
            return None
        if not _is_valid(session, auth, self._clock()):
            self.end_by_digest(digest)
            return None
        return session.user

    async def _ask_node(self, token: str, end: bool) -> str:
        node = _node_of(token)
        if self._remote is None or node in ("", self._remote.name):
            return ""
        return await self._remote.session_user(node, _digest(token), end)

    def remaining_s(self, token: str) -> float | None:
        session = self._by_digest.get(_digest(token))
        return None if session is None else max(0.0, session.ends_at - self._clock())

    def end_by_digest(self, digest: str) -> None:
        """End a session of this node, if it exists."""
        if self._by_digest.pop(digest, None) is not None:
            self._save()

    async def close(self, token: str) -> None:
        """End a session on any node."""
        self.end_by_digest(_digest(token))
        await self._ask_node(token, True)

    def wait_saved(self) -> None:
        """Wait until FILE is written. Later changes are not stored."""
        self._writer.shutdown()

    def _save(self) -> None:
        """Store the sessions for the next start. Not synced: a power failure may only cost a login."""
        if self._path is not None:
            self._text = json.dumps(self._by_digest)
            self._writer.submit(self._write, self._path, self._text)

    def _write(self, path: Path, text: str) -> None:
        """Write the file. Runs on the writer thread."""
        if text is not self._text:
            return  # a newer text is queued
        new = path.with_suffix(".new")
        try:
            descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(text)
            new.replace(path)
        except OSError as error:
            log.warning("logins of the web page will be lost at the next start: %s", error)


def _is_valid(session: LoginSession, auth: InternalBackend, now: float) -> bool:
    """Return whether the session has not expired, and its user still exists with the same password."""
    try:
        return session.ends_at > now and _digest(auth.user(session.user).password_hash) == session.password
    except NoSuchUser:
        return False


def _digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()


def _node_of(token: str) -> str:
    """Return the node in a token; empty if there is none."""
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
        log.warning("%s cannot be read, so users of the web page must log in again: %s", path, error)
        return {}


def _name(headers: Mapping[str, str]) -> str:
    try:
        port = urlsplit("//" + headers.get("Host", "")).port
    except ValueError:
        port = None
    return COOKIE if port is None else f"{COOKIE}-{port}"


def token_of(headers: Mapping[str, str]) -> str:
    """Return the value of the session cookie; empty without one."""
    name = _name(headers)
    found: dict[str, str] = {}
    for part in headers.get("Cookie", "").split(";"):
        key, _, value = part.strip().partition("=")
        found.setdefault(key, value)
    return found.get(SECURE + name) or found.get(name, "")


def cookie(headers: Mapping[str, str], token: str, lasts_s: int) -> str:
    """Return the Set-Cookie header.

    Origin reveals whether the browser uses HTTPS, also behind a proxy that ends TLS.
    """
    secure = headers.get("Origin", "").lower().startswith("https://")
    name = (SECURE if secure else "") + _name(headers)
    return f"{name}={token}; Path=/; HttpOnly; SameSite=Strict; Max-Age={lasts_s}" + ("; Secure" if secure else "")
