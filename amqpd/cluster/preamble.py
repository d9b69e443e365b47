"""What is said on an inner connection before it carries anything: who connects, that he knows the cluster's secret, and
what he wants.

Inside TLS, by bytes:

    node that listens     `amqpd-inner 1\\n`, a nonce of 32 bytes
    node that connects    u32 length of the preamble, the preamble, 32 bytes of proof
    node that listens     u8 answer, u16 length of a text, the text

The preamble is JSON, at most PREAMBLE_BYTES_MAX. The proof is HMAC-SHA256 by the secret over the line, the nonce, the
listening node's fingerprint and the preamble: a proof is good for one connection to one node, whoever overheard it. The
nonce is new for each connection, so none is taken twice. Who connects has compared the certificate's fingerprint before
he says anything, so a node that only claims an address hears no preamble.

No IO here, and nothing of what a preamble asks for is done here.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import struct
from base64 import b64decode, b64encode
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from amqpd.protocol.field_table import CodecError, decode_table, encode_table

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


class Answered(NamedTuple):
    """answer: one of the four. size: bytes of it."""

    answer: int
    text: str
    size: int


class Client(NamedTuple):
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
    client: Client | None = None


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


def _client(said: Any) -> Client:
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
    return Client(**{name: whole[name] for name in Client._fields})


def _check(value: object, kind: type) -> None:
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise BadPreamble(f"not understood: {value!r} is no {kind.__name__}"[:200])
    if isinstance(value, str) and len(value) > PREAMBLE_BYTES_MAX:
        raise BadPreamble("a text is too long")


def answer(number: int, text: str = "") -> bytes:
    """As it goes out."""
    said = text.encode()[:_NAME_BYTES_MAX]
    return _ANSWER.pack(number, len(said)) + said


def answered(data: bytes) -> Answered | None:
    """The answer at the front of what has come; None while it is not complete. Raises: BadPreamble."""
    if len(data) < _ANSWER.size:
        return None
    number, length = _ANSWER.unpack_from(data)
    if number > WRONG_SECRET or length > _NAME_BYTES_MAX:
        raise BadPreamble(f"an answer that is none: {data[:16]!r}")
    size = _ANSWER.size + length
    return Answered(number, data[_ANSWER.size : size].decode("utf-8", "replace"), size) if len(data) >= size else None
