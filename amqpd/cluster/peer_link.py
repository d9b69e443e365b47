r"""Connections between nodes: the port they come in by (`cluster.listen`), and how one is opened.

The port is for nodes alone. A socket that comes in has WAIT_S for TLS and preamble together (peer_link.py), and so many
wait at once: WAITING_MAX, of which each address may have WAITING_PER_ADDRESS_MAX. Where there are more, the oldest of
the address that has the most is closed, so a node gets in beside whoever holds silent sockets. Who is no node learns
one bit: that his proof was none.

What a connection carries behind its preamble is its kind's business: who listens hands over a function for each
(`Kinds`). That function answers, and gives the transport a protocol of its own.

The certificate by which this node's inner port is known: of its own, made at its first start.

    <data_dir>/cluster-node.pem     key and certificate, mode 0600

Nobody signs it and no name in it counts: the node announces its fingerprint in the cluster's metadata, and who connects
takes that certificate and no other. It never expires: to have another, stop the node and remove the file.

Whether a node is there: one link to each node that serves clients of this one, on which both ends say a byte every
PING_S, and which is dead when nothing came for DEAD_S. With the link all end that were relayed between the two.

The byte is a number: the resource alarms of who says it (MEMORY, DISK; 0 for none), said at once when it changes. Who
serves clients of a node with an alarm holds those that publish (proxy.py).

The streams that are relayed carry clients' bytes and nothing else, so nothing can be asked on them. TCP itself could
say that a host is gone (TCP_USER_TIMEOUT), but it counts a peer that is there and does not read for dead as well:
DECISIONS.md. A stopped process (SIGSTOP) whose kernel goes on answering is found here, and by no option of TCP.

What is said on an inner connection before it carries anything: who connects, that he knows the cluster's secret, and
what he wants.

Inside TLS, by bytes:

    node that listens     `amqpd-inner 1\n`, a nonce of 32 bytes
    node that connects    u32 length of the preamble, the preamble, 32 bytes of proof
    node that listens     u8 answer, u16 length of a text, the text

The preamble is JSON, at most PREAMBLE_BYTES_MAX. The proof is HMAC-SHA256 by the secret over the line, the nonce, the
listening node's fingerprint and the preamble: a proof is good for one connection to one node, whoever overheard it. The
nonce is new for each connection, so none is taken twice. Who connects has compared the certificate's fingerprint before
he says anything, so a node that only claims an address hears no preamble.

No IO here, and nothing of what a preamble asks for is done here.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import hmac
import json
import logging
import os
import secrets
import socket
import ssl
import struct
import time
from base64 import b64decode, b64encode
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, cast

from amqpd.listeners import Listener, bound_sockets
from amqpd.protocol.field_table import CodecError, decode_table, encode_table

if TYPE_CHECKING:
    from amqpd.cluster.view import NodeState


NAME: Final = "cluster-node.pem"
_BEGIN: Final = datetime(2020, 1, 1, tzinfo=UTC)  # whatever the clock of who looks at it says
_END: Final = datetime(9999, 12, 31, tzinfo=UTC)  # RFC 5280 4.1.2.5: there is no good date for its end


class NodeCertificate(NamedTuple):
    """context: of the inner port. fingerprint: SHA-256 of the certificate, in hexadecimal digits."""

    context: ssl.SSLContext
    fingerprint: str


def identity(data_dir: Path) -> NodeCertificate:
    """The one there is, or a new one. Reads and writes files, and imports `cryptography` for a new one (50 ms): a loop
    has it done by a thread. Raises: OSError; ssl.SSLError, which is one, for a file that is none of these.
    """
    path = data_dir / NAME
    if not path.exists():
        _write(path, _made())
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.num_tickets = 0  # nobody comes back to a session
    context.load_cert_chain(path)
    return NodeCertificate(context, fingerprint(ssl.PEM_cert_to_DER_cert(_certificate_of(path.read_text("ascii")))))


def fingerprint(certificate: bytes) -> str:
    """certificate: DER."""
    return hashlib.sha256(certificate).hexdigest()


def peer_context() -> ssl.SSLContext:
    """For connections to other nodes: the fingerprint is compared behind TLS's handshake, before anything is said."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def _certificate_of(text: str) -> str:
    begin, end = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
    return begin + text.partition(begin)[2].partition(end)[0] + end


def _made() -> bytes:
    """Raises: OSError."""
    if find_spec("cryptography") is None:
        text = "the package cryptography, which makes the certificate, is missing: pip install 'amqpd[cluster]'"
        raise OSError(errno.ENOENT, text)
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "amqpd node")])
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(_BEGIN)
        .not_valid_after(_END)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return private + made.public_bytes(serialization.Encoding.PEM)


def _write(path: Path, content: bytes) -> None:
    """Whole or not at all."""
    aside = path.with_name(path.name + ".new")
    aside.unlink(missing_ok=True)
    number = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(number, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(number)
    aside.rename(path)


log = logging.getLogger(__name__)

PING_S: Final = 2.0
DEAD_S: Final = 6.0
MEMORY: Final = 1
DISK: Final = 2


class PeerHeartbeat(asyncio.Protocol):
    """One end. node: at the other. ended: called once, when it is no more, for whatever reason. heard: called when the
    other end says another number than before; at first it is 0. says: what this end says.
    """

    def __init__(
        self,
        node: str,
        ended: Callable[[PeerHeartbeat], None],
        ping_s: float = PING_S,
        dead_s: float = DEAD_S,
        heard: Callable[[int], None] = lambda _: None,
        says: int = 0,
    ) -> None:
        self.node = node
        self._heard = heard
        self._says = says
        self._said = 0  # by the other end
        self._ended = ended
        self._ping_s, self._dead_s = ping_s, dead_s
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._heard_at = 0.0
        self._ticked_at = 0.0

    @property
    def alive(self) -> bool:
        """From `connection_made` to its end."""
        return self._transport is not None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        loop = asyncio.get_running_loop()
        self._heard_at = self._ticked_at = loop.time()
        self._timer = loop.call_later(self._ping_s, self._tick)
        if self._says:
            self._transport.write(bytes((self._says,)))

    def data_received(self, data: bytes) -> None:
        self._heard_at = asyncio.get_running_loop().time()
        if data[-1] != self._said:
            self._said = data[-1]
            self._heard(self._said)

    def say(self, number: int) -> None:
        """From here on."""
        if number != self._says:
            self._says = number
            if self._transport is not None:
                self._transport.write(bytes((number,)))

    def connection_lost(self, exc: Exception | None) -> None:
        self._finish()

    def close(self) -> None:
        """Ends it from this side."""
        transport = self._transport
        if transport is not None:
            self._finish()
            transport.abort()

    def _finish(self) -> None:
        if self._transport is None:
            return
        self._transport = None
        if self._timer is not None:
            self._timer.cancel()
        self._ended(self)

    def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        transport = self._transport
        assert transport is not None  # its timer ends with it
        now = loop.time()
        if now - self._ticked_at > 2 * self._ping_s:
            self._heard_at = now  # it is this loop that stood still: what came meanwhile is read next
        self._ticked_at = now
        if now - self._heard_at > self._dead_s:
            text = "node %s is silent for %g s: what was relayed between it and this one ends"
            log.warning(text, self.node, self._dead_s)
            self.close()
            return
        # A byte every other second: where it does not read them it is found silent long before they matter.
        transport.write(bytes((self._says,)))
        self._timer = loop.call_later(self._ping_s, self._tick)


GREETING: Final = b"amqpd-inner 1\n"
NONCE_BYTES: Final = 32
HELLO_BYTES: Final = len(GREETING) + NONCE_BYTES
PROOF_BYTES: Final = 32
PREAMBLE_BYTES_MAX: Final = 16 * 1024
SECRET_BYTES_MIN: Final = 16
WAIT_S: Final = 5.0
"""How long it all may take, TLS included."""

AMQP, HTTP, LINK, SERVED, WRITE = "amqp", "http", "link", "served", "write"
KINDS: Final = (AMQP, HTTP, LINK, SERVED, WRITE)

WELCOME, NOT_MINE, REFUSED, WRONG_SECRET = range(4)
"""Answers: from here on it carries what was asked for; another node runs that vhost, or none; no, for what the text
says; the proof is none."""

_LENGTH: Final = struct.Struct(">I")
_ANSWER: Final = struct.Struct(">BH")
_NAME_BYTES_MAX: Final = 1024


class BadPreamble(Exception):
    """What came is none; the text is for the log."""


class HelloAnswer(NamedTuple):
    """answer: one of the four. size: bytes of it."""

    answer: int
    text: str
    size: int


class ProxiedClient(NamedTuple):
    """A client whose connection is relayed, as the node has it that it is connected to.

    peer, local: of its socket. loopback: it comes from that node's own machine. certificate: what
    `certificate.told` reads of one. position: how far that node has read what is the cluster's.
    """

    user: str
    vhost: str
    mechanism: str
    client_properties: Mapping[str, object]
    channel_max: int
    frame_max: int
    heartbeat_s: int
    connected_at: float
    peer: tuple[str, int]
    local: tuple[str, int]
    loopback: bool
    tls: bool
    cipher: tuple[str, str]
    certificate: Mapping[str, Any]
    position: int


class Preamble(NamedTuple):
    """kind: what the connection is to carry. node: name of who connects. run: of its process, another after each start.
    client: of kind AMQP, else None.
    """

    kind: str
    node: str
    run: str
    client: ProxiedClient | None = None


def proof(secret: bytes, nonce: bytes, fingerprint: str, preamble: bytes) -> bytes:
    """nonce: of this connection. fingerprint: of the node that listens."""
    return hmac.digest(secret, GREETING + nonce + bytes.fromhex(fingerprint) + preamble, "sha256")


def is_proof(given: bytes, secret: bytes, nonce: bytes, fingerprint: str, preamble: bytes) -> bool:
    """Whether it is the right one; takes as long when it is not."""
    return hmac.compare_digest(given, proof(secret, nonce, fingerprint, preamble))


def secret_mark(secret: bytes, cluster: str) -> str:
    """Return a text by which nodes with the same secret know each other in Kafka's group.

    Whoever may describe the group can read it. So it costs as much to guess a secret by it as a password by its hash:
    50 ms of a processor and 16 MiB a guess. Done by a thread.
    """
    salt = b"amqpd cluster " + cluster.encode()
    return hashlib.scrypt(secret, salt=salt, n=1 << 14, r=8, p=1, dklen=16).hex()


# -- bytes -----------------------------------------------------------------------------------------------------------


def encode(preamble: Preamble) -> bytes:
    """As JSON. Of a client whose properties or certificate make it too long only what matters of them is told."""
    body = _json(preamble)
    client = preamble.client
    if len(body) > PREAMBLE_BYTES_MAX and client is not None:
        kept = ("capabilities", "product", "connection_name")
        properties = {name: client.client_properties[name] for name in kept if name in client.client_properties}
        body = _json(preamble._replace(client=client._replace(client_properties=properties, certificate={})))
    return body


def _json(preamble: Preamble) -> bytes:
    said: dict[str, Any] = {"kind": preamble.kind, "node": preamble.node, "run": preamble.run}
    if preamble.client is not None:
        fields = preamble.client._asdict()
        fields["client_properties"] = b64encode(encode_table(preamble.client.client_properties)).decode("ascii")
        said["client"] = fields
    return json.dumps(said).encode()


def framed(body: bytes, proven: bytes) -> bytes:
    """Preamble and proof, as they go out."""
    return _LENGTH.pack(len(body)) + body + proven


def cut(data: bytes) -> tuple[bytes, bytes] | None:
    """Preamble and proof of what has come; None while it is not complete. Raises: BadPreamble."""
    if len(data) < _LENGTH.size:
        return None
    length: int = _LENGTH.unpack_from(data)[0]
    if not 0 < length <= PREAMBLE_BYTES_MAX:
        raise BadPreamble(f"a preamble of {length} bytes")
    end = _LENGTH.size + length
    if len(data) > end + PROOF_BYTES:
        raise BadPreamble("more than a preamble and its proof")
    if len(data) < end + PROOF_BYTES:
        return None
    return data[_LENGTH.size : end], data[end:]


def decode(body: bytes) -> Preamble:
    """Its proof is right: who sent it knows the secret, and may be of another version. Raises: BadPreamble."""
    try:
        said = json.loads(body)
        kind, node, run = said["kind"], said["node"], said["run"]
        for name in (kind, node, run):
            _check(name, str)
        if kind not in KINDS:
            raise BadPreamble(f"a connection of kind {kind[:40]!r} is asked for")
        return Preamble(kind, node, run, _client(said["client"]) if kind == AMQP else None)
    except (ValueError, KeyError, TypeError, CodecError, RecursionError) as error:
        raise BadPreamble(f"not understood: {error!r}"[:200]) from None


def _client(said: Any) -> ProxiedClient:
    peer, local, cipher = said["peer"], said["local"], said["cipher"]
    for value, kind in (
        *((said[name], str) for name in ("user", "vhost", "mechanism", "client_properties")),
        *((said[name], int) for name in ("channel_max", "frame_max", "heartbeat_s", "position")),
        *((said[name], bool) for name in ("loopback", "tls")),
        *((each[0], str) for each in (peer, local, cipher)),
        *((each[1], int) for each in (peer, local)),
        (cipher[1], str),
        (said["connected_at"], float),
        (said["certificate"], dict),
    ):
        _check(value, kind)
    properties, _ = decode_table(b64decode(said["client_properties"], validate=True), 0)
    whole = {**said, "client_properties": properties}
    whole["peer"], whole["local"], whole["cipher"] = (peer[0], peer[1]), (local[0], local[1]), (cipher[0], cipher[1])
    return ProxiedClient(**{name: whole[name] for name in ProxiedClient._fields})


def _check(value: object, kind: type) -> None:
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise BadPreamble(f"not understood: {value!r} is no {kind.__name__}"[:200])
    if isinstance(value, str) and len(value) > PREAMBLE_BYTES_MAX:
        raise BadPreamble("a text is too long")


def answer(number: int, text: str = "") -> bytes:
    """As it goes out."""
    said = text.encode()[:_NAME_BYTES_MAX]
    return _ANSWER.pack(number, len(said)) + said


def answered(data: bytes) -> HelloAnswer | None:
    """The answer at the front of what has come; None while it is not complete. Raises: BadPreamble."""
    if len(data) < _ANSWER.size:
        return None
    number, length = _ANSWER.unpack_from(data)
    if number > WRONG_SECRET or length > _NAME_BYTES_MAX:
        raise BadPreamble(f"an answer that is none: {data[:16]!r}")
    size = _ANSWER.size + length
    if len(data) < size:
        return None
    return HelloAnswer(number, data[_ANSWER.size : size].decode("utf-8", "replace"), size)


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


class PeerUnreachable(Exception):
    """The node could not be asked; the text says why. It may be another time."""


class PeerRefused(Exception):
    """The node has answered, and the answer is no. answer: NOT_MINE, REFUSED or WRONG_SECRET."""

    def __init__(self, answer: int, text: str) -> None:
        super().__init__(text)
        self.answer = answer


# -- who listens -----------------------------------------------------------------------------------------------------


class PendingPeer(asyncio.Protocol):
    """Behind TLS: its preamble comes, or does not."""

    def __init__(self) -> None:
        self.nonce = secrets.token_bytes(NONCE_BYTES)
        self.data = b""
        self.complete: asyncio.Future[tuple[bytes, bytes]] = asyncio.get_running_loop().create_future()

    def data_received(self, data: bytes) -> None:
        if self.complete.done():
            return
        self.data += data
        try:
            found = cut(self.data)
        except BadPreamble as error:
            self.complete.set_exception(error)
            return
        if found is not None:
            self.complete.set_result(found)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.complete.done():
            self.complete.set_exception(ConnectionResetError("it went away"))
            self.complete.exception()  # who waited for it may have gone


class PeerListener:
    """The inner port. identity: what it shows. secret: of the cluster."""

    def __init__(self, identity: NodeCertificate, secret: bytes, kinds: Kinds) -> None:
        self._identity = identity
        self._secret = secret
        self._kinds = kinds
        # By address, the oldest first.
        self._waiting: dict[str, dict[_IncomingSocket, None]] = {}
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
        waiting = _IncomingSocket(sock, address)
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

    def _left(self, waiting: _IncomingSocket) -> None:
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

    async def _admit(self, waiting: _IncomingSocket) -> None:
        waiting.begun = True
        guest = PendingPeer()
        transport: asyncio.Transport | None = None
        try:
            async with asyncio.timeout(WAIT_S):
                transport, _ = await asyncio.get_running_loop().connect_accepted_socket(
                    lambda: guest, waiting.sock, ssl=self._identity.context, ssl_handshake_timeout=WAIT_S
                )
                waiting.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                transport.write(GREETING + guest.nonce)
                body, proof = await guest.complete
                transport.pause_reading()
                if not is_proof(proof, self._secret, guest.nonce, self._identity.fingerprint, body):
                    transport.write(answer(WRONG_SECRET, "the secrets differ"))
                    transport.close()
                    self._refused(waiting.address, "the proof of its preamble is wrong: another cluster.secret?")
                    return
                preamble = decode(body)
            self._left(waiting)
            take = self._kinds.get(preamble.kind)
            if take is None:
                refuse(transport, NOT_MINE, f"nothing of kind {preamble.kind} is taken here")
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


class _IncomingSocket:
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
    transport.write(answer(WELCOME))
    transport.set_protocol(protocol)
    protocol.connection_made(transport)
    transport.resume_reading()


def refuse(transport: asyncio.Transport, number: int, text: str) -> None:
    """A kind's answer: no. number: NOT_MINE or REFUSED."""
    transport.write(answer(number, text))
    transport.close()


# -- who connects ----------------------------------------------------------------------------------------------------


class _HelloClient(asyncio.Protocol):
    """Says the preamble when the nonce is there; then the answer comes."""

    def __init__(self, node: NodeState, secret: bytes, body: bytes) -> None:
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
            self._end(PeerUnreachable(f"its certificate is another: {found}, not {self._node.fingerprint}"))

    def data_received(self, data: bytes) -> None:
        if self.answer.done():
            return
        self._data += data
        try:
            self._look()
        except BadPreamble as error:
            self._end(PeerUnreachable(str(error)))

    def _look(self) -> None:
        if not self._said:
            if len(self._data) < HELLO_BYTES:
                if not GREETING.startswith(self._data[: len(GREETING)]):
                    raise BadPreamble(f"no inner port of this version: {self._data[:16]!r}")
                return
            if not self._data.startswith(GREETING):
                raise BadPreamble(f"no inner port of this version: {self._data[:16]!r}")
            nonce = self._data[len(GREETING) : HELLO_BYTES]
            self._data = self._data[HELLO_BYTES:]
            self._said = True
            proven = proof(self._secret, nonce, self._node.fingerprint, self._body)
            assert self._transport is not None  # something came by it
            self._transport.write(framed(self._body, proven))
        found = answered(self._data)
        if found is None:
            return
        if found.answer != WELCOME:
            self._end(PeerRefused(found.answer, found.text))
        else:
            assert self._transport is not None
            self._transport.pause_reading()
            self.answer.set_result(self._data[found.size :])

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.answer.done():
            self.answer.set_exception(PeerUnreachable(f"it ended the connection: {exc or 'without an answer'}"))

    def _end(self, error: Exception) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)
        if self._transport is not None:
            self._transport.abort()


class PeerConnector:
    """How this node connects to others. node: its name. run: of this process."""

    def __init__(self, node: str, secret: bytes) -> None:
        self.node = node
        self.run = secrets.token_hex(16)
        self._secret = secret
        self._context: ssl.SSLContext = peer_context()

    def preamble(self, kind: str, client: ProxiedClient | None = None) -> Preamble:
        """Of this node."""
        return Preamble(kind, self.node, self.run, client)

    async def open(self, node: NodeState, preamble: Preamble, protocol: asyncio.Protocol) -> asyncio.Transport:
        """A connection that carries from here on what the preamble asks for, and is `protocol`'s; it is read.

        Cost: two round trips and 2 ms of a processor. Raises: NotReached, Refused.
        """
        opening = _HelloClient(node, self._secret, encode(preamble))
        transport: asyncio.Transport | None = None
        try:
            async with asyncio.timeout(WAIT_S):
                transport, _ = await asyncio.get_running_loop().create_connection(
                    lambda: opening,
                    node.host,
                    node.port,
                    ssl=self._context,
                    server_hostname=node.host,
                    ssl_handshake_timeout=WAIT_S,
                )
                rest = await opening.answer
        except (OSError, TimeoutError) as error:
            raise PeerUnreachable(
                f"node {node.name} at {node.host}:{node.port}: {str(error) or 'no answer'}"
            ) from error
        except PeerUnreachable as error:
            raise PeerUnreachable(f"node {node.name} at {node.host}:{node.port}: {error}") from error
        except PeerRefused as error:
            if error.answer == WRONG_SECRET:
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
            raise PeerUnreachable(f"node {node.name} at {node.host}:{node.port}: it ended the connection")
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        if rest:
            protocol.data_received(rest)
        transport.resume_reading()
        return transport
