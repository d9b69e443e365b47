"""The HTTP servers of the API: HTTP and HTTPS with basic auth, the unix socket, and the metrics port.

The unix socket is for the operator and needs no password: it has mode 0600, and the kernel must report the broker's
user or root as the peer. Each listener has its own entry function, so no header can make a request look as if it came
from another listener.

A request passes these steps: find the route, authenticate the caller, check the role, check the origin (other sites
may not change anything), read and count the body, call the handler, respond. One place translates errors to
RabbitMQ's JSON. No request may cause a 500: a 500 is a bug and is logged with a traceback.

aiohttp runs on the broker's event loop. Long answers are made in slices (`listing`). An address may have
CONNECTIONS_PER_PEER_MAX connections, and each must send its first request within HEADER_WAIT_S. Addresses of one IPv6
/64 count together.
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
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from aiohttp import http_exceptions, web

from amqpd.auth.internal_backend import AuthenticationRefused, AuthError, NoSuchUser, NoSuchVhost, User
from amqpd.auth.login_throttle import network
from amqpd.auth.patterns import InvalidPattern
from amqpd.broker.audit import REQUEST, AuditedRequest
from amqpd.broker.consumer import LogNotOpen
from amqpd.broker.events import ACTOR, CLI, ORIGIN
from amqpd.broker.queue.log_opener import opening_over
from amqpd.broker.vhost.limits import InvalidLimits
from amqpd.broker.vhost.parameters import InvalidParameter
from amqpd.broker.vhost.pending import DeclarationPending
from amqpd.broker.vhost.policy_table import InvalidPolicy
from amqpd.broker.vhost.vhosts import ProtectedVhost
from amqpd.connection import peer_certificate
from amqpd.errors import AccessRefused, AmqpError, NotFound, ResourceError
from amqpd.listeners import HTTP_BACKLOG, UNKNOWN_HOST, is_loopback
from amqpd.management.cluster_gateway import (
    SESSION_DIGEST,
    SESSION_PATH,
    ClusterApi,
    ForwardedRequest,
    read_forwarded_request,
)
from amqpd.management.collectors import OPEN_ROUTES
from amqpd.management.file_response import LogFileResponse
from amqpd.management.json_body import FORM_BYTES_MAX, BodyMemory, parse_body, parse_form, read_body
from amqpd.management.request import (
    ApiError,
    ApiRequest,
    ApiResponse,
    AppIsStopped,
    BadRequest,
    Forbidden,
    LineTooLong,
    LoginFailed,
    NoSuchNode,
    NotAuthorised,
    NotMoved,
    Principal,
    ResourceExists,
    ResourceNotFound,
    Role,
    Unavailable,
    to_json,
)
from amqpd.management.router import ApiRoute, Router
from amqpd.management.routes import ROUTES
from amqpd.management.sessions import FILE, LoginSessions, token_of
from amqpd.management.stats import Rates
from amqpd.management.time_slice import free_in_slices
from amqpd.management.ui import PAGE_HEADER, USER_HEADER, check_header
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
# After an error response, the server reads and drops the rest of the body for this time, so that the client sees the
# response.
LINGER_S: Final = 2.0
WRITE_WAIT_S: Final = 60.0
CONNECTIONS_PER_PEER_MAX: Final = 256
LINE_SIZE_MAX: Final = 8190
"""Maximum bytes of a path with its query, and of a header. aiohttp: its default."""
# At most one log line in this time for clients with too many connections.
WARN_INTERVAL_S: Final = 60.0
HEADERS: Final = {
    "Server": "amqpd",
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
}
"""Headers of every response."""


class HttpConnection(web.RequestHandler):
    """One HTTP connection. Bytes that are not HTTP end it.

    Then the traceback must be dropped. It refers to the connection, which refers to its last message and thus to the
    error, and the garbage collector rarely runs.
    """

    __slots__ = ()

    def handle_error(
        self, request: web.BaseRequest, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> web.StreamResponse:
        """Answer without aiohttp's page, which shows what the client sent, and aiohttp's name in a header."""
        try:
            super().handle_error(request, status, exc, message)
            if isinstance(exc, http_exceptions.LineTooLong):
                found: ApiError = LineTooLong(f"the path or a header has more than {LINE_SIZE_MAX} bytes")
            elif status < 500:
                found = BadRequest("the request is not HTTP")
            else:
                found = ApiError("an error of the broker; see its log")
            body = to_json({"error": found.error, "reason": found.reason}).encode()
            answer = web.Response(
                status=found.status, body=body, headers={**HEADERS, "Content-Type": "application/json"}
            )
            answer.force_close()
            return answer
        finally:
            if exc is not None:
                exc.__traceback__ = None


class LimitedHttpServer(web.Server):
    """A server that limits connections per address and the wait for the first request."""

    def __init__(self, handler: Any) -> None:
        super().__init__(
            handler,
            access_log=None,
            keepalive_timeout=KEEPALIVE_S,
            lingering_time=LINGER_S,
            logger=_protocol_log(),
            auto_decompress=False,
            max_line_size=LINE_SIZE_MAX,
            max_field_size=LINE_SIZE_MAX,
        )
        self._first: dict[web.RequestHandler, asyncio.TimerHandle] = {}
        self._peers: dict[web.RequestHandler, str] = {}
        self._counts: dict[str, int] = {}
        self._warned_at = -WARN_INTERVAL_S

    def __call__(self) -> web.RequestHandler:
        return HttpConnection(self, loop=asyncio.get_running_loop(), **self._kwargs)

    def connection_made(self, handler: web.RequestHandler, transport: asyncio.Transport) -> None:
        super().connection_made(handler, transport)
        loop = asyncio.get_running_loop()
        peer = network(peer_address(transport))
        count = self._counts.get(peer, 0) + 1
        self._counts[peer] = count
        self._peers[handler] = peer
        _limit_unread(transport)
        if peer and count > CONNECTIONS_PER_PEER_MAX:
            # Later, because aiohttp continues to set up the connection after this call.
            loop.call_soon(transport.abort)
            if loop.time() - self._warned_at >= WARN_INTERVAL_S:
                self._warned_at = loop.time()
                log.warning("admin API: %s has %d connections; further ones are closed", peer, CONNECTIONS_PER_PEER_MAX)
            return
        self._first[handler] = loop.call_later(HEADER_WAIT_S, handler.force_close)

    def on_request(self, handler: web.RequestHandler) -> None:
        """Stop the timer of a connection, because it has sent a request."""
        timer = self._first.pop(handler, None)
        if timer is not None:
            timer.cancel()

    def connection_lost(self, handler: web.RequestHandler, exc: BaseException | None = None) -> None:
        self.on_request(handler)
        peer = self._peers.pop(handler, None)
        if peer is not None:
            left = self._counts[peer] - 1
            if left:
                self._counts[peer] = left
            else:
                del self._counts[peer]
        super().connection_lost(handler, exc)


def _limit_unread(transport: asyncio.Transport) -> None:
    """Let the kernel reset the connection if the client reads nothing of its answers for WRITE_WAIT_S."""
    sock = transport.get_extra_info("socket")
    if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(WRITE_WAIT_S * 1000))


def peer_address(transport: asyncio.BaseTransport | None) -> str:
    """Return the address of the peer; empty for a unix socket, or if the client has reset the connection."""
    peer = transport.get_extra_info("peername") if transport is not None else None
    return str(peer[0]) if isinstance(peer, tuple) and peer else ""


def _protocol_log() -> logging.Logger:
    """Return aiohttp's logger for bytes that are not HTTP: one line each, without a traceback."""
    logger = log.getChild("protocol")
    logger.addFilter(_without_traceback)
    return logger


def _without_traceback(record: logging.LogRecord) -> bool:
    if record.exc_info is not None:
        record.msg, record.args = "not HTTP: %s", (repr(record.exc_info[1])[:200],)
        record.exc_info = None
        record.levelno, record.levelname = logging.WARNING, "WARNING"
    return True


SHUTDOWN_S: Final = 1.0
# amqpctl sends this header with commands that RabbitMQ's CLI rejects after stop_app.
NEEDS_APP: Final = "Amqpd-Needs-App"
PATH_SHOWN_MAX: Final = 500
INVALID: Final = (AuthError, CodecError, InvalidLimits, InvalidParameter, InvalidPattern, InvalidPolicy, NoSuchNode)
"""Errors of a request whose text is the reason of a 400."""
UNSAFE: Final = frozenset({"POST", "PUT", "DELETE", "PATCH"})
OPERATOR: Final = Principal(User("amqpctl", ("administrator",)), True)


class AdminServer:
    """The servers of the HTTP API, on all listeners."""

    def __init__(self, broker: Broker, server: ServerControl, cluster_api: ClusterApi | None = None) -> None:
        """`cluster_api` reaches the other nodes of a cluster; None outside a cluster."""
        self._broker = broker
        self._cluster_api = cluster_api
        self._server = server
        self._router = Router(ROUTES)
        self._metrics_router = Router(OPEN_ROUTES)
        self._rates = Rates(broker, server.connections)
        timeout_s, path = broker.settings.http.login_session_timeout_s, broker.settings.data_dir / FILE
        self._sessions = LoginSessions(timeout_s, path, remote=cluster_api)
        self._bodies = BodyMemory()
        self._http_servers: list[LimitedHttpServer] = []
        self._runners: list[web.ServerRunner] = []
        self._servers: list[asyncio.AbstractServer] = []
        self._inner_server = LimitedHttpServer(self._from_inner)

    async def start(
        self,
        tcp_sockets: list[tuple[socket.socket, ssl.SSLContext | None]],
        unix_socket: socket.socket,
        metrics_socket: socket.socket | None = None,
    ) -> None:
        """Start to answer on sockets that listen already.

        Args:
            tcp_sockets: with a TLS context for HTTPS.
        """
        await self._serve(self._from_unix, unix_socket, None)
        for sock, context in tcp_sockets:
            await self._serve(self._answer, sock, context)
        if metrics_socket is not None:
            await self._serve(self._from_prometheus, metrics_socket, None)
        self._http_servers.append(self._inner_server)
        if self._cluster_api is not None:
            self._runners.append(web.ServerRunner(self._inner_server, shutdown_timeout=SHUTDOWN_S))
            await self._runners[-1].setup()
        self._rates.start()

    async def _serve(self, handler: Any, sock: socket.socket, context: ssl.SSLContext | None) -> None:
        http_server = LimitedHttpServer(handler)
        self._http_servers.append(http_server)
        runner = web.ServerRunner(http_server, shutdown_timeout=SHUTDOWN_S)
        await runner.setup()
        self._runners.append(runner)
        # Not through a site of aiohttp, which cannot limit the time of a TLS handshake.
        server = await asyncio.get_running_loop().create_server(
            http_server,
            sock=sock,
            backlog=HTTP_BACKLOG,
            ssl=context,
            ssl_handshake_timeout=HANDSHAKE_S if context else None,
        )
        self._servers.append(server)

    async def stop(self) -> None:
        """Stop within SHUTDOWN_S, also if requests are running."""
        self._rates.stop()
        for server in self._servers:
            server.close()
        if self._cluster_api is not None:
            self._cluster_api.close()
        await asyncio.gather(*(runner.cleanup() for runner in self._runners))
        await asyncio.to_thread(self._sessions.wait_saved)

    # -- entry functions of the listeners ------------------------------------------------------------------------------

    async def _from_prometheus(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer on the port that serves only metrics."""
        return await self._answer(request, None, self._metrics_router)

    async def _from_unix(self, request: web.BaseRequest) -> web.StreamResponse:
        if not _is_own_peer(request):
            log.warning("unix socket: refused a peer of another user")
            return _response(ApiResponse(403, b'{"error":"forbidden","reason":"the broker belongs to another user"}'))
        return await self._answer(request, ForwardedRequest(OPERATOR, ("", 0)))

    async def _from_inner(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer a request that another node of the cluster has forwarded."""
        if request.path == SESSION_PATH:
            return _response(self._session_of(request))
        if self._cluster_api is not None:
            await self._cluster_api.wait_for_position(request.headers)
        try:
            by = read_forwarded_request(request.headers, self._broker.auth)
        except ApiError as error:
            return _response(_error_reply(error))
        return await self._answer(request, by)

    def _session_of(self, request: web.BaseRequest) -> ApiResponse:
        """Return the user of a session on this node, for a node that received its cookie."""
        digest = request.headers.get(SESSION_DIGEST, "")
        user = self._sessions.user_of_digest(digest, self._broker.auth)
        if request.method == "DELETE":
            self._sessions.end_by_digest(digest)
        return ApiResponse(200, to_json({"user": user or ""}).encode())

    def inner_connection(self) -> web.RequestHandler:
        """Return the protocol object for an authenticated connection of another node."""
        return self._inner_server()

    async def _answer(
        self, request: web.BaseRequest, by: ForwardedRequest | None = None, router: Router | None = None
    ) -> web.StreamResponse:
        """Answer a request.

        Args:
            by: the caller, if the listener determines it.
            router: the routes of this listener, if not all.
        """
        for http_server in self._http_servers:
            http_server.on_request(request.protocol)
        try:
            reply = await self._reply(request, by, router or self._router)
        except Exception as error:
            refused = error if isinstance(error, ApiError) else _translate(error)
            if refused is None:
                log.exception("admin API: a bug in amqpd, please report it: %s %r", request.method, request.raw_path)
                refused = ApiError("an error of the broker; see its log")
            if PAGE_HEADER in request.headers:
                refused.headers.pop("WWW-Authenticate", None)
            reply = _error_reply(refused)
            self._audit_refusal(request, refused)
            # aiohttp keeps the exception of a body. Its frames would keep the connection alive.
            error.__traceback__ = None
        finally:
            self._bodies.release(request)
        if isinstance(reply, web.StreamResponse):
            return reply
        if isinstance(reply.body, list) and len(reply.body) > 1:
            return await _stream(request, reply, reply.body)
        if reply.file is not None:
            headers = {**_headers(reply), "Content-Type": reply.content_type}
            return LogFileResponse(reply.file, headers, compresses=reply.compresses)
        response = _response(reply)
        if reply.status in (408, 413):
            # Do not wait for the rest of the body.
            response.force_close()
        return response

    async def _reply(
        self, request: web.BaseRequest, by: ForwardedRequest | None, router: Router
    ) -> ApiResponse | web.StreamResponse:
        path, _, query_text = request.raw_path.partition("?")
        ORIGIN.set(None)
        if not path.startswith("/"):
            raise BadRequest("the path must begin with a slash")
        route, params = router.find(request.method, path)
        by = by or ForwardedRequest(await self._authenticate(request, route), _peer(request))
        caller = by.caller
        ACTOR.set(CLI if caller.operator else caller.user.name)
        ORIGIN.set(AuditedRequest("amqpctl" if caller.operator else "http", by.peer))
        if not caller.has(route.role):
            raise NotAuthorised(f"Not {route.role.name.lower()} user")
        if NEEDS_APP in request.headers and not by.inner and not self._server.app_running:
            raise AppIsStopped("AMQP is stopped")
        cluster_api = None if by.inner else self._cluster_api
        if request.method in UNSAFE:
            _check_origin(request)
        if cluster_api is not None and (forwarded := await cluster_api.forward(request, route, params, by)) is not None:
            return forwarded
        body: object = None
        if request.method in UNSAFE:
            memory = None if caller.operator else self._bodies
            body = await parse_body(request, await read_body(request, memory=memory), route.definitions)
        try:
            pairs = parse_qsl(query_text, keep_blank_values=True, max_num_fields=64, errors="strict")
        except ValueError:
            raise BadRequest("the query is not UTF-8, or too long") from None
        method = "GET" if request.method == "HEAD" else request.method
        fields = (method, params, dict(pairs), request.headers, body, pairs, self._sessions)
        control = None if self._cluster_api is None else self._cluster_api.control
        call = ApiRequest(self._broker, self._server, self._rates, caller, *fields, cluster=control, part=by.part)
        handler = route.handler if cluster_api is None else cluster_api.handler(route)
        try:
            if by.inner and self._cluster_api is not None:
                await self._cluster_api.wait_until_owner(route, params, body)
            while True:
                try:
                    reply = await handler(call)
                    self._log_change(request, route, caller)
                    await self._wait_audited()
                    return reply
                # Nothing has changed yet, so the handler is called again ...
                except DeclarationPending as name:
                    await name.wait_in_task()  # ... once the name is created or deleted
                except LogNotOpen as waits:
                    await opening_over(waits.destinations)  # ... or once the logs are open or have failed
        finally:
            if route.definitions:
                await free_in_slices(body)

    def _log_change(self, request: web.BaseRequest, route: ApiRoute, caller: Principal) -> None:
        """Log a change with its caller, and report it to the audit log. Paths contain no secrets."""
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
                # The request has caused no event of its own.
                events.record(REQUEST, {"name": shown})

    async def _wait_audited(self) -> None:
        """Wait until the audit log has stored the events of this request, or has failed."""
        origin = ORIGIN.get()
        if isinstance(origin, AuditedRequest) and origin.told_count > 0:
            stored: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._broker.audit.when_safe(partial(_resolve, stored))
            await stored

    def _audit_refusal(self, request: web.BaseRequest, error: ApiError) -> None:
        """Report to the audit log that an authenticated user was refused a change."""
        if (
            request.method not in UNSAFE
            or error.status not in (401, 403)
            or not isinstance(ORIGIN.get(), AuditedRequest)
        ):
            return
        if self._broker.catalogue.events.audit_hook is not None:
            shown = f"{request.method} {request.raw_path[:PATH_SHOWN_MAX]}"
            self._broker.audit.refused(ACTOR.get(), shown, error.reason)

    # -- authentication ------------------------------------------------------------------------------------------------

    async def _authenticate(self, request: web.BaseRequest, route: ApiRoute) -> Principal:
        if route.role == Role.PUBLIC:
            return Principal(User(""), False)
        auth, peer = self._broker.auth, peer_address(request.transport)
        name, shown = "", {}
        if not route.login_form and "Authorization" not in request.headers:
            token = token_of(request.headers)
            if token and (caller := await self._session_caller(request, token, peer)) is not None:
                return caller
            shown = self._certificate(request)
        try:
            if shown:
                name = peer_certificate.external_user_name(shown, self._broker.settings.auth)
                user = auth.authenticate_external(name, is_loopback(peer))
            else:
                name, password = await _login_form(request) if route.login_form else _credentials(request)
                user = await auth.authenticate(name, password, is_loopback(peer), peer)
        except AuthenticationRefused as refused:
            log.warning("admin API: login from %s refused: %s", peer or UNKNOWN_HOST, refused.reason)
            self._login(name, peer, refused.reason, shown)
            await asyncio.sleep(auth.failure_backoff.record_failure(peer, name))
            raise LoginFailed from None
        self._login(name, peer, "", shown)
        return Principal(user, False)

    async def _session_caller(self, request: web.BaseRequest, token: str, peer: str) -> Principal | None:
        """Return the user of the page's cookie, or None if the session has ended.

        Raises: Forbidden; LoginFailed if the tab of the request shows another user.
        """
        name = await self._sessions.find(token, self._broker.auth)
        if name is None:
            return None
        if unquote(request.headers.get(USER_HEADER, quote(name))) != name:
            raise LoginFailed
        if request.method in UNSAFE:
            check_header(request.headers)
        try:
            return Principal(self._broker.auth.authenticate_external(name, is_loopback(peer)), False)
        except AuthenticationRefused:
            return None  # a user that may log in only from loopback addresses

    def _certificate(self, request: web.BaseRequest) -> dict[str, Any]:
        """Return the client's TLS certificate if it may serve as a login, else {}."""
        if "EXTERNAL" not in self._broker.settings.auth.mechanisms or request.transport is None:
            return {}
        return request.transport.get_extra_info("peercert") or {}

    def _login(self, name: str, peer: str, error: str, shown: dict[str, Any]) -> None:
        self._broker.auth.login_stats.count_login("http", peer, name, not error)
        if self._broker.catalogue.events.audit_hook is not None:
            self._broker.audit.login(name, peer, error, peer_certificate.tls_info(shown))


def _resolve(stored: asyncio.Future[None], _safe: bool) -> None:
    if not stored.done():
        stored.set_result(None)


def _peer(request: web.BaseRequest) -> tuple[str, int]:
    """Return address and port; the address is empty for the unix socket."""
    name = request.transport.get_extra_info("peername") if request.transport is not None else None
    return (str(name[0]), int(name[1])) if isinstance(name, tuple) and len(name) > 1 else ("", 0)


def _credentials(request: web.BaseRequest) -> tuple[str, bytes]:
    """Return name and password of basic auth. Raises: LoginFailed."""
    scheme, _, encoded = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() != "basic":
        raise LoginFailed
    try:
        name, colon, password = b64decode(encoded.strip(), validate=True).partition(b":")
        if not colon:
            raise LoginFailed
        return name.decode(), password
    except (Base64Error, ValueError):
        raise LoginFailed from None


async def _login_form(request: web.BaseRequest) -> tuple[str, bytes]:
    """Return name and password of a form. Raises: LoginFailed, and as `read_body`."""
    _check_origin(request)
    fields = parse_form(await read_body(request, FORM_BYTES_MAX))
    if "username" not in fields or "password" not in fields:
        raise LoginFailed
    return fields["username"], fields["password"].encode()


def _is_own_peer(request: web.BaseRequest) -> bool:
    """Return whether the kernel reports our user or root as the peer."""
    sock = request.transport.get_extra_info("socket") if request.transport is not None else None
    if sock is None:
        return False
    with socket.socket(fileno=os.dup(sock.fileno())) as own:
        credentials = own.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    _, uid, _ = struct.unpack("3i", credentials)
    return uid in (0, os.geteuid())


# -- request -----------------------------------------------------------------------------------------------------------


def _check_origin(request: web.BaseRequest) -> None:
    """Reject changes from another site's page, as far as the browser reports the origin. Raises: Forbidden."""
    if request.headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin"):
        raise Forbidden("requests from another site are not accepted")
    origin = request.headers.get("Origin")
    if origin is None:
        return
    try:
        ours = urlsplit(origin).netloc.lower() == request.headers.get("Host", "").lower()
    except ValueError:
        ours = False  # not a URL, so not our page
    if not ours:
        raise Forbidden("requests from another site are not accepted")


# -- response ----------------------------------------------------------------------------------------------------------


def _translate(error: Exception) -> ApiError | None:
    """Translate an exception of broker, auth or codec. Return None for an unknown one, which is a bug."""
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
    if isinstance(error, ProtectedVhost):
        return ResourceExists(str(error))
    if isinstance(error, NotMoved):
        return Unavailable(str(error))
    if isinstance(error, INVALID):
        return BadRequest(str(error))
    if isinstance(error, UnicodeEncodeError):
        return BadRequest("a text in the request is not UTF-8")
    if isinstance(error, MetadataError):
        log.error("admin API: %s", error)
        return Unavailable("the metadata database cannot be written")
    return None


def _error_reply(error: ApiError) -> ApiResponse:
    """Return the response of an error. RabbitMQ: a 404 always has the same reason, which clients compare.

    The actual reason of a 404 is in `detail`, which RabbitMQ does not have.
    """
    fields = {"error": error.error, "reason": error.reason}
    if isinstance(error, ResourceNotFound) and error.reason != ResourceNotFound.text:
        fields = {"error": error.error, "reason": ResourceNotFound.text, "detail": error.reason}
    return ApiResponse(error.status, to_json(fields).encode(), headers=error.headers)


def _headers(reply: ApiResponse) -> dict[str, str]:
    headers = {**HEADERS, **reply.headers}
    if reply.body is not None:
        headers["Content-Type"] = reply.content_type
    return headers


def _response(reply: ApiResponse) -> web.Response:
    body = b"".join(reply.body) if isinstance(reply.body, list) else reply.body
    return web.Response(status=reply.status, body=body, headers=_headers(reply))


async def _stream(request: web.BaseRequest, reply: ApiResponse, chunks: list[bytes]) -> web.StreamResponse:
    """Send a large body as fast as the client reads it.

    If the client leaves or stops reading, the connection is aborted.
    """
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
        log.info("admin API: the client of %s disconnected or did not read", request.raw_path[:200])
        response.force_close()
        if request.transport is not None:
            request.transport.abort()
    return response
