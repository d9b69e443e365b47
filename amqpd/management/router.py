"""Routes, and finding the route of a path.

The path is split at slashes before it is decoded, so a name can contain any character, also a slash (%2F). A segment
like `{vhost}` matches one name. A route must declare the role that it requires. Handlers check permissions within a
vhost.
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
    """A route.

    Attributes:
        path: segments, without a slash at either end.
        definitions: the body is a document with many items.
        quiet: requests are client traffic, not an operator's changes. They are logged at level debug.
        messages: the route publishes or takes messages. The audit log counts its requests per minute.
        login_form: the body is a form with `username` and `password`, which authenticate the caller.
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
    """A segment of the paths: its next segments, and the routes that end with it."""

    def __init__(self) -> None:
        self.words: dict[str, _Node] = {}
        self.any: _Node | None = None
        self.routes: dict[str, tuple[ApiRoute, list[str]]] = {}


class Router:
    """A trie of routes, built once. Raises: ValueError if two routes have the same path and method."""

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
        """Return the route of a path and its decoded names. HEAD uses the route of GET.

        Args:
            raw_path: the path as received, without the query.

        Raises: ResourceNotFound, MethodNotAllowed, BadRequest if a name is not UTF-8.
        """
        segments = raw_path.split("/")[1:]
        if segments and segments[-1] == "":
            segments.pop()  # RabbitMQ ignores a slash at the end
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
    """Return the node with routes where the path ends. Append names on the way to `values`.

    A literal word is tried first, then a name: `queues/detailed` is a list, but `queues/detailed/q` is a queue of the
    vhost `detailed`. Cost: the number of segments, because few words can also be names.
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
    """Return the methods of a path.

    RabbitMQ: no login is required, because browsers ask before requests of other sites.
    """
    return ApiResponse(200, headers={"Allow": allowed})


def _decoded(segment: str) -> str:
    try:
        return unquote_to_bytes(segment).decode()
    except UnicodeDecodeError:
        raise BadRequest("a name in the path is not UTF-8") from None
