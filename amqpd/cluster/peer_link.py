"""Connections between nodes: the port they come in by (`cluster.listen`), and how one is opened.

The port is for nodes alone. A socket that comes in has WAIT_S for TLS and preamble together (preamble.py), and so many
wait at once: WAITING_MAX, of which each address may have WAITING_PER_ADDRESS_MAX. Where there are more, the oldest of
the address that has the most is closed, so a node gets in beside whoever holds silent sockets. Who is no node learns
one bit: that his proof was none.

What a connection carries behind its preamble is its kind's business: who listens hands over a function for each
(`Kinds`). That function answers, and gives the transport a protocol of its own.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
import ssl
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

from amqpd.cluster import preamble as words
from amqpd.cluster.identity import Identity, fingerprint, peer_context
from amqpd.cluster.preamble import BadPreamble, Preamble
from amqpd.listeners import Listener, bound_sockets

if TYPE_CHECKING:
    from amqpd.cluster.view import Node

log = logging.getLogger(__name__)

WAITING_MAX: Final = 512
WAITING_PER_ADDRESS_MAX: Final = 256
ACCEPTS_MAX: Final = 64
"""In one turn of the loop."""
PAUSE_S: Final = 0.1
"""Before the next is taken in, where there was no descriptor for one."""
LOG_S: Final = 1.0
"""A crowd is worth a line now and then, not one each."""

Kinds: TypeAlias = "Mapping[str, Callable[[Preamble, asyncio.Transport], Awaitable[None]]]"
"""By kind: takes a connection whose preamble is proven, and is not read; it answers, and goes on with it or ends it."""


class NotReached(Exception):
    """The node could not be asked; the text says why. It may be another time."""


class Refused(Exception):
    """The node has answered, and the answer is no. answer: NOT_MINE, REFUSED or WRONG_SECRET."""

    def __init__(self, answer: int, text: str) -> None:
        super().__init__(text)
        self.answer = answer


# -- who listens -----------------------------------------------------------------------------------------------------


class _Guest(asyncio.Protocol):
    """Behind TLS: its preamble comes, or does not."""

    def __init__(self) -> None:
        self.nonce = secrets.token_bytes(words.NONCE_BYTES)
        self.data = b""
        self.complete: asyncio.Future[tuple[bytes, bytes]] = asyncio.get_running_loop().create_future()

    def data_received(self, data: bytes) -> None:
        if self.complete.done():
            return
        self.data += data
        try:
            found = words.cut(self.data)
        except BadPreamble as error:
            self.complete.set_exception(error)
            return
        if found is not None:
            self.complete.set_result(found)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.complete.done():
            self.complete.set_exception(ConnectionResetError("it went away"))
            self.complete.exception()  # who waited for it may have gone


class InnerDoor:
    """The inner port. identity: what it shows. secret: of the cluster."""

    def __init__(self, identity: Identity, secret: bytes, kinds: Kinds) -> None:
        self._identity = identity
        self._secret = secret
        self._kinds = kinds
        # By address, the oldest first.
        self._waiting: dict[str, dict[_Waiting, None]] = {}
        self.waiting_count = 0
        self.refused_count = 0
        """Sockets closed here that were no node's, or came with too many others; since the start."""
        self._told_at = -LOG_S
        self._sockets: list[socket.socket] = []
        self.port = 0

    def listen(self, host: str, port: int) -> list[Listener]:
        """Raises: OSError."""
        loop = asyncio.get_running_loop()
        self._sockets = bound_sockets(host, port)
        for sock in self._sockets:
            loop.add_reader(sock, self._accept, sock)
        self.port = self._sockets[0].getsockname()[1]
        return [Listener("cluster", sock.getsockname()[0], self.port) for sock in self._sockets]

    def close(self) -> None:
        """Nobody comes in any more, and who was about to goes."""
        for sock in self._sockets:
            asyncio.get_running_loop().remove_reader(sock)
            sock.close()
        self._sockets.clear()
        for waiting in [each for found in self._waiting.values() for each in found]:
            waiting.end()

    # -- the crowd

    def _accept(self, listening: socket.socket) -> None:
        # Not by a server of asyncio's: TLS is part of what a socket has its time for, and there it would not be seen.
        for _ in range(ACCEPTS_MAX):
            try:
                sock, address = listening.accept()
            except BlockingIOError:
                return
            except OSError as error:
                # No descriptor is left, most often: who waits is taken in a moment.
                self._refused("somebody", str(error))
                loop = asyncio.get_running_loop()
                loop.remove_reader(listening)
                loop.call_later(PAUSE_S, self._go_on, listening)
                return
            sock.setblocking(False)
            self._entered(sock, str(address[0]))

    def _go_on(self, listening: socket.socket) -> None:
        if listening in self._sockets:
            asyncio.get_running_loop().add_reader(listening, self._accept, listening)

    def _entered(self, sock: socket.socket, address: str) -> None:
        """A socket is there. Cost: 30 us, and TLS's handshake, 1 ms, if it goes on."""
        waiting = _Waiting(sock, address)
        waiting.task = asyncio.get_running_loop().create_task(self._admit(waiting))
        of_address = self._waiting.setdefault(address, {})
        of_address[waiting] = None
        self.waiting_count += 1
        if len(of_address) > WAITING_PER_ADDRESS_MAX:
            self._make_room(address)
        elif self.waiting_count > WAITING_MAX:
            self._make_room(max(self._waiting, key=lambda each: len(self._waiting[each])))

    def _make_room(self, address: str) -> None:
        oldest = next(iter(self._waiting[address]))
        self._left(oldest)
        self._refused(address, "too many wait with it")
        oldest.end()

    def _left(self, waiting: _Waiting) -> None:
        of_address = self._waiting.get(waiting.address, {})
        if waiting in of_address:
            del of_address[waiting]
            self.waiting_count -= 1
            if not of_address:
                del self._waiting[waiting.address]

    def _refused(self, address: str, why: str) -> None:
        self.refused_count += 1
        now = time.monotonic()
        if now - self._told_at >= LOG_S:
            self._told_at = now
            count = self.refused_count
            log.warning("inner port: refused %s: %s (%d since the start)", address, why, count)

    # -- one of them

    async def _admit(self, waiting: _Waiting) -> None:
        waiting.begun = True
        guest = _Guest()
        transport: asyncio.Transport | None = None
        try:
            async with asyncio.timeout(words.WAIT_S):
                transport, _ = await asyncio.get_running_loop().connect_accepted_socket(
                    lambda: guest, waiting.sock, ssl=self._identity.context, ssl_handshake_timeout=words.WAIT_S
                )
                waiting.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                transport.write(words.GREETING + guest.nonce)
                body, proof = await guest.complete
                transport.pause_reading()
                if not words.is_proof(proof, self._secret, guest.nonce, self._identity.fingerprint, body):
                    transport.write(words.answer(words.WRONG_SECRET, "the secrets differ"))
                    transport.close()
                    self._refused(waiting.address, "the proof of its preamble is wrong: another cluster.secret?")
                    return
                preamble = words.decode(body)
            self._left(waiting)
            take = self._kinds.get(preamble.kind)
            if take is None:
                refuse(transport, words.NOT_MINE, f"nothing of kind {preamble.kind} is taken here")
            else:
                await take(preamble, transport)
        except (BadPreamble, OSError, TimeoutError) as error:  # ssl.SSLError is an OSError
            self._refused(waiting.address, f"{error}" or "its preamble did not come in time")
            _end(transport, waiting.sock)
        except asyncio.CancelledError:
            _end(transport, waiting.sock)
        except Exception:
            log.exception("inner port: a bug of the broker")
            _end(transport, waiting.sock)
        finally:
            self._left(waiting)


class _Waiting:
    """A socket that has come in and is not let in yet. begun: its task has; before, cancelling it closes nothing."""

    def __init__(self, sock: socket.socket, address: str) -> None:
        self.sock = sock
        self.address = address
        self.begun = False
        self.task: asyncio.Task[None] | None = None

    def end(self) -> None:
        """It goes."""
        if self.task is not None:
            self.task.cancel()
        if not self.begun:
            self.sock.close()


def _end(transport: asyncio.Transport | None, sock: socket.socket) -> None:
    """A socket that asyncio was given, and has not made a transport of, it has closed itself."""
    if transport is not None:
        transport.abort()
    else:
        sock.close()


def welcome(transport: asyncio.Transport, protocol: asyncio.Protocol) -> None:
    """A kind's answer: the connection is the protocol's from here on, and is read."""
    transport.write(words.answer(words.WELCOME))
    transport.set_protocol(protocol)
    protocol.connection_made(transport)
    transport.resume_reading()


def refuse(transport: asyncio.Transport, number: int, text: str) -> None:
    """A kind's answer: no. number: NOT_MINE or REFUSED."""
    transport.write(words.answer(number, text))
    transport.close()


# -- who connects ----------------------------------------------------------------------------------------------------


class _Opening(asyncio.Protocol):
    """Says the preamble when the nonce is there; then the answer comes."""

    def __init__(self, node: Node, secret: bytes, body: bytes) -> None:
        self._node = node
        self._secret = secret
        self._body = body
        self._data = b""
        self._said = False
        self._transport: asyncio.Transport | None = None
        self.answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        """What came behind a welcome, most often nothing."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        sock = transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        shown: Any = transport.get_extra_info("ssl_object")
        found = fingerprint(shown.getpeercert(True) or b"")
        if found != self._node.fingerprint:
            self._end(NotReached(f"its certificate is another: {found}, not {self._node.fingerprint}"))

    def data_received(self, data: bytes) -> None:
        if self.answer.done():
            return
        self._data += data
        try:
            self._look()
        except BadPreamble as error:
            self._end(NotReached(str(error)))

    def _look(self) -> None:
        if not self._said:
            if len(self._data) < words.HELLO_BYTES:
                if not words.GREETING.startswith(self._data[: len(words.GREETING)]):
                    raise BadPreamble(f"no inner port of this version: {self._data[:16]!r}")
                return
            if not self._data.startswith(words.GREETING):
                raise BadPreamble(f"no inner port of this version: {self._data[:16]!r}")
            nonce = self._data[len(words.GREETING) : words.HELLO_BYTES]
            self._data = self._data[words.HELLO_BYTES :]
            self._said = True
            proven = words.proof(self._secret, nonce, self._node.fingerprint, self._body)
            assert self._transport is not None  # something came by it
            self._transport.write(words.framed(self._body, proven))
        found = words.answered(self._data)
        if found is None:
            return
        if found.answer != words.WELCOME:
            self._end(Refused(found.answer, found.text))
        else:
            assert self._transport is not None
            self._transport.pause_reading()
            self.answer.set_result(self._data[found.size :])

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.answer.done():
            self.answer.set_exception(NotReached(f"it ended the connection: {exc or 'without an answer'}"))

    def _end(self, error: Exception) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)
        if self._transport is not None:
            self._transport.abort()


class Connector:
    """How this node connects to others. node: its name. run: of this process."""

    def __init__(self, node: str, secret: bytes) -> None:
        self.node = node
        self.run = secrets.token_hex(16)
        self._secret = secret
        self._context: ssl.SSLContext = peer_context()

    def preamble(self, kind: str, client: words.Client | None = None) -> Preamble:
        """Of this node."""
        return Preamble(kind, self.node, self.run, client)

    async def open(self, node: Node, preamble: Preamble, protocol: asyncio.Protocol) -> asyncio.Transport:
        """A connection that carries from here on what the preamble asks for, and is `protocol`'s; it is read.

        Cost: two round trips and 2 ms of a processor. Raises: NotReached, Refused.
        """
        opening = _Opening(node, self._secret, words.encode(preamble))
        transport: asyncio.Transport | None = None
        try:
            async with asyncio.timeout(words.WAIT_S):
                transport, _ = await asyncio.get_running_loop().create_connection(
                    lambda: opening,
                    node.host,
                    node.port,
                    ssl=self._context,
                    server_hostname=node.host,
                    ssl_handshake_timeout=words.WAIT_S,
                )
                rest = await opening.answer
        except (OSError, TimeoutError) as error:
            raise NotReached(f"node {node.name} at {node.host}:{node.port}: {str(error) or 'no answer'}") from error
        except NotReached as error:
            raise NotReached(f"node {node.name} at {node.host}:{node.port}: {error}") from error
        except Refused as error:
            if error.answer == words.WRONG_SECRET:
                log.error("node %s refuses this one: %s", node.name, error)
            raise
        except asyncio.CancelledError:
            if transport is not None:
                transport.abort()
            raise
        finally:
            if opening.answer.done() and not opening.answer.cancelled():
                opening.answer.exception()  # looked at, whoever was cancelled meanwhile
        if transport.is_closing():
            raise NotReached(f"node {node.name} at {node.host}:{node.port}: it ended the connection")
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        if rest:
            protocol.data_received(rest)
        transport.resume_reading()
        return transport
