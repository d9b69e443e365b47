"""Requests of the admin API to other nodes, over inner connections that are kept for the next ones.

    ask       one request and its whole answer
    pass_on   a client's request, sent on as it comes; its answer goes to him as it comes

An inner connection of kind HTTP carries requests of anybody: each says in a header who asks (management/cluster_gateway.py), and
the node that answers looks up his rights itself. Nothing is asked twice: what a node has not answered it may have done.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import aiohttp
from aiohttp import web
from aiohttp.client_proto import ResponseHandler
from yarl import URL

from amqpd.cluster import preamble as words
from amqpd.cluster.peer_link import Connector, NotReached, Refused
from amqpd.management.request import Unavailable
from amqpd.management.cluster_gateway import CALLER, PART, POSITION, told

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from aiohttp.client_reqrep import ClientRequest
    from aiohttp.tracing import Trace

    from amqpd.cluster.view import Node
    from amqpd.management.cluster_gateway import Asked

log = logging.getLogger(__name__)

PER_NODE_MAX: Final = 16
"""Connections to one node; what is more waits for one."""
KEPT_S: Final = 60.0
SILENT_S: Final = 120.0
"""For how long an answer that is awaited may bring no byte: an import, a large vhost that goes."""
PART_SILENT_S: Final = 10.0
"""Likewise of a part of a list: its reader gets the others'."""
_NOT_PASSED: Final = frozenset(
    ("host", "connection", "keep-alive", "transfer-encoding", "content-length", "authorization", "cookie", "origin")
) | {"upgrade", "te", "trailer", "proxy-authorization", "referer", CALLER.lower(), PART.lower(), POSITION.lower()}
_NOT_BACK: Final = frozenset(("connection", "keep-alive", "transfer-encoding", "date", "server"))


class Silent(Exception):
    """The node did not answer; the text names it and says why."""


class Answer(NamedTuple):
    """Of one node."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class _Connector(aiohttp.BaseConnector):
    """aiohttp's pool, over inner connections. nodes: by the host of a URL."""

    def __init__(self, inner: Connector, nodes: dict[str, Node]) -> None:
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
            await self._inner.open(node, self._inner.preamble(words.HTTP), protocol)
        except (NotReached, Refused) as error:
            raise aiohttp.ClientConnectionError(str(error)) from error
        return protocol


class InnerHttp:
    """Of this node. Begins with the first request, on the loop. position: how far it has read what is the cluster's."""

    def __init__(self, inner: Connector, position: Callable[[], int]) -> None:
        self._inner = inner
        self._position = position
        self._nodes: dict[str, Node] = {}
        self._session: aiohttp.ClientSession | None = None

    def close(self) -> None:
        """Its connections end."""
        if self._session is not None and self._session.connector is not None:
            asyncio.get_running_loop().create_task(self._session.close())
            self._session = None

    def _request(
        self, node: Node, method: str, path: str, headers: Mapping[str, str], data: Any, silent_s: float
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

    async def ask(
        self,
        node: Node,
        method: str,
        path: str,
        by: Asked,
        headers: Mapping[str, str] | None = None,
        data: bytes | None = None,
        silent_s: float = SILENT_S,
    ) -> Answer:
        """path: raw, with its query. Raises: Silent."""
        given = {**(headers or {}), CALLER: told(by.caller, by.peer)}
        try:
            async with self._request(node, method, path, given, data, silent_s) as response:
                return Answer(response.status, response.headers, await response.read())
        except (aiohttp.ClientError, TimeoutError, ConnectionError) as error:
            raise Silent(f"node {node.name} does not answer: {str(error) or 'nothing came'}") from error

    async def pass_on(self, node: Node, request: web.BaseRequest, by: Asked) -> web.StreamResponse:
        """The answer has gone to who asked when it returns. Raises: Unavailable, before anything of it has."""
        headers = {name: value for name, value in request.headers.items() if _passed(name)}
        headers[CALLER] = told(by.caller, by.peer)
        data = request.content if request.can_read_body else None
        try:
            context = self._request(node, request.method, request.raw_path, headers, data, SILENT_S)
            answer = await context.__aenter__()
        except (aiohttp.ClientError, TimeoutError, ConnectionError) as error:
            raise Unavailable(f"node {node.name} does not answer: {str(error) or 'nothing came'}") from error
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
                # Half of it has gone: the only word left is to break off.
                log.warning("an answer of node %s was broken off: %r", node.name, error)
                response.force_close()
                if request.transport is not None:
                    request.transport.abort()
            return response
        finally:
            await context.__aexit__(None, None, None)


def _passed(name: str) -> bool:
    lower = name.lower()
    return lower not in _NOT_PASSED and not lower.startswith("sec-")
