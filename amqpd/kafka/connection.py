"""A connection to one broker of Kafka: opened, agreed on, then requests out and answers in, without waiting between.

`open_connection` does all that comes first: TCP, TLS, ApiVersions (a broker that lacks what is spoken here is refused
with the list), SASL. Behind that `send` writes a request and names who is told its answer; `ask` waits for it. Answers
come in order (peer_link.py). Whoever waits when the connection ends is told None: what was asked may have been done or
not.

A connection ends at the first thing that is wrong with it: an answer that is none, one that does not come within
`answer_timeout_s`, an error of the socket. It is not opened again: that is for who uses it.

A broker that hangs (a stopped process, a dead disk) keeps its connections open. Kafka elects other leaders after some
10 s, long before `answer_timeout_s`. So `on_silent` is called when an answer is SILENT_S late, and each SILENT_AGAIN_S
from then on: the user of the connection asks other brokers, and aborts it where leadership has moved.
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
from amqpd.kafka.sasl import NotProved, conversation
from amqpd.kafka.wire import BadAnswer, code_of

logger = logging.getLogger(__name__)

ANSWER_TIMEOUT_S: Final = 30.0
CONNECT_TIMEOUT_S: Final = 10.0
SILENT_S: Final = 3.0
SILENT_AGAIN_S: Final = 1.0
"""See above. A healthy broker answers a Fetch within the 500 ms that it may wait; a Produce request may take longer
while a replica hangs.
"""
ANSWER_SIZE_MAX: Final = 64 << 20
"""Bytes of an answer. A Fetch names less; no other comes near it."""

_SOFTWARE: Final = b"amqpd"
_SASL_STEPS_MAX: Final = 5
_LIFETIME_SHARE: Final = 0.85  # of what a login is good for (`connections.max.reauth.ms`): then a new connection

Done = Callable[[bytes | None], None]
OnSilent = Callable[["KafkaConnection"], None]


class KafkaDisconnected(ConnectionError):
    """The connection ended before the answer came: what was asked may have been done or not."""


class KafkaIncompatible(Exception):
    """The broker cannot be used, and trying again does not help: the text says why."""


class KafkaConnection(asyncio.Protocol):
    """One open connection. lost: it ended. blocked: the socket takes nothing more just now."""

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
        self._watch: asyncio.TimerHandle | None = None
        self._life: asyncio.TimerHandle | None = None
        self._closed: asyncio.Future[None] = self._loop.create_future()

    @property
    def unanswered(self) -> int:
        """Requests that wait for an answer."""
        return len(self._waiting)

    # -- requests

    def send(self, make: Callable[[int], list[bytes]], done: Done) -> None:
        """Writes a request. make: its parts, from a correlation id. done: called once, with the answer or None."""
        if self.lost or self._transport is None:
            done(None)
            return
        parts = make(self._link.ask())
        self._waiting.append((done, self._loop.time()))
        if self._watch is None:
            self._watch = self._loop.call_later(min(SILENT_S, self._answer_timeout_s), self._look)
        self._transport.writelines(parts)

    async def ask(self, make: Callable[[int], bytes]) -> bytes:
        """One request, and its answer. Raises: KafkaLost."""
        answered: asyncio.Future[bytes | None] = self._loop.create_future()

        def done(data: bytes | None) -> None:
            if not answered.done():
                answered.set_result(data)

        self.send(lambda number: [make(number)], done)
        data = await answered
        if data is None:
            raise KafkaDisconnected(f"{self.name} is gone")
        return data

    def _look(self) -> None:
        """End the connection when the oldest request waits too long, report a silent broker, or look again later."""
        self._watch = None
        if not self._waiting:
            return
        waited = self._loop.time() - self._waiting[0][1]
        left = self._answer_timeout_s - waited
        if left <= 0:
            self.abort(f"no answer within {self._answer_timeout_s:g} s")
            return
        silent = waited >= SILENT_S
        again = SILENT_AGAIN_S if silent else SILENT_S - waited
        self._watch = self._loop.call_later(max(0.001, min(left, again)), self._look)
        if silent and self._on_silent is not None:
            self._on_silent(self)

    # -- its end

    def abort(self, why: str) -> None:
        """Ends it now."""
        if not self.lost:
            self._outages.failed(self.name, why)
            self._end()

    def ends_in(self, seconds: float) -> None:
        """Ends it then, before the broker does: its login is over."""
        self._life = self._loop.call_later(seconds, self._end_login)

    def _end_login(self) -> None:
        logger.info("connection to %s: its login is over, a new one follows", self.name)
        self._end()

    async def close(self) -> None:
        """Ends it, and waits until the socket is closed."""
        self._end()
        await self._closed

    def _end(self) -> None:
        if self.lost:
            return
        self.lost = True
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None
        if self._life is not None:
            self._life.cancel()
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
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is none by its class
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
            if not self._waiting:  # an answer before has ended the connection
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
            self._outages.failed(self.name, exc or "the broker has closed the connection")
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
    """A connection to the broker at that address, ready for requests. Failures are reported to `access.outages`.

    on_silent: called while an answer is late, also before the connection is ready; it may abort the connection.
    Raises: OSError when it does not answer (KafkaLost: it left in the middle); KafkaUnfit.
    """
    name = f"{host}:{port}"
    try:
        connection = await _open(access, host, port, name, answer_timeout_s, on_silent)
    except (OSError, KafkaIncompatible) as error:
        access.outages.failed(name, error)
        raise
    access.outages.answered(name)
    return connection


async def _open(
    access: KafkaAccess, host: str, port: int, name: str, answer_timeout_s: float, on_silent: OnSilent | None
) -> KafkaConnection:
    """Raises: as `open_connection`."""
    loop = asyncio.get_running_loop()
    try:
        # Files are read off the loop; without TLS there is no thread.
        context = await asyncio.to_thread(access.ssl_context) if access.tls else None
    except InvalidKafkaConfig as error:  # files that were there at the start
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
                await _agree(connection, access)
            except BaseException:
                await connection.close()
                raise
    except TimeoutError:
        raise KafkaDisconnected(f"{name} did not answer within {CONNECT_TIMEOUT_S:g} s") from None
    except BadAnswer as error:
        raise KafkaIncompatible(f"{name} does not speak Kafka's protocol: {error}") from error
    except UnicodeError as error:
        raise KafkaIncompatible(f"{name} is no name of a host: {error}") from error
    return connection


async def _agree(connection: KafkaConnection, access: KafkaAccess) -> None:
    """ApiVersions and SASL. Raises: KafkaLost, KafkaUnfit, BadAnswer."""
    client_id = connection.client_id
    data = await connection.ask(lambda number: encode_api_versions(number, client_id, _SOFTWARE, b"0"))
    code, versions = decode_api_versions(data)
    missing = missing_versions(versions)
    if code or missing:
        lacks = ", ".join(missing) if not code else code_of(code).name
        raise KafkaIncompatible(f"{connection.name} is too old or too new a Kafka: {lacks}")
    if access.sasl_mechanism:
        await _authenticate(connection, access)


async def _authenticate(connection: KafkaConnection, access: KafkaAccess) -> None:
    client_id, mechanism = connection.client_id, access.sasl_mechanism
    data = await connection.ask(lambda number: encode_sasl_handshake(number, client_id, mechanism.encode()))
    code, mechanisms = decode_sasl_handshake(data)
    if code:
        has = ", ".join(mechanisms)
        raise KafkaIncompatible(f"{connection.name} does not take {mechanism}: {code_of(code).name}; it has {has}")
    talk = conversation(mechanism, access.sasl_username, access.sasl_password)
    message: bytes | None = talk.first()
    for _ in range(_SASL_STEPS_MAX):
        if message is None:
            break
        said = message
        data = await connection.ask(lambda number, said=said: encode_sasl_authenticate(number, client_id, said))  # type: ignore[misc]
        answer = decode_sasl_authenticate(data)
        if answer.code:
            raise KafkaIncompatible(f"{connection.name}: {code_of(answer.code).name}: {answer.text}")
        try:
            message = await asyncio.to_thread(talk.reply, answer.message)  # SCRAM's key: milliseconds of a processor
        except NotProved as error:
            raise KafkaIncompatible(f"{connection.name}: {error}") from error
    if not talk.done:
        raise KafkaIncompatible(f"{connection.name} does not come to an end of {mechanism}")
    if answer.lifetime_ms > 0:
        connection.ends_in(int(answer.lifetime_ms) * _LIFETIME_SHARE / 1000)
