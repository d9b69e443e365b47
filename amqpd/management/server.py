"""The admin API's doors: HTTP and HTTPS on TCP ports with basic auth, and a unix socket in the data directory without.

Whoever opens the unix socket is the operator: the socket has mode 0600, and the peer's uid, as the kernel tells it,
must be the broker's own or root's. Each door has its own handler, so no header can make one look like the other.

A request goes: route, who asks, may he, where does it come from (a foreign web page may not post), body (counted while
it arrives), handler, reply. Errors become RabbitMQ's JSON in one place. What a client sends never causes a 500; one
that happens is a bug, with a traceback in the log.

aiohttp serves on the broker's loop; long answers are made in slices (`listing`).

The door of the admin API: connections, before there is a request.

An address may have so many, and a first request comes within HEADER_WAIT_S or its connection goes.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import struct
from base64 import b64decode
from binascii import Error as Base64Error
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl, urlsplit

from aiohttp import web

from amqpd.auth.internal_backend import AuthenticationRefused, AuthError, NoSuchUser, NoSuchVhost, User
from amqpd.auth.permissions import InvalidPattern
from amqpd.broker.audit import REQUEST, AuditedRequest
from amqpd.broker.consumer import LogNotOpen
from amqpd.broker.events import ACTOR, CLI, ORIGIN
from amqpd.broker.queue.log_opener import opening_over
from amqpd.broker.vhost.pending import DeclarationPending
from amqpd.connection import peer_certificate
from amqpd.connection.transport import is_loopback
from amqpd.errors import AccessRefused, AmqpError, NotFound, ResourceError
from amqpd.management.cluster_gateway import SESSION_DIGEST, SESSION_PATH, ClusterApi, ForwardedRequest, asked
from amqpd.management.collectors import OPEN_ROUTES
from amqpd.management.file_response import LogFileResponse
from amqpd.management.json_body import form, parsed, read_body
from amqpd.management.request import (
    ApiError,
    ApiRequest,
    ApiResponse,
    AppIsStopped,
    BadRequest,
    Forbidden,
    NotAuthorised,
    Principal,
    ResourceNotFound,
    Role,
    Unavailable,
    to_json,
)
from amqpd.management.router import ApiRoute, Router
from amqpd.management.routes import ROUTES
from amqpd.management.sessions import FILE, LoginSessions, token_of
from amqpd.management.stats import Rates
from amqpd.management.time_slice import release
from amqpd.management.ui import PAGE_HEADER, check_header
from amqpd.management.unix_socket import BACKLOG, NAME
from amqpd.protocol.field_table import CodecError
from amqpd.storage.metadata.store import MetadataError
from amqpd.tls import HANDSHAKE_S

if TYPE_CHECKING:
    import ssl

    from amqpd.broker.broker import Broker
    from amqpd.management.request import ServerControl


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


class HttpConnection(web.RequestHandler):
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


class LimitedHttpServer(web.Server):
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
        return HttpConnection(self, loop=asyncio.get_running_loop(), **self._kwargs)

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


WRITE_WAIT_S: Final = 60.0
SHUTDOWN_S: Final = 1.0
REALM: Final = {"WWW-Authenticate": 'Basic realm="RabbitMQ Management"'}
# amqpctl sends it with commands that RabbitMQ's refuses after stop_app.
NEEDS_APP: Final = "Amqpd-Needs-App"
PATH_SHOWN_MAX: Final = 500
UNSAFE: Final = frozenset({"POST", "PUT", "DELETE", "PATCH"})
OPERATOR: Final = Principal(User("amqpctl", ("administrator",)), True)


class AdminServer:
    """Serves the admin API from `start` to `stop`."""

    def __init__(self, broker: Broker, server: ServerControl, whole: ClusterApi | None = None) -> None:
        """whole: the other nodes of its cluster, where it is in one."""
        self._broker = broker
        self._whole = whole
        self._server = server
        self._router = Router(ROUTES)
        self._metrics_router = Router(OPEN_ROUTES)
        self._rates = Rates(broker, server.connections)
        kept_s, path = broker.settings.http.login_session_timeout_s, broker.settings.data_dir / FILE
        self._sessions = LoginSessions(kept_s, path, elsewhere=whole)
        self._doors: list[LimitedHttpServer] = []
        self._runners: list[web.ServerRunner] = []
        self._servers: list[asyncio.AbstractServer] = []
        self._inner_door = LimitedHttpServer(self._from_inner)

    async def start(
        self,
        doors: list[tuple[socket.socket, ssl.SSLContext | None]],
        unix_socket: socket.socket,
        metrics_socket: socket.socket | None = None,
    ) -> None:
        """All listen already; what came meanwhile is answered now. doors: of TCP, the context where it is HTTPS."""
        await self._serve(self._from_unix, unix_socket, None)
        for sock, context in doors:
            await self._serve(self._from_tcp, sock, context)
        if metrics_socket is not None:
            await self._serve(self._from_prometheus, metrics_socket, None)
        self._doors.append(self._inner_door)
        if self._whole is not None:
            self._runners.append(web.ServerRunner(self._inner_door, shutdown_timeout=SHUTDOWN_S))
            await self._runners[-1].setup()
        self._rates.start()

    async def _serve(self, handler: Any, sock: socket.socket, context: ssl.SSLContext | None) -> None:
        door = LimitedHttpServer(handler)
        self._doors.append(door)
        runner = web.ServerRunner(door, shutdown_timeout=SHUTDOWN_S)
        await runner.setup()
        self._runners.append(runner)
        # Not by a site of aiohttp's, which knows no deadline for a TLS handshake.
        server = await asyncio.get_running_loop().create_server(
            door, sock=sock, backlog=BACKLOG, ssl=context, ssl_handshake_timeout=HANDSHAKE_S if context else None
        )
        self._servers.append(server)

    async def stop(self) -> None:
        """Ends what is under way within SHUTDOWN_S; the unix socket goes."""
        self._rates.stop()
        (self._broker.settings.data_dir / NAME).unlink(missing_ok=True)
        for server in self._servers:
            server.close()
        if self._whole is not None:
            self._whole.close()
        await asyncio.gather(*(runner.cleanup() for runner in self._runners))
        await asyncio.to_thread(self._sessions.written)

    # -- the two doors -----------------------------------------------------------------------------------------------

    async def _from_tcp(self, request: web.BaseRequest) -> web.StreamResponse:
        return await self._answer(request)

    async def _from_prometheus(self, request: web.BaseRequest) -> web.StreamResponse:
        """The third: metrics, and nothing else."""
        return await self._answer(request, None, self._metrics_router)

    async def _from_unix(self, request: web.BaseRequest) -> web.StreamResponse:
        if not _is_own_peer(request):
            log.warning("unix socket: refused a peer of another user")
            return _response(ApiResponse(403, b'{"error":"forbidden","reason":"not your broker"}'))
        return await self._answer(request, ForwardedRequest(OPERATOR, ("", 0)))

    async def _from_inner(self, request: web.BaseRequest) -> web.StreamResponse:
        """Of another node of the cluster."""
        if request.path == SESSION_PATH:
            return _response(self._session_of(request))
        if self._whole is not None:
            await self._whole.caught_up(request.headers)
        try:
            by = asked(request.headers, self._broker.auth)
        except ApiError as error:
            return _response(_error_reply(error))
        return await self._answer(request, by)

    def _session_of(self, request: web.BaseRequest) -> ApiResponse:
        """Whose session this node keeps, for a node that has been sent its cookie."""
        digest = request.headers.get(SESSION_DIGEST, "")
        user = self._sessions.kept(digest, self._broker.auth)
        if request.method == "DELETE":
            self._sessions.end(digest)
        return ApiResponse(200, to_json({"user": user or ""}).encode())

    def inner_connection(self) -> web.RequestHandler:
        """What serves a connection that another node has opened and proven."""
        return self._inner_door()

    async def _answer(
        self, request: web.BaseRequest, by: ForwardedRequest | None = None, router: Router | None = None
    ) -> web.StreamResponse:
        """by: who asks, where the door says it. router: where not all of the API is there."""
        for door in self._doors:
            door.asked(request.protocol)
        try:
            reply = await self._reply(request, by, router or self._router)
        except ApiError as error:
            if PAGE_HEADER in request.headers:
                error.headers.pop("WWW-Authenticate", None)
            reply = _error_reply(error)
            self._tell_refusal(request, error)
        except Exception as error:
            translated = _translate(error)
            if translated is None:
                log.exception("admin API: a bug of the broker: %s %r", request.method, request.raw_path)
                translated = ApiError("an error of the broker; its log says more")
            reply = _error_reply(translated)
            self._tell_refusal(request, translated)
            # aiohttp keeps what has ended a body; through these frames it would keep its connection, and itself.
            error.__traceback__ = None
        if isinstance(reply, web.StreamResponse):
            return reply
        if isinstance(reply.body, list) and len(reply.body) > 1:
            return await _stream(request, reply, reply.body)
        if reply.file is not None:
            return LogFileResponse(reply.file, {**_headers(reply), "Content-Type": reply.content_type})
        response = _response(reply)
        if reply.status in (408, 413):
            # The rest of the body is not waited for.
            response.force_close()
        return response

    async def _reply(
        self, request: web.BaseRequest, by: ForwardedRequest | None, router: Router
    ) -> ApiResponse | web.StreamResponse:
        path, _, query_text = request.raw_path.partition("?")
        ORIGIN.set(None)
        if not path.startswith("/"):
            raise BadRequest("the path begins with a slash")
        route, params = router.find(request.method, path)
        by = by or ForwardedRequest(await self._caller(request, route), _peer(request))
        caller = by.caller
        ACTOR.set(CLI if caller.operator else caller.user.name)
        ORIGIN.set(AuditedRequest("amqpctl" if caller.operator else "http", by.peer))
        if not caller.has(route.role):
            raise NotAuthorised(f"Not {route.role.name.lower()} user")
        if NEEDS_APP in request.headers and not self._server.app_running:
            raise AppIsStopped("AMQP is stopped")
        whole = None if by.inner else self._whole
        if request.method in UNSAFE:
            _check_origin(request)
        if whole is not None and (passed := await whole.pass_on(request, route, params, by)) is not None:
            return passed
        body: object = None
        if request.method in UNSAFE:
            body = await parsed(request, await read_body(request), route.definitions)
        try:
            pairs = parse_qsl(query_text, keep_blank_values=True, max_num_fields=64, errors="strict")
        except ValueError:
            raise BadRequest("the query is not UTF-8, or too long") from None
        method, query = _method(request), dict(pairs)
        told = (method, params, query, request.headers, body, pairs, self._sessions)
        call = ApiRequest(self._broker, self._server, self._rates, caller, *told)
        call.part = by.part
        call.cluster = None if self._whole is None else self._whole.control
        handler = route.handler if whole is None else whole.handler(route)
        try:
            if by.inner and self._whole is not None:
                await self._whole.here(route, params, body)
            while True:
                try:
                    reply = await handler(call)
                    self._tell(request, route, caller)
                    await self._recorded()
                    return reply
                # Nothing is changed yet: the request is answered from the start ...
                except DeclarationPending as name:
                    await name.over()  # ... once that name is there, or gone
                except LogNotOpen as waits:
                    await opening_over(waits.destinations)  # ... or once the queues' logs are open, or cannot be
        finally:
            if route.definitions:
                await release(body)

    def _tell(self, request: web.BaseRequest, route: ApiRoute, caller: Principal) -> None:
        """Who has changed what. Nothing secret stands in a path."""
        if request.method in UNSAFE:
            who = "amqpctl" if caller.operator else f"user '{caller.user.name}'"
            about = {"user": caller.user.name, "peer": peer_address(request.transport) or None}
            level = logging.DEBUG if route.quiet else logging.INFO
            shown = f"{request.method} {request.raw_path[:PATH_SHOWN_MAX]}"
            log.log(level, "%s did %s", who, shown, extra=about)
            origin, events = ORIGIN.get(), self._broker.catalogue.events
            if route.messages and events.audit_hook is not None:
                self._broker.audit.message_request(ACTOR.get(), shown.partition("?")[0])
            elif not route.quiet and isinstance(origin, AuditedRequest) and origin.told_count == 0:
                # No event has told what it did.
                events.record(REQUEST, {"name": shown})

    async def _recorded(self) -> None:
        """Returns when the audit log has what this request did on disk, or cannot have it."""
        origin = ORIGIN.get()
        if isinstance(origin, AuditedRequest) and origin.told_count > 0:
            there: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._broker.audit.when_safe(partial(_go_on, there))
            await there

    def _tell_refusal(self, request: web.BaseRequest, error: ApiError) -> None:
        """For the audit log: who is known may not change that."""
        if (
            request.method not in UNSAFE
            or error.status not in (401, 403)
            or not isinstance(ORIGIN.get(), AuditedRequest)
        ):
            return
        if self._broker.catalogue.events.audit_hook is not None:
            shown = f"{request.method} {request.raw_path[:PATH_SHOWN_MAX]}"
            self._broker.audit.refused(ACTOR.get(), shown, error.reason)

    # -- who asks ----------------------------------------------------------------------------------------------------

    async def _caller(self, request: web.BaseRequest, route: ApiRoute) -> Principal:
        if route.role == Role.PUBLIC:
            return Principal(User(""), False)
        auth, peer = self._broker.auth, peer_address(request.transport)
        name, shown = "", {}
        if not route.login_form and "Authorization" not in request.headers:
            token = token_of(request.headers)
            if token and (caller := await self._of_session(request, token, peer)) is not None:
                return caller
            shown = self._shown(request)
        try:
            if shown:
                name = peer_certificate.external_user_name(shown, self._broker.settings.auth)
                user = auth.authenticate_external(name, is_loopback(peer))
            else:
                name, password = await _login_form(request) if route.login_form else _credentials(request)
                user = await auth.authenticate(name, password, is_loopback(peer), peer)
        except AuthenticationRefused as refused:
            log.warning("admin API: login from %s refused: %s", peer, refused.reason)
            self._login(name, peer, refused.reason, shown)
            await asyncio.sleep(auth.failures.delay_s(peer, name))
            raise NotAuthorised("Login failed", REALM) from None
        self._login(name, peer, "", shown)
        return Principal(user, False)

    async def _of_session(self, request: web.BaseRequest, token: str, peer: str) -> Principal | None:
        """Who is logged in by the page's cookie; None: that session is over. Raises: Forbidden."""
        name = await self._sessions.find(token, self._broker.auth)
        if name is None:
            return None
        if request.method in UNSAFE:
            check_header(request.headers)
        try:
            return Principal(self._broker.auth.authenticate_external(name, is_loopback(peer)), False)
        except AuthenticationRefused:
            return None  # a user of loopback addresses alone, from elsewhere

    def _shown(self, request: web.BaseRequest) -> dict[str, Any]:
        """The certificate of a client of HTTPS, where it may stand for a login; empty without."""
        if "EXTERNAL" not in self._broker.settings.auth.mechanisms or request.transport is None:
            return {}
        return request.transport.get_extra_info("peercert") or {}

    def _login(self, name: str, peer: str, error: str, shown: dict[str, Any]) -> None:
        self._broker.auth.attempts.count("http", peer, name, not error)
        if self._broker.catalogue.events.audit_hook is not None:
            self._broker.audit.login(name, peer, error, peer_certificate.tls_info(shown))


def _go_on(there: asyncio.Future[None], _safe: bool) -> None:
    if not there.done():
        there.set_result(None)


def _peer(request: web.BaseRequest) -> tuple[str, int]:
    """Address and port; no address for the unix socket."""
    name = request.transport.get_extra_info("peername") if request.transport is not None else None
    return (str(name[0]), int(name[1])) if isinstance(name, tuple) and len(name) > 1 else ("", 0)


def _credentials(request: web.BaseRequest) -> tuple[str, bytes]:
    """Name and password of basic auth. Raises: NotAuthorised."""
    scheme, _, encoded = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() != "basic":
        raise NotAuthorised("Login failed", REALM)
    try:
        name, colon, password = b64decode(encoded.strip(), validate=True).partition(b":")
        if not colon:
            raise NotAuthorised("Login failed", REALM)
        return name.decode(), password
    except (Base64Error, ValueError):
        raise NotAuthorised("Login failed", REALM) from None


async def _login_form(request: web.BaseRequest) -> tuple[str, bytes]:
    """Name and password of a form. Raises: NotAuthorised, and as `read_body`."""
    _check_origin(request)
    fields = form(await read_body(request))
    if "username" not in fields or "password" not in fields:
        raise NotAuthorised("Login failed", REALM)
    return fields["username"], fields["password"].encode()


def _is_own_peer(request: web.BaseRequest) -> bool:
    """Whether the kernel says that the other end belongs to our user, or to root."""
    sock = request.transport.get_extra_info("socket") if request.transport is not None else None
    if sock is None:
        return False
    with socket.socket(fileno=os.dup(sock.fileno())) as own:
        credentials = own.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    _, uid, _ = struct.unpack("3i", credentials)
    return uid in (0, os.geteuid())


# -- what it brings --------------------------------------------------------------------------------------------------


def _method(request: web.BaseRequest) -> str:
    return "GET" if request.method == "HEAD" else request.method


def _check_origin(request: web.BaseRequest) -> None:
    """A browser says where a request comes from; a page of another site may not change anything. Raises: Forbidden."""
    if request.headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin"):
        raise Forbidden("requests from another site are not accepted")
    origin = request.headers.get("Origin")
    if origin is None:
        return
    try:
        ours = urlsplit(origin).netloc.lower() == request.headers.get("Host", "").lower()
    except ValueError:
        ours = False  # what is no URL is no page of ours
    if not ours:
        raise Forbidden("requests from another site are not accepted")


# -- what it gets ----------------------------------------------------------------------------------------------------


def _translate(error: Exception) -> ApiError | None:
    """What broker, auth and codec raise, in the API's words; None: a bug."""
    if isinstance(error, NotFound):
        return ResourceNotFound(error.text)
    if isinstance(error, AccessRefused):
        return NotAuthorised(error.reply_text)
    if isinstance(error, ResourceError):
        return Unavailable(error.text)
    if isinstance(error, OSError):
        log.error("admin API: %s", error)
        return Unavailable(str(error.strerror))
    if isinstance(error, AmqpError):
        return BadRequest(error.text)
    if isinstance(error, NoSuchUser | NoSuchVhost):
        return ResourceNotFound(str(error))
    if isinstance(error, AuthError | InvalidPattern | CodecError):
        return BadRequest(str(error))
    if isinstance(error, UnicodeEncodeError):
        return BadRequest("a text in the request is not UTF-8")
    if isinstance(error, MetadataError):
        log.error("admin API: %s", error)
        return Unavailable("the metadata cannot be written")
    return None


def _error_reply(error: ApiError) -> ApiResponse:
    """RabbitMQ: the body of a 404 is always the same text, and clients compare it. Ours says more in `detail`."""
    told = {"error": error.error, "reason": error.reason}
    if isinstance(error, ResourceNotFound) and error.reason != ResourceNotFound.text:
        told = {"error": error.error, "reason": ResourceNotFound.text, "detail": error.reason}
    return ApiResponse(error.status, to_json(told).encode(), headers=error.headers)


def _headers(reply: ApiResponse) -> dict[str, str]:
    headers = {**HEADERS, **reply.headers}
    if reply.body is not None:
        headers["Content-Type"] = reply.content_type
    return headers


def _response(reply: ApiResponse) -> web.Response:
    body = b"".join(reply.body) if isinstance(reply.body, list) else reply.body
    return web.Response(status=reply.status, body=body, headers=_headers(reply))


async def _stream(request: web.BaseRequest, reply: ApiResponse, chunks: list[bytes]) -> web.StreamResponse:
    """A large answer, as fast as its reader takes it. A reader that goes away or stops ends it."""
    response = web.StreamResponse(status=reply.status, headers=_headers(reply))
    response.content_length = sum(map(len, chunks))
    try:
        async with asyncio.timeout(WRITE_WAIT_S):
            await response.prepare(request)
            if request.method != "HEAD":
                for chunk in chunks:
                    await response.write(chunk)
                    await asyncio.sleep(0)
            await response.write_eof()
    except (TimeoutError, ConnectionError):
        log.info("admin API: the reader of %s went away or did not read", request.raw_path[:200])
        response.force_close()
        if request.transport is not None:
            request.transport.abort()
    return response
