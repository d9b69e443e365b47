r"""Connections between nodes: the peer port (`cluster.listen`), its protocol, certificates and heartbeats.

**Peer port** (`PeerListener`). Only nodes connect to it. A new socket has WAIT_S for TLS and the preamble together.
At most WAITING_MAX sockets wait at a time, of one address WAITING_PER_ADDRESS_MAX. If there are more, the oldest
socket of the address with the most sockets is closed, so silent sockets cannot keep a node out. A client without
the secret learns only that its proof is wrong.

The preamble names the kind of the connection. The listener calls the function for that kind (`Kinds`), which
answers and installs a protocol of its own.

**Hello**, inside TLS:

    listening node      `amqpd-inner 1\n`, a nonce of 32 bytes
    connecting node     u32 length of the preamble, the preamble, 32 bytes of proof
    listening node      u8 answer, u16 length of a text, the text

The preamble is JSON of at most PREAMBLE_BYTES_MAX. The proof is HMAC-SHA256 with the cluster's secret over the
greeting line, the nonce, the listening node's fingerprint and the preamble. An intercepted proof cannot be used
again: the nonce is new for each connection, and the fingerprint binds the proof to one node. The connecting node
compares the fingerprint before it sends anything, so a false node at the address learns nothing.

**Certificate** (`identity`). A node makes its own certificate at its first start:

    <data_dir>/cluster-node.pem     key and certificate, mode 0600

It is self-signed, its names do not matter, and it never expires. The node announces the fingerprint in the
cluster's metadata; other nodes accept only this certificate. To replace it, stop the node and remove the file.

**Heartbeat** (`PeerHeartbeat`). A node keeps one link to each node that serves its clients. Both ends send a byte
every PING_S; the link is dead after DEAD_S without one. All connections that are proxied between the two processes
end with the link. The byte contains the sender's resource alarms (MEMORY, DISK) and is also sent when they change.

Proxied streams contain only bytes of clients, so they cannot carry heartbeats. TCP_USER_TIMEOUT would also close a
connection whose peer only does not read (DECISIONS.md). The link also detects a stopped process (SIGSTOP), which no
TCP option does.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import hmac
import json
import logging
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
from amqpd.storage.filesystem import FileSystem

if TYPE_CHECKING:
    from amqpd.cluster.view import NodeState


NAME: Final = "cluster-node.pem"
_BEGIN: Final = datetime(2020, 1, 1, tzinfo=UTC)  # valid for any clock of another node
_END: Final = datetime(9999, 12, 31, tzinfo=UTC)  # RFC 5280 4.1.2.5: no expiry date


class NodeCertificate(NamedTuple):
    """Certificate of this node.

    Attributes:
        context: TLS context of the peer port.
        fingerprint: SHA-256 of the certificate in hexadecimal.
    """

    context: ssl.SSLContext
    fingerprint: str


def identity(data_dir: Path) -> NodeCertificate:
    """Load the node's certificate, or make one.

    Cost: reads and writes files, and imports `cryptography` for a new certificate (50 ms): run it in a thread.

    Raises: OSError: the file cannot be read or written; ssl.SSLError, a subclass, if it is no certificate.
    """
    path = data_dir / NAME
    if not path.exists():
        FileSystem().replace_file(str(path), _make_certificate(), sync=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.num_tickets = 0  # no session is resumed
    context.load_cert_chain(path)
    return NodeCertificate(context, fingerprint(ssl.PEM_cert_to_DER_cert(_certificate_of(path.read_text("ascii")))))


def fingerprint(certificate: bytes) -> str:
    """Return the SHA-256 of a DER certificate in hexadecimal."""
    return hashlib.sha256(certificate).hexdigest()


def peer_context() -> ssl.SSLContext:
    """Return the TLS context for connections to other nodes.

    `_HelloClient` compares the fingerprint after the handshake, before it sends anything.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def _certificate_of(text: str) -> str:
    begin, end = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
    return begin + text.partition(begin)[2].partition(end)[0] + end


def _make_certificate() -> bytes:
    """Return a new key and certificate as PEM. Raises OSError."""
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


log = logging.getLogger(__name__)

PING_S: Final = 2.0
DEAD_S: Final = 6.0
MEMORY: Final = 1
DISK: Final = 2


class PeerHeartbeat(asyncio.Protocol):
    """One end of a heartbeat link.

    Args:
        node: the node at the other end.
        on_ended: called once when the link has ended for any reason.
        on_alarms: called when the other end's alarms change; they are 0 at first.
        alarms: those of this end.
    """

    def __init__(
        self,
        node: str,
        on_ended: Callable[[PeerHeartbeat], None],
        on_alarms: Callable[[int], None] = lambda _: None,
        alarms: int = 0,
    ) -> None:
        self.node = node
        self._on_alarms = on_alarms
        self._alarms = alarms
        self._peer_alarms = 0
        self._on_ended = on_ended
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._heard_at = 0.0
        self._ticked_at = 0.0

    @property
    def is_open(self) -> bool:
        return self._transport is not None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        loop = asyncio.get_running_loop()
        self._heard_at = self._ticked_at = loop.time()
        self._timer = loop.call_later(PING_S, self._tick)
        if self._alarms:
            self._transport.write(bytes((self._alarms,)))

    def data_received(self, data: bytes) -> None:
        self._heard_at = asyncio.get_running_loop().time()
        if data[-1] != self._peer_alarms:
            self._peer_alarms = data[-1]
            self._on_alarms(self._peer_alarms)

    def send_alarms(self, alarms: int) -> None:
        """Send the alarms of this end if they changed."""
        if alarms != self._alarms:
            self._alarms = alarms
            if self._transport is not None:
                self._transport.write(bytes((alarms,)))

    def connection_lost(self, exc: Exception | None) -> None:
        self._finish()

    def close(self) -> None:
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
        self._on_ended(self)

    def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        transport = self._transport
        assert transport is not None  # the timer is cancelled with it
        now = loop.time()
        if now - self._ticked_at > 2 * PING_S:
            self._heard_at = now  # this loop was blocked; bytes that arrived meanwhile are read next
        self._ticked_at = now
        if now - self._heard_at > DEAD_S:
            text = "node %s is silent for %g s: proxied connections to and from it are closed"
            log.warning(text, self.node, DEAD_S)
            self.close()
            return
        # The bytes of a peer that does not read are few until the link is dead.
        transport.write(bytes((self._alarms,)))
        self._timer = loop.call_later(PING_S, self._tick)


GREETING: Final = b"amqpd-inner 1\n"
NONCE_BYTES: Final = 32
HELLO_BYTES: Final = len(GREETING) + NONCE_BYTES
PROOF_BYTES: Final = 32
PREAMBLE_BYTES_MAX: Final = 16 * 1024
WAIT_S: Final = 5.0
"""Time limit of TLS and hello together."""

AMQP, HTTP, LINK, SERVED, WRITE = "amqp", "http", "link", "served", "write"
KINDS: Final = (AMQP, HTTP, LINK, SERVED, WRITE)

WELCOME, NOT_MINE, REFUSED, WRONG_SECRET = range(4)
"""Answers: accepted; another node or no node owns the vhost; refused, see the text; the proof is wrong."""

_LENGTH: Final = struct.Struct(">I")
_ANSWER: Final = struct.Struct(">BH")
_NAME_BYTES_MAX: Final = 1024


class BadPreamble(Exception):
    """Error: invalid hello data. The text is for the log."""


class HelloAnswer(NamedTuple):
    """Answer of the listening node.

    Attributes:
        answer: one of the four answers.
        size: its length in bytes.
    """

    answer: int
    text: str
    size: int


class ProxiedClient(NamedTuple):
    """Client of a proxied connection, as its node sees it.

    Attributes:
        peer, local: addresses of its socket.
        loopback: the client is on the same host as its node.
        certificate: the verified certificate of the client, in the form of the ssl module.
        position: how far its node has read slot 0.
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
    """First message of a connecting node.

    Attributes:
        kind: purpose of the connection, one of KINDS.
        node: name of the connecting node.
        run: id of its process, new after each start.
        client: only for kind AMQP.
    """

    kind: str
    node: str
    run: str
    client: ProxiedClient | None = None


def compute_proof(secret: bytes, nonce: bytes, fingerprint: str, preamble: bytes) -> bytes:
    """Return the proof for a connection.

    Args:
        nonce: the random bytes of this connection.
        fingerprint: the fingerprint of the listening node's certificate.
    """
    return hmac.digest(secret, GREETING + nonce + bytes.fromhex(fingerprint) + preamble, "sha256")


def is_proof(received: bytes, secret: bytes, nonce: bytes, fingerprint: str, preamble: bytes) -> bool:
    """Compare a proof in constant time."""
    return hmac.compare_digest(received, compute_proof(secret, nonce, fingerprint, preamble))


def secret_mark(secret: bytes, cluster: str) -> str:
    """Return a text that is equal for nodes with the same secret; nodes compare it in Kafka's group.

    Every client that may describe the group can read it. Guessing the secret from it costs 50 ms of CPU and 16 MiB
    per guess, like guessing a password from its hash. Run it in a thread.
    """
    salt = b"amqpd cluster " + cluster.encode()
    return hashlib.scrypt(secret, salt=salt, n=1 << 14, r=8, p=1, dklen=16).hex()


# -- bytes -----------------------------------------------------------------------------------------------------------


def encode_preamble(preamble: Preamble) -> bytes:
    """Encode the preamble as JSON. If it is too long, only the important client properties are included."""
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


def frame_preamble(body: bytes, proven: bytes) -> bytes:
    """Return preamble and proof as they are sent."""
    return _LENGTH.pack(len(body)) + body + proven


def split_preamble(data: bytes) -> tuple[bytes, bytes] | None:
    """Return preamble and proof; None while the data is incomplete. Raises BadPreamble."""
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


def decode_preamble(body: bytes) -> Preamble:
    """Decode a preamble whose proof is right. The sender knows the secret but may be of another version.

    Raises: BadPreamble: it is invalid or unknown.
    """
    try:
        said = json.loads(body)
        kind, node, run = said["kind"], said["node"], said["run"]
        for name in (kind, node, run):
            _check(name, str)
        if kind not in KINDS:
            raise BadPreamble(f"unknown kind of connection {kind[:40]!r}")
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


def encode_answer(number: int, text: str = "") -> bytes:
    said = text.encode()[:_NAME_BYTES_MAX]
    return _ANSWER.pack(number, len(said)) + said


def decode_answer(data: bytes) -> HelloAnswer | None:
    """Decode the answer at the start of `data`; None while it is incomplete. Raises BadPreamble."""
    if len(data) < _ANSWER.size:
        return None
    number, length = _ANSWER.unpack_from(data)
    if number > WRONG_SECRET or length > _NAME_BYTES_MAX:
        raise BadPreamble(f"an invalid answer: {data[:16]!r}")
    size = _ANSWER.size + length
    if len(data) < size:
        return None
    return HelloAnswer(number, data[_ANSWER.size : size].decode("utf-8", "replace"), size)


WAITING_MAX: Final = 512
WAITING_PER_ADDRESS_MAX: Final = 256
ACCEPTS_MAX: Final = 64
"""Maximum number of accepted sockets per loop turn."""
PAUSE_S: Final = 0.1
"""Pause of accepting when no file descriptor is free."""
LOG_S: Final = 1.0
"""Minimum interval of log lines about refused sockets."""

Kinds: TypeAlias = "Mapping[str, Callable[[Preamble, asyncio.Transport], Awaitable[None]]]"
"""kind -> function that handles a connection with a valid proof. Reading is paused. The function accepts or
refuses.
"""


class PeerUnreachable(Exception):
    """Error: the node could not be asked, with the reason. A later attempt may succeed."""


class PeerRefused(Exception):
    """Error: the node answered with a refusal.

    Attributes:
        answer: NOT_MINE, REFUSED or WRONG_SECRET.
    """

    def __init__(self, answer: int, text: str) -> None:
        super().__init__(text)
        self.answer = answer


# -- listening node ----------------------------------------------------------------------------------------------------


class PendingPeer(asyncio.Protocol):
    """Protocol of an accepted socket that waits for its preamble."""

    def __init__(self) -> None:
        self.nonce = secrets.token_bytes(NONCE_BYTES)
        self.data = b""
        self.complete: asyncio.Future[tuple[bytes, bytes]] = asyncio.get_running_loop().create_future()

    def data_received(self, data: bytes) -> None:
        if self.complete.done():
            return
        self.data += data
        try:
            found = split_preamble(self.data)
        except BadPreamble as error:
            self.complete.set_exception(error)
            return
        if found is not None:
            self.complete.set_result(found)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.complete.done():
            self.complete.set_exception(ConnectionResetError("it closed the connection"))
            self.complete.exception()  # the waiting task may be gone


class PeerListener:
    """Listener of the peer port.

    Attributes:
        waiting_count: sockets without a complete hello.
        refused_count: sockets that were refused since the start.
    """

    def __init__(self, identity: NodeCertificate, secret: bytes, kinds: Kinds) -> None:
        self._identity = identity
        self._secret = secret
        self._kinds = kinds
        # by address, the oldest first
        self._waiting: dict[str, dict[_IncomingSocket, None]] = {}
        self.waiting_count = 0
        self.refused_count = 0
        self._logged_at = -LOG_S
        self._sockets: list[socket.socket] = []
        self.port = 0

    def listen(self, host: str, port: int) -> list[Listener]:
        """Bind the sockets and accept connections. Raises OSError."""
        loop = asyncio.get_running_loop()
        self._sockets = bound_sockets(host, port)
        for sock in self._sockets:
            loop.add_reader(sock, self._accept, sock)
        self.port = self._sockets[0].getsockname()[1]
        return [Listener("cluster", sock.getsockname()[0], self.port) for sock in self._sockets]

    def close(self) -> None:
        for sock in self._sockets:
            asyncio.get_running_loop().remove_reader(sock)
            sock.close()
        self._sockets.clear()
        for waiting in [each for found in self._waiting.values() for each in found]:
            waiting.end()

    # -- limits of waiting sockets

    def _accept(self, listening: socket.socket) -> None:
        # An asyncio server would hide the time that TLS takes, which must count.
        for _ in range(ACCEPTS_MAX):
            try:
                sock, address = listening.accept()
            except BlockingIOError:
                return
            except OSError as error:
                # Usually no file descriptor is free; accept again in a moment.
                self._count_refused("a connection", str(error))
                loop = asyncio.get_running_loop()
                loop.remove_reader(listening)
                loop.call_later(PAUSE_S, self._resume_accepting, listening)
                return
            sock.setblocking(False)
            self._add_waiting(sock, str(address[0]))

    def _resume_accepting(self, listening: socket.socket) -> None:
        if listening in self._sockets:
            asyncio.get_running_loop().add_reader(listening, self._accept, listening)

    def _add_waiting(self, sock: socket.socket, address: str) -> None:
        """Add a waiting socket. Cost: 30 us, and 1 ms for the TLS handshake."""
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
        self._remove_waiting(oldest)
        self._count_refused(address, "too many connections wait")
        oldest.end()

    def _remove_waiting(self, waiting: _IncomingSocket) -> None:
        of_address = self._waiting.get(waiting.address, {})
        if waiting in of_address:
            del of_address[waiting]
            self.waiting_count -= 1
            if not of_address:
                del self._waiting[waiting.address]

    def _count_refused(self, address: str, why: str) -> None:
        self.refused_count += 1
        now = time.monotonic()
        if now - self._logged_at >= LOG_S:
            self._logged_at = now
            count = self.refused_count
            log.warning("peer port: refused %s: %s (%d since the start)", address, why, count)

    # -- hello of one socket

    async def _admit(self, waiting: _IncomingSocket) -> None:
        waiting.begun = True
        pending = PendingPeer()
        transport: asyncio.Transport | None = None
        try:
            async with asyncio.timeout(WAIT_S):
                transport, _ = await asyncio.get_running_loop().connect_accepted_socket(
                    lambda: pending, waiting.sock, ssl=self._identity.context, ssl_handshake_timeout=WAIT_S
                )
                waiting.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                transport.write(GREETING + pending.nonce)
                body, proof = await pending.complete
                transport.pause_reading()
                if not is_proof(proof, self._secret, pending.nonce, self._identity.fingerprint, body):
                    transport.write(encode_answer(WRONG_SECRET, "the secrets differ"))
                    transport.close()
                    self._count_refused(waiting.address, "wrong proof: does it have another cluster.secret?")
                    return
                preamble = decode_preamble(body)
            self._remove_waiting(waiting)
            take = self._kinds.get(preamble.kind)
            if take is None:
                refuse_peer(transport, NOT_MINE, f"connections of kind {preamble.kind} are not accepted here")
            else:
                await take(preamble, transport)
        except (BadPreamble, OSError, TimeoutError) as error:  # ssl.SSLError is an OSError
            self._count_refused(waiting.address, f"{error}" or "no preamble in time")
            _end(transport, waiting.sock)
        except asyncio.CancelledError:
            _end(transport, waiting.sock)
        except Exception:
            log.exception("peer port: a bug in amqpd, please report it")
            _end(transport, waiting.sock)
        finally:
            self._remove_waiting(waiting)


class _IncomingSocket:
    """Accepted socket that has not completed its hello.

    Attributes:
        begun: the task has started; cancelling it earlier would not close the socket.
    """

    def __init__(self, sock: socket.socket, address: str) -> None:
        self.sock = sock
        self.address = address
        self.begun = False
        self.task: asyncio.Task[None] | None = None

    def end(self) -> None:
        if self.task is not None:
            self.task.cancel()
        if not self.begun:
            self.sock.close()


def _end(transport: asyncio.Transport | None, sock: socket.socket) -> None:
    """Close a socket; asyncio closes the socket of a transport that it did not finish."""
    if transport is not None:
        transport.abort()
    else:
        sock.close()


def accept_peer(transport: asyncio.Transport, protocol: asyncio.Protocol) -> None:
    """Accept the connection: the protocol owns and reads it from now on."""
    transport.write(encode_answer(WELCOME))
    transport.set_protocol(protocol)
    protocol.connection_made(transport)
    transport.resume_reading()


def refuse_peer(transport: asyncio.Transport, number: int, text: str) -> None:
    """Refuse the connection with NOT_MINE or REFUSED."""
    transport.write(encode_answer(number, text))
    transport.close()


# -- connecting node ---------------------------------------------------------------------------------------------------


class _HelloClient(asyncio.Protocol):
    """Protocol of a connecting node until it gets its answer."""

    def __init__(self, node: NodeState, secret: bytes, body: bytes) -> None:
        self._node = node
        self._secret = secret
        self._body = body
        self._data = b""
        self._said = False
        self._transport: asyncio.Transport | None = None
        self.answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        """Bytes behind a welcome, usually none."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        sock = transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        shown: Any = transport.get_extra_info("ssl_object")
        found = fingerprint(shown.getpeercert(True) or b"")
        if found != self._node.fingerprint:
            self._end(PeerUnreachable(f"wrong certificate: {found}, not {self._node.fingerprint}"))

    def data_received(self, data: bytes) -> None:
        if self.answer.done():
            return
        self._data += data
        try:
            self._process()
        except BadPreamble as error:
            self._end(PeerUnreachable(str(error)))

    def _process(self) -> None:
        if not self._said:
            if not GREETING.startswith(self._data[: len(GREETING)]):
                raise BadPreamble(f"no peer port of this version: {self._data[:16]!r}")
            if len(self._data) < HELLO_BYTES:
                return
            nonce = self._data[len(GREETING) : HELLO_BYTES]
            self._data = self._data[HELLO_BYTES:]
            self._said = True
            proven = compute_proof(self._secret, nonce, self._node.fingerprint, self._body)
            assert self._transport is not None  # data has arrived
            self._transport.write(frame_preamble(self._body, proven))
        found = decode_answer(self._data)
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
            self.answer.set_exception(PeerUnreachable(f"it closed the connection: {exc or 'without an answer'}"))

    def _end(self, error: Exception) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)
        if self._transport is not None:
            self._transport.abort()


class PeerConnector:
    """Factory of connections to other nodes' peer ports.

    Attributes:
        node: name of this node.
        run: id of this process.
    """

    def __init__(self, node: str, secret: bytes) -> None:
        self.node = node
        self.run = secrets.token_hex(16)
        self._secret = secret
        self._context: ssl.SSLContext = peer_context()

    def preamble(self, kind: str, client: ProxiedClient | None = None) -> Preamble:
        return Preamble(kind, self.node, self.run, client)

    async def open(self, node: NodeState, preamble: Preamble, protocol: asyncio.Protocol) -> asyncio.Transport:
        """Open a connection and give it to `protocol`, which reads it from now on.

        Cost: two round trips and 2 ms of CPU.

        Raises:
            PeerUnreachable: no answer or an invalid one.
            PeerRefused: the node refused.
        """
        opening = _HelloClient(node, self._secret, encode_preamble(preamble))
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
        except (OSError, TimeoutError, PeerUnreachable) as error:
            raise PeerUnreachable(
                f"node {node.name} at {node.host}:{node.port}: {str(error) or 'no answer'}"
            ) from error
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
                opening.answer.exception()  # mark the error as seen, even if this task was cancelled
        if transport.is_closing():
            raise PeerUnreachable(f"node {node.name} at {node.host}:{node.port}: it closed the connection")
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        if rest:
            protocol.data_received(rest)
        transport.resume_reading()
        return transport
