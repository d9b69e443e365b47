"""Connections to Kafka brokers: requests out, answers in, without waiting in between.

`open_connection` makes a connection ready: TCP, TLS, ApiVersions, SASL. A broker that lacks a needed version is
refused with a list of what it lacks. Then `send` writes a request and calls back with its answer; `request` waits for
the answer. Answers arrive in order (correlation.py). When the connection ends, each unanswered request gets None:
its outcome is unknown.

A connection ends at the first error: a wrong answer, no answer within `answer_timeout_s`, or an error of the
socket. Its user opens a new one.

A broker that hangs (a stopped process, a dead disk) keeps its connections open, and Kafka elects other leaders
after about 10 s. So `on_silent` is called when an answer is SILENT_S late, then each SILENT_AGAIN_S. The user of the
connection asks other brokers for the leaders, and aborts it if they have moved.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Final, cast

from amqpd.kafka.config import InvalidKafkaConfig, KafkaAccess
from amqpd.kafka.correlation import Correlator
from amqpd.kafka.requests import (
    decode_api_versions,
    decode_sasl_authenticate,
    decode_sasl_handshake,
    encode_api_versions,
    encode_sasl_authenticate,
    encode_sasl_handshake,
    missing_versions,
)
from amqpd.kafka.sasl import NotProved, make_mechanism
from amqpd.kafka.wire import BadAnswer, code_of

logger = logging.getLogger(__name__)

ANSWER_TIMEOUT_S: Final = 30.0
CONNECT_TIMEOUT_S: Final = 10.0
SILENT_S: Final = 3.0
SILENT_AGAIN_S: Final = 1.0
"""Intervals of `on_silent`. A healthy broker answers a Fetch within 500 ms, its longest wait. A Produce request may
take longer while a replica hangs.
"""
ANSWER_SIZE_MAX: Final = 64 << 20
"""Largest answer in bytes. A Fetch asks for less; all other answers are much smaller."""

_SOFTWARE: Final = b"amqpd"
_SASL_STEPS_MAX: Final = 5
# share of a login's lifetime (`connections.max.reauth.ms`) after which the connection ends
_LIFETIME_SHARE: Final = 0.85

Done = Callable[[bytes | None], None]
OnSilent = Callable[["KafkaConnection"], None]


class KafkaDisconnected(ConnectionError):
    """The connection ended before the answer arrived: the outcome of the request is unknown."""


class KafkaIncompatible(Exception):
    """The broker cannot be used, and a retry does not help; the text says why."""


class KafkaConnection(asyncio.Protocol):
    """One open connection to a broker.

    Attributes:
        lost: The connection has ended.
        blocked: The socket takes no more data at the moment.
        on_lost: Called when the connection ends.
        on_writable: Called when the socket takes data again.
    """

    def __init__(
        self, access: KafkaAccess, name: str, answer_timeout_s: float, on_silent: OnSilent | None = None
    ) -> None:
        self.name = name
        self.client_id = access.client_id.encode()
        self._outages = access.outages
        self.lost = False
        self.blocked = False
        self.on_lost: Callable[[], None] | None = None
        self.on_writable: Callable[[], None] | None = None
        self._link = Correlator(ANSWER_SIZE_MAX)
        self._waiting: deque[tuple[Done, float]] = deque()
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()
        self._answer_timeout_s = answer_timeout_s
        self._on_silent = on_silent
        self._answer_timer: asyncio.TimerHandle | None = None
        self._login_timer: asyncio.TimerHandle | None = None
        self._closed: asyncio.Future[None] = self._loop.create_future()

    @property
    def unanswered(self) -> int:
        return len(self._waiting)

    # -- requests

    def send(self, make: Callable[[int], list[bytes]], done: Done) -> None:
        """Write a request.

        Args:
            make: Returns the parts of the request for a correlation id.
            done: Called once, with the answer, or with None when the connection has ended.
        """
        if self.lost or self._transport is None:
            done(None)
            return
        parts = make(self._link.next_correlation_id())
        self._waiting.append((done, self._loop.time()))
        if self._answer_timer is None:
            self._answer_timer = self._loop.call_later(min(SILENT_S, self._answer_timeout_s), self._check_answer_time)
        self._transport.writelines(parts)

    async def request(self, make: Callable[[int], bytes]) -> bytes:
        """Send a request and return its answer. Raises KafkaDisconnected."""
        answered: asyncio.Future[bytes | None] = self._loop.create_future()

        def done(data: bytes | None) -> None:
            if not answered.done():
                answered.set_result(data)

        self.send(lambda number: [make(number)], done)
        data = await answered
        if data is None:
            raise KafkaDisconnected(f"the connection to {self.name} has ended")
        return data

    def _check_answer_time(self) -> None:
        """Check the oldest request: end the connection, report a silent broker, or check again later."""
        self._answer_timer = None
        if not self._waiting:
            return
        waited = self._loop.time() - self._waiting[0][1]
        left = self._answer_timeout_s - waited
        if left <= 0:
            self.abort(f"no answer within {self._answer_timeout_s:g} s")
            return
        silent = waited >= SILENT_S
        again = SILENT_AGAIN_S if silent else SILENT_S - waited
        self._answer_timer = self._loop.call_later(max(0.001, min(left, again)), self._check_answer_time)
        if silent and self._on_silent is not None:
            self._on_silent(self)

    # -- its end

    def abort(self, why: str) -> None:
        """End the connection now and report the failure."""
        if not self.lost:
            self._outages.report_failure(self.name, why)
            self._end()

    def end_after(self, seconds: float) -> None:
        """End the connection after some seconds, before the broker does because the login has expired."""
        self._login_timer = self._loop.call_later(seconds, self._end_login)

    def _end_login(self) -> None:
        logger.info("connection to %s: the login expires, a new connection follows", self.name)
        self._end()

    async def close(self) -> None:
        """End the connection and wait until the socket is closed."""
        self._end()
        await self._closed

    def _end(self) -> None:
        if self.lost:
            return
        self.lost = True
        if self._answer_timer is not None:
            self._answer_timer.cancel()
            self._answer_timer = None
        if self._login_timer is not None:
            self._login_timer.cancel()
        if self._transport is not None:
            self._transport.abort()
        elif not self._closed.done():
            self._closed.set_result(None)
        waiting, self._waiting = self._waiting, deque()
        for done, _ in waiting:
            done(None)
        if self.on_lost is not None:
            self.on_lost()

    # -- asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's transport is no subclass of asyncio's
        if self.lost:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        if self.lost:
            return
        try:
            answers = self._link.feed(data)
        except BadAnswer as error:
            self.abort(str(error))
            return
        for answer in answers:
            if not self._waiting:  # an earlier answer has ended the connection
                return
            done, _ = self._waiting.popleft()
            try:
                done(answer)
            except BadAnswer as error:
                self.abort(str(error))

    def pause_writing(self) -> None:
        self.blocked = True

    def resume_writing(self) -> None:
        self.blocked = False
        if self.on_writable is not None:
            self.on_writable()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.lost:
            self._outages.report_failure(self.name, exc or "the broker has closed the connection")
        if not self._closed.done():
            self._closed.set_result(None)
        self._end()


async def open_connection(
    access: KafkaAccess,
    host: str,
    port: int,
    answer_timeout_s: float = ANSWER_TIMEOUT_S,
    on_silent: OnSilent | None = None,
) -> KafkaConnection:
    """Open a connection to a broker and make it ready for requests. Failures are reported to `access.outages`.

    Args:
        on_silent: Called while an answer is late, also before the connection is ready. It may abort the connection.

    Raises:
        OSError: The broker does not answer; KafkaDisconnected if it closed the connection.
        KafkaIncompatible: The broker cannot be used.
    """
    name = f"{host}:{port}"
    try:
        connection = await _open(access, host, port, name, answer_timeout_s, on_silent)
    except (OSError, KafkaIncompatible) as error:
        access.outages.report_failure(name, error)
        raise
    access.outages.report_success(name)
    return connection


async def _open(
    access: KafkaAccess, host: str, port: int, name: str, answer_timeout_s: float, on_silent: OnSilent | None
) -> KafkaConnection:
    """Open the connection without reporting. Raises as `open_connection`."""
    loop = asyncio.get_running_loop()
    try:
        # Files are read in a thread; without TLS there is none.
        context = await asyncio.to_thread(access.ssl_context) if access.tls else None
    except InvalidKafkaConfig as error:  # the files were right at the start
        raise KafkaIncompatible(f"{name}: {error}") from error
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            _, connection = await loop.create_connection(
                lambda: KafkaConnection(access, name, answer_timeout_s, on_silent),
                host,
                port,
                ssl=context,
                server_hostname=host if context is not None else None,
            )
            try:
                await _negotiate(connection, access)
            except BaseException:
                await connection.close()
                raise
    except TimeoutError:
        raise KafkaDisconnected(f"{name} did not answer within {CONNECT_TIMEOUT_S:g} s") from None
    except BadAnswer as error:
        raise KafkaIncompatible(f"{name} does not speak Kafka's protocol: {error}") from error
    except UnicodeError as error:
        raise KafkaIncompatible(f"{name} is not a valid host name: {error}") from error
    return connection


async def _negotiate(connection: KafkaConnection, access: KafkaAccess) -> None:
    """Exchange ApiVersions, then log in. Raises KafkaDisconnected, KafkaIncompatible or BadAnswer."""
    client_id = connection.client_id
    data = await connection.request(lambda number: encode_api_versions(number, client_id, _SOFTWARE, b"0"))
    code, versions = decode_api_versions(data)
    missing = missing_versions(versions)
    if code or missing:
        lacks = ", ".join(missing) if not code else code_of(code).name
        raise KafkaIncompatible(f"{connection.name} runs an unsupported version of Kafka: {lacks}")
    if access.sasl_mechanism:
        await _authenticate(connection, access)


async def _authenticate(connection: KafkaConnection, access: KafkaAccess) -> None:
    client_id, mechanism = connection.client_id, access.sasl_mechanism
    data = await connection.request(lambda number: encode_sasl_handshake(number, client_id, mechanism.encode()))
    code, mechanisms = decode_sasl_handshake(data)
    if code:
        has = ", ".join(mechanisms)
        raise KafkaIncompatible(f"{connection.name} does not accept {mechanism}: {code_of(code).name}; it offers {has}")
    talk = make_mechanism(mechanism, access.sasl_username, access.sasl_password)
    message: bytes | None = talk.first()
    for _ in range(_SASL_STEPS_MAX):
        if message is None:
            break
        sent = message
        data = await connection.request(lambda number, sent=sent: encode_sasl_authenticate(number, client_id, sent))  # type: ignore[misc]
        answer = decode_sasl_authenticate(data)
        if answer.code:
            raise KafkaIncompatible(f"{connection.name}: {code_of(answer.code).name}: {answer.text}")
        try:
            message = await asyncio.to_thread(talk.reply, answer.message)  # SCRAM's key costs milliseconds of CPU
        except NotProved as error:
            raise KafkaIncompatible(f"{connection.name}: {error}") from error
    if not talk.done:
        raise KafkaIncompatible(f"{connection.name} does not complete {mechanism}")
    if answer.lifetime_ms > 0:
        connection.end_after(int(answer.lifetime_ms) * _LIFETIME_SHARE / 1000)
