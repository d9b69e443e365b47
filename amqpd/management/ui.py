"""The web page at `/` and its files under `/assets/`, and its login and logout (see `sessions`).

The page is built from page/ into page/dist (see its README). Each file exists three times, plain, .gz and .br, so the
broker compresses nothing. Names under /assets/ contain a hash, so browsers may cache these files forever. `/` is
revalidated and answered with 304 if it has not changed. The page loads nothing from other sites, has no inline
scripts, and cannot be framed.

If the page is not built, `/` explains why and reloads until it is. `/plain` has links without scripts.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Final, NamedTuple

from amqpd.management.request import ApiRequest, ApiResponse, Forbidden, ResourceNotFound, Role, reply
from amqpd.management.router import ApiRoute
from amqpd.management.sessions import LoginSessions, cookie, token_of

DIST: Final = Path(__file__).parent / "page" / "dist"
SETUP: Final = Path(__file__).parents[2] / "setup.py"
"""Exists if amqpd runs from its sources."""
INDEX: Final = "index.html"
HTML: Final = "text/html; charset=utf-8"
TYPES: Final = {
    ".html": HTML,
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".json": "application/json",
}
ENCODINGS: Final = (("br", ".br"), ("gzip", ".gz"))
"""Encodings and their file suffixes, best first."""
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'"
)
PLAIN_POLICY: Final = "default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
HEADERS: Final = {
    "Content-Security-Policy": POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Frame-Options": "DENY",
    "Vary": "Accept-Encoding",
}
NOT_READ: Final = -1
"""A value that no file's time has. 0 is a valid one: reproducible packages use it."""
FOR_EVER: Final = {"Cache-Control": "public, max-age=31536000, immutable"}
ASK_AGAIN: Final = {"Cache-Control": "no-cache"}

_LINKS: Final = """<ul>
<li><a href="/api/overview">overview</a></li>
<li><a href="/api/queues">queues</a></li>
<li><a href="/api/exchanges">exchanges</a></li>
<li><a href="/api/connections">connections</a></li>
<li><a href="/api/channels">channels</a></li>
<li><a href="/metrics">metrics</a> (Prometheus)</li>
<li><a href="/api/index.html">all paths</a></li>
<li><a href="/cli/">rabbitmqadmin</a>: where to get it</li>
</ul>
</body></html>
"""
_SHELL: Final = '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>amqpd</title>{head}</head><body>\n'
PLAIN: Final = (
    _SHELL.format(head="")
    + """<h1>amqpd</h1>
<p>This is the admin API of an AMQP 0-9-1 broker, with the paths and fields of RabbitMQ's management API. These
links return JSON and need a user with a management tag; <a href="/">the page</a> shows the same in a browser.</p>
"""
    + _LINKS
)
NOT_BUILT: Final = (
    _SHELL.format(head='<meta http-equiv="refresh" content="3">')
    + "<h1>amqpd</h1>\n<p>The broker runs, but its page is missing{why}</p>\n"
    + "<p>Without the page, these links return JSON to a user with a management tag:</p>\n"
    + _LINKS
)
FROM_SOURCES: Final = (
    " so far. The first <code>make run</code> builds it in the background, and then it opens here by itself; "
    "<code>make page</code> builds it alone. Both need Node.js 20 or later, or a network to download it."
)
WITHOUT: Final = (
    ": this package was built without Node.js 20 or later, which could not be downloaded. Install Node.js, then "
    "install amqpd again."
)


class _Asset(NamedTuple):
    """A file of the page.

    Attributes:
        content: bytes by encoding; "" is the plain file.
        tag: its ETag.
    """

    content: dict[str, bytes]
    tag: str
    content_type: str


class PageFiles:
    """The built files. Read at the first request, and again after a new build."""

    def __init__(self, folder: Path = DIST) -> None:
        self._folder = folder
        self._assets: dict[str, _Asset] = {}
        self._built_ns = NOT_READ

    def find(self, name: str) -> _Asset | None:
        """Return a file, or None if it does not exist. Cost: a stat; after a build about 100 KB are read."""
        try:
            built_ns = (self._folder / INDEX).stat().st_mtime_ns
            if built_ns != self._built_ns:
                self._assets = _read(self._folder)
                self._built_ns = built_ns
        except OSError:  # missing, or being replaced
            self._assets, self._built_ns = {}, NOT_READ
        return self._assets.get(name)


def _read(folder: Path) -> dict[str, _Asset]:
    """Read all files of the build. Raises: OSError."""
    assets: dict[str, _Asset] = {}
    for path in sorted(folder.iterdir()):
        if path.suffix not in TYPES:
            continue
        content = {"": path.read_bytes()}
        for encoding, ending in ENCODINGS:
            packed = path.with_name(path.name + ending)
            if packed.exists():
                content[encoding] = packed.read_bytes()
        tag = sha256(content[""]).hexdigest()[:20]
        assets[path.name] = _Asset(content, tag, TYPES[path.suffix])
    return assets


def parse_accept_encoding(header: str) -> set[str]:
    """Return the encodings that an Accept-Encoding header accepts."""
    found: set[str] = set()
    for part in header.lower().split(","):
        name, _, rest = part.partition(";")
        weight = rest.strip().removeprefix("q=")
        if weight.strip("0.") or not weight:
            found.add(name.strip())
    return found


def _asset_response(call: ApiRequest, asset: _Asset, caching: dict[str, str]) -> ApiResponse:
    accepted_encodings = parse_accept_encoding(call.headers.get("Accept-Encoding", ""))
    encoding = next((name for name, _ in ENCODINGS if name in accepted_encodings and name in asset.content), "")
    tag = f'"{asset.tag}{"-" + encoding if encoding else ""}"'
    headers = {**HEADERS, **caching, "ETag": tag}
    if tag in [each.strip().removeprefix("W/") for each in call.headers.get("If-None-Match", "").split(",")]:
        return ApiResponse(304, headers=headers)
    if encoding:
        headers["Content-Encoding"] = encoding
    return ApiResponse(200, asset.content[encoding], asset.content_type, headers)


async def get_page(files: PageFiles, call: ApiRequest) -> ApiResponse:
    """Return the web page."""
    index = files.find(INDEX)
    if index is not None:
        return _asset_response(call, index, ASK_AGAIN)
    why = FROM_SOURCES if SETUP.exists() else WITHOUT
    return ApiResponse(200, NOT_BUILT.format(why=why).encode(), HTML, {"Content-Security-Policy": PLAIN_POLICY})


async def get_asset(files: PageFiles, call: ApiRequest) -> ApiResponse:
    """Return a script, style or picture of the web page."""
    name = call.params["file"]
    asset = files.find(name) if name != INDEX else None
    if asset is None:
        raise ResourceNotFound(ResourceNotFound.text)
    return _asset_response(call, asset, FOR_EVER)


async def get_plain(_call: ApiRequest) -> ApiResponse:
    """Return a page without scripts, with links to the most important lists."""
    return ApiResponse(200, PLAIN.encode(), HTML, {"Content-Security-Policy": PLAIN_POLICY})


_FILES: Final = PageFiles()


PAGE_HEADER: Final = "Amqpd-Page"
"""A header that the page sends with each request.

Error responses then lack WWW-Authenticate, so that browsers show no password dialog.
"""
USER_HEADER: Final = "Amqpd-User"
"""The user whom the tab shows, percent-encoded. Another tab may have logged in as another user."""


def _sessions(call: ApiRequest) -> LoginSessions:
    assert call.sessions is not None  # server.py passes them to every request
    return call.sessions


def check_header(headers: Mapping[str, str]) -> None:
    """Check the header of a change that is authenticated by the cookie. Raises: Forbidden."""
    if PAGE_HEADER not in headers:
        raise Forbidden(f"a change with the session cookie requires the header {PAGE_HEADER}")


def _session_item(call: ApiRequest, left_s: float | None) -> dict[str, object]:
    user = call.caller.user
    return {
        "name": user.name,
        "tags": list(user.tags),
        "ends_in_s": None if left_s is None else int(left_s),
        "node": call.node,
        "cluster_name": call.broker.cluster_name,
        "clustered": _sessions(call).clustered,
        "kafka": call.server.kafka is not None,
    }


async def post_session(call: ApiRequest) -> ApiResponse:
    """Log in with the form's name and password, and set the cookie of a new session."""
    check_header(call.headers)
    sessions = _sessions(call)
    token = sessions.open(call.caller.user.name, call.broker.auth)
    left_s = sessions.remaining_s(token) or 0.0
    answer = reply(_session_item(call, left_s))
    return answer._replace(headers={"Set-Cookie": cookie(call.headers, token, int(left_s))})


async def get_session(call: ApiRequest) -> ApiResponse:
    """Return the logged-in user, its tags, and the remaining time of the session."""
    return reply(_session_item(call, _sessions(call).remaining_s(token_of(call.headers))))


async def delete_session(call: ApiRequest) -> ApiResponse:
    """Log out."""
    await _sessions(call).close(token_of(call.headers))
    return ApiResponse(204, headers={"Set-Cookie": cookie(call.headers, "", 0)})


_PATH: Final = "api/amqpd/session"


ROUTES: Final = (
    ApiRoute("GET", "", Role.PUBLIC, partial(get_page, _FILES)),
    ApiRoute("GET", "assets/{file}", Role.PUBLIC, partial(get_asset, _FILES)),
    ApiRoute("GET", "plain", Role.PUBLIC, get_plain),
    ApiRoute("POST", _PATH, Role.MANAGEMENT, post_session, quiet=True, login_form=True),
    ApiRoute("GET", _PATH, Role.MANAGEMENT, get_session),
    ApiRoute("DELETE", _PATH, Role.MANAGEMENT, delete_session, quiet=True),
)
