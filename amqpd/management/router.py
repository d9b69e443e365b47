"""Routes, and how the route of a path is found.

A path is cut at its slashes before it is decoded, so a name may hold any character, a slash included (%2F), and no name
ever becomes a path. `{vhost}` and the like stand for one name. Each route says its role; one that forgot to would not
be a Route. Permissions within a vhost come on top, in the handlers.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple
from urllib.parse import unquote_to_bytes

from amqpd.management.request import (
    ApiRequest,
    ApiResponse,
    BadRequest,
    Handler,
    MethodNotAllowed,
    ResourceNotFound,
    Role,
)


class ApiRoute(NamedTuple):
    """path: segments, without a slash at either end. definitions: the body is a document of many items. quiet: a change
    that is traffic rather than an operator's; the log tells of it at level debug. messages: it publishes or takes
    messages; the audit log counts such requests by the minute. login_form: the body is a form with
    `username` and `password`, which say who asks.
    """

    method: str
    path: str
    role: Role
    handler: Handler
    definitions: bool = False
    quiet: bool = False
    messages: bool = False
    login_form: bool = False


class _Node:
    """One segment of the paths: what may follow it, and who answers when nothing does."""

    def __init__(self) -> None:
        self.words: dict[str, _Node] = {}
        self.any: _Node | None = None
        self.routes: dict[str, tuple[ApiRoute, list[str]]] = {}


class Router:
    """Finds the route of a raw path. Built once. Raises: ValueError for two routes of one path and method."""

    def __init__(self, routes: tuple[ApiRoute, ...]) -> None:
        self._root = _Node()
        for route in routes:
            node, names = self._root, list[str]()
            for segment in filter(None, route.path.split("/")):
                if segment.startswith("{"):
                    names.append(segment[1:-1])
                    if node.any is None:
                        node.any = _Node()
                    node = node.any
                else:
                    node = node.words.setdefault(segment, _Node())
            if route.method in node.routes:
                raise ValueError(f"two routes for {route.method} {route.path}")
            node.routes[route.method] = (route, names)

    def find(self, method: str, raw_path: str) -> tuple[ApiRoute, dict[str, str]]:
        """The route and the decoded names. raw_path: as it came, without the query. HEAD is GET.

        Raises: ResourceNotFound, MethodNotAllowed, BadRequest for what is no UTF-8.
        """
        segments = raw_path.split("/")[1:]
        if segments and segments[-1] == "":
            segments.pop()  # rabbit: a slash at the end is no matter
        values: list[str] = []
        node = _walk(self._root, segments, 0, values)
        if node is None:
            raise ResourceNotFound(ResourceNotFound.text)
        found = node.routes.get("GET" if method == "HEAD" else method)
        if found is None:
            allowed = sorted({*node.routes, "OPTIONS", *(("HEAD",) if "GET" in node.routes else ())})
            if method == "OPTIONS":
                return ApiRoute("OPTIONS", "", Role.PUBLIC, partial(_options, ", ".join(allowed))), {}
            raise MethodNotAllowed(f"{method} is not for this path", {"Allow": ", ".join(allowed)})
        route, names = found
        return route, dict(zip(names, values, strict=True))


def _walk(node: _Node, segments: list[str], index: int, values: list[str]) -> _Node | None:
    """The node where the path ends, with something registered; names on the way go to `values`.

    A word comes before a name, and a name is tried where the word leads nowhere: `queues/detailed` is a list, but
    `queues/detailed/q` a queue of a vhost. Cost: its segments; one path in a table has few such words.
    """
    if index == len(segments):
        return node if node.routes else None
    segment = segments[index]
    word = node.words.get(segment)
    if word is not None:
        found = _walk(word, segments, index + 1, values)
        if found is not None:
            return found
    if node.any is None:
        return None
    kept = len(values)
    values.append(_decoded(segment))
    found = _walk(node.any, segments, index + 1, values)
    if found is None:
        del values[kept:]
    return found


async def _options(allowed: str, _call: ApiRequest) -> ApiResponse:
    """What the path takes. rabbit: asked without a password, as browsers do before a request of another site."""
    return ApiResponse(200, headers={"Allow": allowed})


def _decoded(segment: str) -> str:
    try:
        return unquote_to_bytes(segment).decode()
    except UnicodeDecodeError:
        raise BadRequest("a name in the path is not UTF-8") from None
