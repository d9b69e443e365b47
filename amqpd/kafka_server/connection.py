"""One socket of a Kafka client.

Requests are handled in the order in which they arrive, and so are the replies sent: a reply that waits, for a sync or
for new records, holds back the ones after it. A connection reads on meanwhile, until REQUESTS_MAX requests wait.

Handlers run in the call of the event loop that received the request. A handler that must wait keeps the `Call`, and
calls `reply` later; only logins and changes of users have tasks (`start_task`). A handler with much work returns steps
(pace.py), and the connection handles no further request until they are done.

Before the login a client may send ApiVersions, SaslHandshake and SaslAuthenticate. A client that sends another request
is logged in as the user of its TLS certificate or as `kafka.anonymous_user`. So is a client that has sent only
ApiVersions, after `amqp.handshake_timeout_s`; librdkafka keeps such connections. A client that has sent nothing, or not
finished its login, is disconnected then.

What cannot be read closes the connection with a log line, as Kafka does: the protocol has no error for it.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from amqpd.broker.events import KAFKA_PROTOCOL
from amqpd.broker.flow.timers import CallTimer
from amqpd.connection import peer_certificate
from amqpd.kafka_server import errors
from amqpd.kafka_server.message_schema import decode_steps, encode_steps
from amqpd.kafka_server.messages import (
    API_VERSIONS,
    MalformedRequest,
    RequestHeader,
    api_types,
    frame_of,
    read_header,
)
from amqpd.kafka_server.pace import Steps
from amqpd.kafka_server.request_reader import RequestReader
from amqpd.listeners import address_or_unknown

if TYPE_CHECKING:
    from amqpd.broker.session import Session
    from amqpd.kafka_server.server import KafkaServer

log = logging.getLogger(__name__)

REQUESTS_MAX: Final = 64
# Largest request before the login.
LOGIN_BYTES_MAX: Final = 65536
# Largest request except Produce.
DECODED_BYTES_MAX: Final = 1 << 20
# Limits of the transport's write buffer.
WRITE_HIGH_BYTES: Final = 1 << 20
WRITE_LOW_BYTES: Final = 256 * 1024

CLOSE_WAIT_S: Final = 3.0
"""Time for a client to read what is left when its connection is closed."""
IDLE_MS: Final = 600_000
"""A client that sends nothing for so long is disconnected, as by Kafka (connections.max.idle.ms)."""
STALL_MS: Final = 60_000
"""A client that sends nothing for so long within a request is disconnected."""
_PRODUCE: Final = 0
TIME_BOUNDS_S: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)
"""Upper bounds of the buckets of `RequestTimes`."""

_TLS_HANDSHAKE: Final = b"\x16\x03"
_INT32: Final = struct.Struct(">i")
_INT16: Final = struct.Struct(">h")


class RequestTimes:
    """Times of the requests of one API.

    Attributes:
        counts: by bucket, one more than TIME_BOUNDS_S.
    """

    __slots__ = ("counts", "total_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(TIME_BOUNDS_S) + 1)
        self.total_s = 0.0


class RequestStats:
    """Counters of all connections, closed ones included. They only rise.

    Attributes:
        by_api: name of the API -> its times. An API without a request is missing.
    """

    def __init__(self) -> None:
        self.received_bytes = 0
        self.sent_bytes = 0
        self.by_api: dict[str, RequestTimes] = {}

    def on_answered(self, api: str, took_s: float) -> None:
        """Count a request. took_s: from its arrival to its answer, with the wait of Fetch and JoinGroup."""
        times = self.by_api.get(api)
        if times is None:
            times = self.by_api[api] = RequestTimes()
        times.counts[bisect_left(TIME_BOUNDS_S, took_s)] += 1
        times.total_s += took_s


class Api(NamedTuple):
    """A request that the broker understands.

    Attributes:
        first, last: its versions.
        flexible: the first version whose header has tagged fields.
        handle: called for each request; returns steps if it has much work.
        request, response: kafka-python's types; None if the handler reads and writes the bytes itself.
        before_login: allowed without a login.
    """

    key: int
    name: str
    first: int
    last: int
    flexible: int
    handle: Callable[[Call], Steps[None] | None]
    request: Any = None
    response: Any = None
    before_login: bool = False


def typed_api(
    key: int,
    name: str,
    first: int,
    last: int,
    flexible: int,
    handle: Callable[[Call], Steps[None] | None],
    before_login: bool = False,
) -> Api:
    """Return an API whose bodies are decoded and encoded by the definitions of its name."""
    return Api(key, name, first, last, flexible, handle, *api_types(name), before_login)


class Call:
    """A request, until its reply is sent.

    Attributes:
        request: the decoded body; None if the API has no type.
        frame: the whole request without its length, for handlers that decode it themselves.
        is_done: it is answered; the reply may wait for those before it.
    """

    __slots__ = ("_begun_s", "_reply", "api", "connection", "frame", "header", "is_done", "request")

    def __init__(self, connection: KafkaClientConnection, api: Api, header: RequestHeader, frame: bytes) -> None:
        self.connection = connection
        self.api = api
        self.header = header
        self.frame = frame
        self.request: Any = None
        self._begun_s = time.monotonic()
        self.is_done = False
        self._reply: tuple[bytes, ...] = ()

    @property
    def version(self) -> int:
        return self.header.version

    @property
    def is_flexible(self) -> bool:
        """Return whether the headers of request and response have tagged fields."""
        return self.header.version >= self.api.flexible

    @property
    def session(self) -> Session:
        """Return the session of a client that is logged in."""
        session = self.connection.session
        assert session is not None
        return session

    def reply(self, fields: Mapping[str, Any]) -> None:
        """Answer with these fields of the response's body. Fields that are missing have their defaults."""
        self.connection.server.pace.run(self.connection, self._reply_steps(fields))

    def _reply_steps(self, fields: Mapping[str, Any]) -> Steps[None]:
        self.reply_bytes((yield from encode_steps(self.api.response, self.header.version, self.is_flexible, fields)))

    def reply_bytes(self, *parts: bytes) -> None:
        """Answer with an encoded body, in parts."""
        # The header of an ApiVersions response never has tagged fields.
        tags = b"\0" if self.is_flexible and self.api.key != API_VERSIONS else b""
        self._finish((frame_of(self.header.correlation_id, tags, *parts),))

    def reply_token(self, token: bytes) -> None:
        """Answer with a message of SASL, without a header."""
        self._finish((_INT32.pack(len(token)), token))

    def reply_nothing(self) -> None:
        """End the call without an answer (Produce with acks 0)."""
        self._finish(())

    def _finish(self, reply: tuple[bytes, ...]) -> None:
        if not self.is_done:
            self.is_done = True
            self._reply = reply
            self.frame = b""
            self.request = None
            self.connection.server.stats.on_answered(self.api.name, time.monotonic() - self._begun_s)
            self.connection.on_reply()

    @property
    def is_sent(self) -> bool:
        """Return whether the connection has written the reply to its transport."""
        return self.is_done and not self._reply

    def take_reply(self) -> tuple[bytes, ...]:
        """Return the parts of the reply, once."""
        reply, self._reply = self._reply, ()
        return reply


class KafkaClientConnection(asyncio.Protocol):
    """One client.

    Attributes:
        session: None before the login.
        name: for logs and lists, as of AMQP connections.
        local: host and port to which the client has connected.
        received_bytes, sent_bytes: so far.
        has_waited: it was throttled until now, and has sent no Fetch since.
        mechanism: of the login; "" for an anonymous client.
        sasl: state of the SASL exchange, for sasl.py.
        token_api: handles the frames until the login, which are messages of SASL without headers (SaslHandshake 0).
        on_close: calls for the end.
        when_unblocked: called when the resource alarm ends for which the Produce at hand waits.
    """

    def __init__(self, server: KafkaServer, tls: bool) -> None:
        self.server = server
        self.tls = tls
        self.session: Session | None = None
        self.name = ""
        self.client_id = ""
        self.peer: tuple[str, int] = ("", 0)
        self.local: tuple[str, int] = ("", 0)
        self.closed = False
        self.mechanism = ""
        self.sasl: object = None
        self.token_api: Api | None = None
        self.on_close: list[Callable[[], None]] = []
        self.when_unblocked: Callable[[], None] | None = None
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._calls: deque[Call] = deque()
        self._has_asked = False
        self._reading = True
        self._held = False  # by the server: an alarm
        self._work_count = 0  # requests and answers with steps left
        self._is_waiting = False  # for its turn
        self._write_paused = False
        self._login_timer: asyncio.TimerHandle | None = None
        self._certificate: dict[str, Any] = {}
        self._ends = False
        self.received_bytes = 0
        self.sent_bytes = 0
        self.connected_at = server.broker.wall_time()
        # Unfinished requests: the bytes last reported, and a number that is different for each request.
        self._reported_bytes = 0
        self._request_number = 1
        self._bodies_paused = False
        self._read_at_ms = 0
        self._silence_timer = CallTimer(self._on_silence)
        self._throttled = self.has_waited = False  # above a quota
        self._throttle_timer = CallTimer(self._end_throttle)

    # -- asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(WRITE_HIGH_BYTES, WRITE_LOW_BYTES)
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.peer = address_or_unknown(transport.get_extra_info("peername"))
        self.local = address_or_unknown(transport.get_extra_info("sockname"))
        self.name = f"{self.peer[0]}:{self.peer[1]} -> {self.local[0]}:{self.local[1]}"
        timeout_s = self.server.broker.settings.amqp.handshake_timeout_s
        self._login_timer = self.server.broker.loop.call_later(timeout_s, self._no_login)
        self._certificate = transport.get_extra_info("peercert") or {}
        timers = self.server.broker.timers
        self._read_at_ms = timers.now_ms()
        timers.arm(self._silence_timer, self._read_at_ms + IDLE_MS)
        self.server.connections.add(self)
        self.server.unopened.add(self)
        self.server.malloc_trimmer.on_opened()

    def peer_certificate(self) -> dict[str, Any]:
        """Return the verified client certificate in the form of the ssl module, or an empty dict."""
        return self._certificate

    def _no_login(self) -> None:
        """Close the connection. A client without SASL may ask for the versions and use the connection later."""
        if self.session is None:
            why = "it has not logged in"
            if self._has_asked and self.sasl is None:
                why = self.server.log_in_without_sasl(self)
            if why:
                self.close(why)

    def data_received(self, data: bytes) -> None:
        self.server.stats.received_bytes += len(data)
        self._buffer += data
        self.received_bytes += len(data)
        self._read_at_ms = self.server.broker.timers.now_ms()
        self._read_requests()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self.server.unopened.remove(self)
        self._end()
        self.server.malloc_trimmer.on_closed(self.received_bytes + self.sent_bytes)

    def pause_writing(self) -> None:
        self._write_paused = True
        self._update_reading()

    def resume_writing(self) -> None:
        self._write_paused = False
        self._update_reading()
        self._read_requests()

    # -- requests

    def _read_requests(self) -> None:
        """Handle the requests in the buffer, as far as they are complete and may be handled now."""
        pace = self.server.pace
        while not self.closed and self._may_handle() and len(self._buffer) >= 4:
            size = _INT32.unpack_from(self._buffer)[0]
            size_max = self.server.settings.request_size_max_bytes
            if LOGIN_BYTES_MAX < size <= size_max and self.session is None and self.sasl is None:
                # A client without SASL may begin with a large Produce.
                self.server.log_in_without_sasl(self)
            limit = LOGIN_BYTES_MAX if self.session is None and size <= size_max else size_max
            if not 0 < size <= limit:
                is_tls = self.session is None and self._buffer.startswith(_TLS_HANDSHAKE)
                why = f"a request of {size} bytes; at most {limit} are accepted"
                self.close("it speaks TLS, and this port does not" if is_tls else why)
                return
            if len(self._buffer) < 4 + size:
                break
            if not pace.may_begin():
                self._is_waiting = True
                pace.read_later(self)
                break
            begun_s = time.monotonic()
            frame = bytes(memoryview(self._buffer)[4 : 4 + size])
            del self._buffer[: 4 + size]
            self._request_number += 1
            self._handle(frame)
            pace.count(time.monotonic() - begun_s)
        if not self.closed:
            self._report_unfinished()
            self._update_reading()

    def read_on(self) -> None:
        """Handle requests again: it is the connection's turn."""
        self._is_waiting = False
        self._read_requests()

    def begin_work(self) -> None:
        """Handle no more requests: one has steps left. Called by `Pace`."""
        self._work_count += 1
        self._update_reading()

    def end_work(self) -> None:
        """Handle requests again when no steps are left. Called by `Pace`."""
        self._work_count -= 1
        if not self._work_count:
            self._read_requests()

    @property
    def is_reading(self) -> bool:
        """Return whether the socket is read."""
        return self._reading

    def _report_unfinished(self) -> None:
        """Report the bytes of an unfinished request. Bytes that the connection will handle itself do not count."""
        kept = len(self._buffer) if self._may_handle() else 0
        if kept == self._reported_bytes:
            return
        if kept and not self._reported_bytes:
            timers = self.server.broker.timers
            timers.arm_sooner(self._silence_timer, timers.now_ms() + STALL_MS)
        self._reported_bytes = kept
        self.server.broker.unfinished_bodies.update(self, kept, self._request_number if kept else 0)

    def read_bodies(self, on: bool) -> None:
        """Read on within unfinished requests, or not. Called by `PartialBodyMemory`."""
        if on and self._bodies_paused:
            self._read_at_ms = self.server.broker.timers.now_ms()
        self._bodies_paused = not on
        self._update_reading()

    def _is_read_on(self) -> bool:
        """Return whether more bytes may be read: not within a Produce during an alarm, nor above the budget."""
        if not self._reported_bytes:
            return True
        if self._bodies_paused:
            return False
        is_produce = len(self._buffer) >= 6 and _INT16.unpack_from(self._buffer, 4)[0] == _PRODUCE
        return not (is_produce and self.server.broker.alarm_reason)

    def _on_silence(self) -> None:
        """Close the connection if the client has sent nothing for too long, and it was its turn."""
        if self.closed:
            return
        timers = self.server.broker.timers
        if self._calls or not self._reading:
            self._read_at_ms = timers.now_ms()
        limit_ms = STALL_MS if self._reported_bytes else IDLE_MS
        due_ms = self._read_at_ms + limit_ms
        if timers.now_ms() < due_ms:
            timers.arm(self._silence_timer, due_ms)
        else:
            self.close(f"it has sent nothing for {limit_ms // 1000} s")

    def _may_handle(self) -> bool:
        """Return whether the next request may be handled.

        A login must be complete before requests that follow it are looked at.
        """
        if self._ends or self._held or self._throttled or self._write_paused or len(self._calls) >= REQUESTS_MAX:
            return False
        if self._work_count or self._is_waiting:
            return False
        return self.session is not None or not self._calls

    def _update_reading(self) -> None:
        transport = self._transport
        if transport is None or self.closed:
            return
        wanted = self._may_handle() and self._is_read_on()
        if wanted and not self._reading:
            transport.resume_reading()
        elif not wanted and self._reading:
            transport.pause_reading()
        self._reading = wanted

    def _handle(self, frame: bytes) -> None:
        if self.token_api is not None and self.session is None:
            call = Call(self, self.token_api, RequestHeader(self.token_api.key, 0, 0, self.client_id, 0), frame)
            self._calls.append(call)
            self.server.pace.run(self, self._steps(call))
            return
        try:
            header = read_header(frame)
            api = self.server.apis.get(header.api_key)
            if api is None:
                raise MalformedRequest(f"unknown request {header.api_key}")
            call = Call(self, api, header, frame)
            self._calls.append(call)
            if not api.first <= header.version <= api.last:
                self._refuse_version(call)
                return
            self.client_id = header.client_id
            self._has_asked = True
            if len(frame) > DECODED_BYTES_MAX and api.key != _PRODUCE:
                raise MalformedRequest(f"{api.name} of {len(frame)} bytes; at most {DECODED_BYTES_MAX} are accepted")
            self.server.pace.run(self, self._steps(call))
        except MalformedRequest as error:
            self.fail(error)

    def _steps(self, call: Call) -> Steps[None]:
        """Decode and handle a request. Raises: MalformedRequest."""
        api = call.api
        if api.request is not None:
            reader = RequestReader(call.frame, call.header.size, call.is_flexible)
            call.request = yield from decode_steps(api.request, call.version, reader)
        if self.session is None and not api.before_login:
            # SASL that was begun must be finished.
            why = "a request before the login" if self.sasl is not None else self.server.log_in_without_sasl(self)
            if why:
                self.close(why)
                return
        steps = api.handle(call)
        if steps is not None:
            yield from steps

    def start_task(self, work: Coroutine[Any, Any, None]) -> None:
        """Run the part of a handler that must wait: for a password, or a commit of metadata."""
        task = self.server.broker.loop.create_task(self._run_task(work))
        self.server.tasks.add(task)
        task.add_done_callback(self.server.tasks.discard)

    async def _run_task(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except Exception as error:  # noqa: BLE001  # `fail` logs it
            self.fail(error)

    def fail(self, error: Exception) -> None:
        """Close the connection: a request of it cannot be read, or has found a bug."""
        if isinstance(error, MalformedRequest):
            self.close(str(error))
        else:
            log.error("a bug in amqpd, please report it", exc_info=error, extra=self.log_fields())
            self.close("")

    def _refuse_version(self, call: Call) -> None:
        """Answer ApiVersions of an unknown version with version 0, as Kafka does; close the connection otherwise."""
        header = call.header
        if call.api.key != API_VERSIONS:
            raise MalformedRequest(f"{call.api.name} has no version {header.version} here")
        call.header = header._replace(version=0)
        call.reply(api_versions(self.server.apis, errors.UNSUPPORTED_VERSION))

    def on_reply(self) -> None:
        """Send the replies that are next in order, with the end of the turn. Called by `Call`."""
        if self._calls and self._calls[0].is_done:
            self.server.broker.turn.flush_later(self)

    def is_next(self, call: Call) -> bool:
        """Return whether all requests before this one are answered."""
        for each in self._calls:
            if each is call:
                return True
            if not each.is_done:
                return False
        return False

    def flush(self) -> None:
        """Write the replies that are next. Called at the end of a turn, after the logs were written."""
        parts: list[bytes] = []
        calls = self._calls
        while calls and calls[0].is_done:
            parts += calls.popleft().take_reply()
        if parts and self._transport is not None and not self._transport.is_closing():
            size_bytes = sum(map(len, parts))
            self.server.stats.sent_bytes += size_bytes
            self.sent_bytes += size_bytes
            self._transport.writelines(parts)
        if self._ends and not calls:
            self.close("")
            return
        self._read_requests()

    # -- state

    def logged_in(self, session: Session) -> None:
        """Continue as this user."""
        self.session = session
        self.server.unopened.mark_logged_in(self)
        if self._login_timer is not None:
            self._login_timer.cancel()
            self._login_timer = None
        log.info(
            "user '%s' has logged in to vhost '%s' with Kafka's protocol",
            session.user.name,
            session.vhost.name,
            extra=self.log_fields(),
        )

    def hold(self, on: bool) -> None:
        """Handle no more requests while a resource alarm lasts."""
        self._held = on
        self._update_reading()
        if not on:
            self._read_requests()

    def throttle(self, time_ms: int) -> None:
        """Handle no more requests for so long. Answers are sent meanwhile."""
        if self.closed:
            return
        self._throttled = True
        timers = self.server.broker.timers
        timers.arm(self._throttle_timer, timers.now_ms() + time_ms)
        self._update_reading()

    def _end_throttle(self) -> None:
        self._throttled = False
        self.has_waited = True
        self._update_reading()
        self._read_requests()

    def log_fields(self) -> dict[str, object]:
        """Return the fields of log lines about this connection."""
        fields: dict[str, object] = {"connection": self.name}
        if self.session is not None:
            fields |= {"user": self.session.user.name, "vhost": self.session.vhost.name}
        return fields

    def on_alarm_end(self) -> None:
        """Continue with a Produce, or read on within one."""
        run, self.when_unblocked = self.when_unblocked, None
        if run is not None:
            run()
        self._update_reading()

    def close_after_replies(self) -> None:
        """Handle no more requests, and close the connection when the replies are sent."""
        self._ends = True
        self.server.broker.turn.flush_later(self)

    def details(self) -> dict[str, Any]:
        """Return the fields of the lists of connections (`broker.listeners.ListedConnection`)."""
        return {
            "host": self.local[0],
            "port": self.local[1],
            "protocol": KAFKA_PROTOCOL,
            "auth_mechanism": self.mechanism,
            "client_properties": {"client_id": self.client_id},
            "user_provided_name": self.client_id,
            "state": self._state(),
            "recv_oct": self.received_bytes,
            "send_oct": self.sent_bytes,
            "connected_at": int(self.connected_at * 1000),
            "ssl": self.tls,
            **peer_certificate.tls_info(self._certificate),
        }

    def _state(self) -> str:
        if self._held and self.server.broker.alarm_reason:
            return "blocked"
        return "flow" if self._throttled else "running"

    def force(self, why: str) -> None:
        """Close the connection, because an operator asked for it."""
        self.close(why)

    def close(self, why: str) -> None:
        """Close the connection. why: for the log; empty if it is logged already."""
        if self.closed:
            return
        if why:
            log.warning("Kafka client %s is disconnected: %s", self.name, why, extra=self.log_fields())
        transport = self._transport
        if transport is not None:
            transport.close()
            # A client that does not read would keep the socket open.
            self.server.broker.loop.call_later(CLOSE_WAIT_S, transport.abort)
        self._end()

    def abort(self) -> None:
        """Close the socket without sending what waits."""
        if self._transport is not None:
            self._transport.abort()
        self._end()

    def _end(self) -> None:
        if self.closed:
            return
        self.closed = True
        if self._login_timer is not None:
            self._login_timer.cancel()
            self._login_timer = None
        self._calls.clear()
        self._buffer.clear()
        broker = self.server.broker
        broker.timers.discard(self._silence_timer)
        broker.timers.discard(self._throttle_timer)
        self.when_unblocked = None
        if self._reported_bytes:
            self._reported_bytes = 0
            broker.unfinished_bodies.update(self, 0, 0)
        self.server.connections.discard(self)
        for call in self.on_close:
            call()
        self.on_close.clear()


def api_versions(apis: Mapping[int, Api], error_code: int = errors.NONE) -> dict[str, Any]:
    """Return the body of an ApiVersions response.

    It has Produce from version 0 on, as that of Kafka 4: librdkafka 2.10 and older do not compress without it.
    """
    keys = [
        {"api_key": api.key, "min_version": 0 if api.key == _PRODUCE else api.first, "max_version": api.last}
        for api in sorted(apis.values(), key=lambda api: api.key)
    ]
    return {"error_code": error_code, "api_keys": keys}
