"""HTTP requests to other nodes over pooled connections of kind HTTP, and JSON documents in slices.

A pooled connection carries requests of different users. A header of each request names the user
(`management/cluster_gateway.py`), and the answering node checks the user's permissions itself. No request is
repeated: a node that did not answer may have executed it.

Large JSON documents are parsed and written in slices of the loop. The definitions of 10,000 queues are 2 MB, which
`json` parses without releasing the interpreter, also in a thread. The documents come from other nodes, so they need
not pass the limits for clients' documents (`management/json_body.py`, ten times slower).
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import aiohttp
from aiohttp import web
from aiohttp.client_proto import ResponseHandler
from yarl import URL

from amqpd.cluster import peer_link
from amqpd.cluster.peer_link import PeerConnector, PeerRefused, PeerUnreachable
from amqpd.management.cluster_gateway import CALLER, PART, POSITION, encode_caller
from amqpd.management.json_body import SlicedJsonParser
from amqpd.management.listing import encode_object
from amqpd.management.request import ApiResponse, Unavailable, to_json

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiohttp.client_reqrep import ClientRequest
    from aiohttp.tracing import Trace

    from amqpd.cluster.view import NodeState
    from amqpd.management.cluster_gateway import ForwardedRequest


log = logging.getLogger(__name__)

PER_NODE_MAX: Final = 16
"""Maximum number of connections to one node; further requests wait."""
KEPT_S: Final = 60.0
SILENT_S: Final = 120.0
"""Maximum time without a byte of an answer. Imports and deletions of large vhosts take long."""
PART_SILENT_S: Final = 10.0
"""The same for a part of a list: the user gets the parts of the other nodes."""
_NOT_PASSED: Final = frozenset(
    ("host", "connection", "keep-alive", "transfer-encoding", "content-length", "authorization", "cookie", "origin")
) | {"upgrade", "te", "trailer", "proxy-authorization", "referer", CALLER.lower(), PART.lower(), POSITION.lower()}
_NOT_BACK: Final = frozenset(("connection", "keep-alive", "transfer-encoding", "date", "server"))


class PeerTimeout(Exception):
    """Error: the node did not answer. The text names it and gives the reason.

    Attributes:
        sent: False if the node accepted no connection.
    """

    def __init__(self, text: str, sent: bool) -> None:
        super().__init__(text)
        self.sent = sent


class NotConnected(Unavailable):
    """The node accepts no connection, so the request was not sent."""


class _ConnectError(aiohttp.ClientConnectionError):
    pass


class PeerAnswer(NamedTuple):
    """Complete answer of a node."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class _Connector(aiohttp.BaseConnector):
    """aiohttp's connection pool over connections to the peer port.

    Args:
        nodes: nodes by the host name of a URL.
    """

    def __init__(self, inner: PeerConnector, nodes: dict[str, NodeState]) -> None:
        super().__init__(keepalive_timeout=KEPT_S, limit=0, limit_per_host=PER_NODE_MAX)
        self._inner = inner
        self._nodes = nodes

    async def _create_connection(
        self,
        req: ClientRequest,
        traces: list[Trace],
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109  # aiohttp's; an inner connection has its own
    ) -> ResponseHandler:
        node = self._nodes[req.url.host or ""]
        protocol: ResponseHandler = self._factory()
        try:
            await self._inner.open(node, self._inner.preamble(peer_link.HTTP), protocol)
        except (PeerUnreachable, PeerRefused) as error:
            raise _ConnectError(str(error)) from error
        return protocol


class PeerHttpClient:
    """HTTP client for other nodes. The first request opens its connection pool. Loop thread only.

    Args:
        position: returns how far this node has read slot 0.
    """

    def __init__(self, inner: PeerConnector, position: Callable[[], int]) -> None:
        self._inner = inner
        self._position = position
        self._nodes: dict[str, NodeState] = {}
        self._session: aiohttp.ClientSession | None = None

    def close(self) -> None:
        if self._session is not None and self._session.connector is not None:
            asyncio.get_running_loop().create_task(self._session.close())
            self._session = None

    def _request(
        self, node: NodeState, method: str, path: str, headers: Mapping[str, str], data: Any, silent_s: float
    ) -> Any:
        if self._session is None:
            pool = _Connector(self._inner, self._nodes)
            jar = aiohttp.DummyCookieJar()
            self._session = aiohttp.ClientSession(connector=pool, auto_decompress=False, cookie_jar=jar)
        host = f"{node.fingerprint[:32]}.node"
        self._nodes[host] = node
        return self._session.request(
            method,
            URL(f"http://{host}{path}", encoded=True),
            headers={**headers, POSITION: str(self._position())},
            data=data,
            allow_redirects=False,
            timeout=aiohttp.ClientTimeout(total=None, sock_read=silent_s),
        )

    async def request(
        self,
        node: NodeState,
        method: str,
        path: str,
        by: ForwardedRequest,
        headers: Mapping[str, str] | None = None,
        data: bytes | None = None,
        silent_s: float = SILENT_S,
    ) -> PeerAnswer:
        """Send a request and return the whole answer.

        Args:
            path: raw path with its query.

        Raises: PeerTimeout: the node did not answer.
        """
        given = {**(headers or {}), CALLER: encode_caller(by.caller, by.peer)}
        try:
            async with self._request(node, method, path, given, data, silent_s) as response:
                return PeerAnswer(response.status, response.headers, await response.read())
        except (aiohttp.ClientError, TimeoutError, ConnectionError) as error:
            sent = not isinstance(error, _ConnectError)
            raise PeerTimeout(f"node {node.name} does not answer: {str(error) or 'nothing came'}", sent) from error

    async def forward(self, node: NodeState, request: web.BaseRequest, by: ForwardedRequest) -> web.StreamResponse:
        """Pass a client's request to the node and stream the answer to the client.

        Raises:
            NotConnected: the node accepts no connection.
            Unavailable: the node did not answer; nothing was sent to the client.
        """
        headers = {name: value for name, value in request.headers.items() if _is_passed(name)}
        headers[CALLER] = encode_caller(by.caller, by.peer)
        data = request.content if request.can_read_body else None
        try:
            context = self._request(node, request.method, request.raw_path, headers, data, SILENT_S)
            answer = await context.__aenter__()
        except (aiohttp.ClientError, TimeoutError, ConnectionError) as error:
            kind = NotConnected if isinstance(error, _ConnectError) else Unavailable
            raise kind(f"node {node.name} does not answer: {str(error) or 'nothing came'}") from error
        try:
            back = {name: value for name, value in answer.headers.items() if name.lower() not in _NOT_BACK}
            response = web.StreamResponse(status=answer.status, headers=back)
            if request.method == "HEAD" or answer.status in (204, 304):
                await response.prepare(request)
                return response
            await response.prepare(request)
            try:
                async for chunk in answer.content.iter_any():
                    await response.write(chunk)
                await response.write_eof()
            except (aiohttp.ClientError, TimeoutError, ConnectionError) as error:
                # A part of the answer was sent; only closing the connection can report the failure.
                log.warning("an answer of node %s was incomplete: %r", node.name, error)
                response.force_close()
                if request.transport is not None:
                    request.transport.abort()
            return response
        finally:
            await context.__aexit__(None, None, None)


def _is_passed(name: str) -> bool:
    lower = name.lower()
    return lower not in _NOT_PASSED and not lower.startswith("sec-")


AT_ONCE: Final = 64 * 1024
"""A shorter text is parsed in one piece, in half a millisecond."""
DEPTH: Final = 2
"""Values at this depth, such as a queue or a binding, are parsed in one piece."""
_DECODER: Final = json.JSONDecoder()


async def parse_json(data: bytes) -> Any:
    """Parse a node's JSON answer. Raises ValueError."""
    text = data.decode()
    return json.loads(text) if len(text) <= AT_ONCE else await AnswerParser(text, definitions=False).document()


class AnswerParser(SlicedJsonParser):
    """Parser of a large answer of another node, which needs no limits."""

    async def value(self, depth: int) -> Any:
        char = self.peek()
        if depth < DEPTH and char in "[{":
            return await (self.list(depth + 1) if char == "[" else self.object(depth + 1))
        value, self.at = _DECODER.raw_decode(self.text, self.at)
        await self.slices.yield_if_due()
        return value

    def pass_over(self, count: int) -> None:
        self.at += count


async def encode_body(value: object) -> bytes | None:
    """Encode the body of a request to another node. None means no body."""
    if value is None:
        return None
    if not isinstance(value, dict):
        return to_json(value).encode()
    return b"".join(await encode_object(value, 1))


async def sliced_reply(found: dict[str, Any], headers: Mapping[str, str] | None = None) -> ApiResponse:
    """Return a reply with an object whose lists may be long."""
    return ApiResponse(200, await encode_object(found, 1), headers=dict(headers or {}))
