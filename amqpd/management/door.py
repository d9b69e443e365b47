"""The door of the admin API: connections, before there is a request.

An address may have so many, and a first request comes within HEADER_WAIT_S or its connection goes.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Final

from aiohttp import web

from amqpd.management.request import ApiError, BadRequest, to_json

log = logging.getLogger(__name__)

KEEPALIVE_S: Final = 75.0
HEADER_WAIT_S: Final = 10.0
# How long the rest of a refused body is read and thrown away, so that its sender gets to see the answer.
LINGER_S: Final = 2.0
CONNECTIONS_PER_PEER_MAX: Final = 256
# A crowd that is turned away is worth a line now and then, not one each.
TELL_EVERY_S: Final = 60.0
HEADERS: Final = {
    "Server": "amqpd",
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
}
"""Headers of every answer."""


class Handler(web.RequestHandler):
    """One connection. What is no HTTP ends it, and must not keep it: the error's frames have the connection, the
    connection's last message has the error, and the collector hardly ever comes.
    """

    __slots__ = ()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer without aiohttp's page, which shows what the client sent, and aiohttp's name in a header."""
        try:
            super().handle_error(request, status, exc, message)
            found = BadRequest("the request is not HTTP") if status < 500 else ApiError("the server's log says more")
            body = to_json({"error": found.error, "reason": found.reason}).encode()
            answer = web.Response(status=status, body=body, headers={**HEADERS, "Content-Type": "application/json"})
            answer.force_close()
            return answer
        finally:
            if exc is not None:
                exc.__traceback__ = None


class Door(web.Server):
    """Where connections come in: so many from one address, and the first request within HEADER_WAIT_S."""

    def __init__(self, handler: Any) -> None:
        super().__init__(
            handler,
            access_log=None,
            keepalive_timeout=KEEPALIVE_S,
            lingering_time=LINGER_S,
            logger=_protocol_log(),
            auto_decompress=False,
        )
        self._first: dict[web.RequestHandler, asyncio.TimerHandle] = {}
        self._peers: dict[web.RequestHandler, str] = {}
        self._counts: dict[str, int] = {}
        self._told_at = -TELL_EVERY_S

    def __call__(self) -> web.RequestHandler:
        return Handler(self, loop=asyncio.get_running_loop(), **self._kwargs)

    def connection_made(self, handler: web.RequestHandler, transport: asyncio.Transport) -> None:
        super().connection_made(handler, transport)
        loop = asyncio.get_running_loop()
        peer = peer_address(transport)
        count = self._counts.get(peer, 0) + 1
        self._counts[peer] = count
        self._peers[handler] = peer
        if peer and count > CONNECTIONS_PER_PEER_MAX:
            # Not from within: aiohttp goes on with a connection that it takes for open.
            loop.call_soon(transport.abort)
            if loop.time() - self._told_at >= TELL_EVERY_S:
                self._told_at = loop.time()
                log.warning("admin API: %s has %d connections, more are closed", peer, CONNECTIONS_PER_PEER_MAX)
            return
        self._first[handler] = loop.call_later(HEADER_WAIT_S, handler.force_close)

    def asked(self, handler: web.RequestHandler) -> None:
        """A request has arrived: the connection is in use."""
        timer = self._first.pop(handler, None)
        if timer is not None:
            timer.cancel()

    def connection_lost(self, handler: web.RequestHandler, exc: BaseException | None = None) -> None:
        self.asked(handler)
        peer = self._peers.pop(handler, None)
        if peer is not None:
            left = self._counts[peer] - 1
            if left:
                self._counts[peer] = left
            else:
                del self._counts[peer]
        super().connection_lost(handler, exc)


def peer_address(transport: asyncio.BaseTransport | None) -> str:
    """The other end's address; empty for a unix socket."""
    peer = transport.get_extra_info("peername") if transport is not None else None
    return str(peer[0]) if isinstance(peer, tuple) and peer else ""


def _protocol_log() -> logging.Logger:
    """What aiohttp says of requests that are no HTTP: a line each, no traceback for what a client sent."""
    logger = log.getChild("protocol")
    logger.addFilter(_without_traceback)
    return logger


def _without_traceback(record: logging.LogRecord) -> bool:
    if record.exc_info is not None:
        record.msg, record.args = "not HTTP: %s", (repr(record.exc_info[1])[:200],)
        record.exc_info = None
        record.levelno, record.levelname = logging.WARNING, "WARNING"
    return True
