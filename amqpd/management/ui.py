"""The page: what a browser gets at `/` and under `/assets/`, built from page/ (its README says how) into page/dist.

Each file is there three times, as it is, as .gz and as .br, so nothing is compressed here. A file under /assets/ has a
hash of its content in its name and may be kept for ever; `/` is asked for again each time, and answered 304 while it is
the same. Nothing on the page comes from elsewhere, no script stands in the HTML, and no other page may frame it.

Where nothing is built, `/` says why and what to do, and asks again by itself: a build beside a running broker is seen
as soon as it is there. What needs no script stands at `/plain`.

The page's login and logout over HTTP; what a session is and what it is not stands in `sessions`.
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
"""There where amqpd runs from its sources."""
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
"""Best first, with what a file's name then ends in."""
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
"""No time a file can have: where packages are made reproducible 0 is one."""
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
    """content: by the encoding's name, "" for none. tag: its ETag."""

    content: dict[str, bytes]
    tag: str
    content_type: str


class PageFiles:
    """The built files, read when somebody asks first and again when another build is there. folder: of the build."""

    def __init__(self, folder: Path = DIST) -> None:
        self._folder = folder
        self._assets: dict[str, _Asset] = {}
        self._built_ns = NOT_READ

    def find(self, name: str) -> _Asset | None:
        """None: there is no such file, or nothing is built. Cost: a stat; some 100 KB are read after a build."""
        try:
            built_ns = (self._folder / INDEX).stat().st_mtime_ns
            if built_ns != self._built_ns:
                self._assets = _read(self._folder)
                self._built_ns = built_ns
        except OSError:  # none, or one that is being replaced
            self._assets, self._built_ns = {}, NOT_READ
        return self._assets.get(name)


def _read(folder: Path) -> dict[str, _Asset]:
    """Raises: OSError."""
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


def accepted(header: str) -> set[str]:
    """The encodings that an Accept-Encoding takes."""
    found: set[str] = set()
    for part in header.lower().split(","):
        name, _, rest = part.partition(";")
        weight = rest.strip().removeprefix("q=")
        if weight.strip("0.") or not weight:
            found.add(name.strip())
    return found


def _sent(call: ApiRequest, asset: _Asset, caching: dict[str, str]) -> ApiResponse:
    taken = accepted(call.headers.get("Accept-Encoding", ""))
    encoding = next((name for name, _ in ENCODINGS if name in taken and name in asset.content), "")
    tag = f'"{asset.tag}{"-" + encoding if encoding else ""}"'
    headers = {**HEADERS, **caching, "ETag": tag}
    if tag in [each.strip().removeprefix("W/") for each in call.headers.get("If-None-Match", "").split(",")]:
        return ApiResponse(304, headers=headers)
    if encoding:
        headers["Content-Encoding"] = encoding
    return ApiResponse(200, asset.content[encoding], asset.content_type, headers)


async def get_page(files: PageFiles, call: ApiRequest) -> ApiResponse:
    """The page."""
    index = files.find(INDEX)
    if index is not None:
        return _sent(call, index, ASK_AGAIN)
    why = FROM_SOURCES if SETUP.exists() else WITHOUT
    return ApiResponse(200, NOT_BUILT.format(why=why).encode(), HTML, {"Content-Security-Policy": PLAIN_POLICY})


async def get_asset(files: PageFiles, call: ApiRequest) -> ApiResponse:
    """A script, style or picture of the page."""
    name = call.params["file"]
    asset = files.find(name) if name != INDEX else None
    if asset is None:
        raise ResourceNotFound(ResourceNotFound.text)
    return _sent(call, asset, FOR_EVER)


async def get_plain(_call: ApiRequest) -> ApiResponse:
    """The same without script: links to what is most asked for."""
    return ApiResponse(200, PLAIN.encode(), HTML, {"Content-Security-Policy": PLAIN_POLICY})


_FILES: Final = PageFiles()
ROUTES: Final = (
    ApiRoute("GET", "", Role.PUBLIC, partial(get_page, _FILES)),
    ApiRoute("GET", "assets/{file}", Role.PUBLIC, partial(get_asset, _FILES)),
    ApiRoute("GET", "plain", Role.PUBLIC, get_plain),
)


PAGE_HEADER: Final = "Amqpd-Page"
"""Sent by the page with each request: its refusals bring no WWW-Authenticate, at which browsers ask for a password."""


def _sessions(call: ApiRequest) -> LoginSessions:
    assert call.sessions is not None  # server.py gives them to every call
    return call.sessions


def check_header(headers: Mapping[str, str]) -> None:
    """Of a change by cookie. Raises: Forbidden."""
    if PAGE_HEADER not in headers:
        raise Forbidden(f"a change by cookie needs the header {PAGE_HEADER}")


def _who(call: ApiRequest, left_s: float | None) -> dict[str, object]:
    user = call.caller.user
    return {
        "name": user.name,
        "tags": list(user.tags),
        "ends_in_s": None if left_s is None else int(left_s),
        "node": call.node,
        "cluster_name": call.broker.cluster_name,
        "clustered": _sessions(call).clustered,
    }


async def post_session(call: ApiRequest) -> ApiResponse:
    """Logs in: name and password of the form open a session, whose cookie the answer sets."""
    check_header(call.headers)
    sessions = _sessions(call)
    token = sessions.open(call.caller.user.name, call.broker.auth)
    left_s = sessions.left_s(token) or 0.0
    answer = reply(_who(call, left_s))
    return answer._replace(headers={"Set-Cookie": cookie(call.headers, token, int(left_s))})


async def get_session(call: ApiRequest) -> ApiResponse:
    """Who is logged in, with which tags, and for how long."""
    return reply(_who(call, _sessions(call).left_s(token_of(call.headers))))


async def delete_session(call: ApiRequest) -> ApiResponse:
    """Logs out."""
    await _sessions(call).close(token_of(call.headers))
    return ApiResponse(204, headers={"Set-Cookie": cookie(call.headers, "", 0)})


_PATH: Final = "api/amqpd/session"
SESSION_ROUTES: Final = (
    ApiRoute("POST", _PATH, Role.MANAGEMENT, post_session, quiet=True, login_form=True),
    ApiRoute("GET", _PATH, Role.MANAGEMENT, get_session),
    ApiRoute("DELETE", _PATH, Role.MANAGEMENT, delete_session, quiet=True),
)
