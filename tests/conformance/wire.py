"""Frames, methods, tables and properties as bytes, including malformed ones, for `Peer`.

`SIGNATURES` has all methods; their arguments may be raw bytes. Decoding is strict: a malformed frame from the broker
fails the test. `test_wire.py` compares the table with pamqp, an independent implementation.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

METHOD: Final = 1
HEADER: Final = 2
BODY: Final = 3
HEARTBEAT: Final = 8
FRAME_END: Final = 0xCE
PROTOCOL: Final = b"AMQP\x00\x00\x09\x01"

# name: (class, method, arguments); o octet, B short, I long, Q longlong, s shortstr, S longstr, T table, b bit
SIGNATURES: Final[dict[str, tuple[int, int, str]]] = {
    "connection.start": (10, 10, "version_major:o version_minor:o server_properties:T mechanisms:S locales:S"),
    "connection.start-ok": (10, 11, "client_properties:T mechanism:s response:S locale:s"),
    "connection.secure": (10, 20, "challenge:S"),
    "connection.secure-ok": (10, 21, "response:S"),
    "connection.tune": (10, 30, "channel_max:B frame_max:I heartbeat:B"),
    "connection.tune-ok": (10, 31, "channel_max:B frame_max:I heartbeat:B"),
    "connection.open": (10, 40, "virtual_host:s capabilities:s insist:b"),
    "connection.open-ok": (10, 41, "known_hosts:s"),
    "connection.close": (10, 50, "reply_code:B reply_text:s class_id:B method_id:B"),
    "connection.close-ok": (10, 51, ""),
    "connection.blocked": (10, 60, "reason:s"),
    "connection.unblocked": (10, 61, ""),
    "connection.update-secret": (10, 70, "new_secret:S reason:s"),
    "connection.update-secret-ok": (10, 71, ""),
    "channel.open": (20, 10, "out_of_band:s"),
    "channel.open-ok": (20, 11, "channel_id:S"),
    "channel.flow": (20, 20, "active:b"),
    "channel.flow-ok": (20, 21, "active:b"),
    "channel.close": (20, 40, "reply_code:B reply_text:s class_id:B method_id:B"),
    "channel.close-ok": (20, 41, ""),
    "access.request": (30, 10, "realm:s exclusive:b passive:b active:b write:b read:b"),
    "access.request-ok": (30, 11, "ticket:B"),
    "exchange.declare": (
        40,
        10,
        "ticket:B exchange:s type:s passive:b durable:b auto_delete:b internal:b nowait:b arguments:T",
    ),
    "exchange.declare-ok": (40, 11, ""),
    "exchange.delete": (40, 20, "ticket:B exchange:s if_unused:b nowait:b"),
    "exchange.delete-ok": (40, 21, ""),
    "exchange.bind": (40, 30, "ticket:B destination:s source:s routing_key:s nowait:b arguments:T"),
    "exchange.bind-ok": (40, 31, ""),
    "exchange.unbind": (40, 40, "ticket:B destination:s source:s routing_key:s nowait:b arguments:T"),
    "exchange.unbind-ok": (40, 51, ""),
    "queue.declare": (
        50,
        10,
        "ticket:B queue:s passive:b durable:b exclusive:b auto_delete:b nowait:b arguments:T",
    ),
    "queue.declare-ok": (50, 11, "queue:s message_count:I consumer_count:I"),
    "queue.bind": (50, 20, "ticket:B queue:s exchange:s routing_key:s nowait:b arguments:T"),
    "queue.bind-ok": (50, 21, ""),
    "queue.purge": (50, 30, "ticket:B queue:s nowait:b"),
    "queue.purge-ok": (50, 31, "message_count:I"),
    "queue.delete": (50, 40, "ticket:B queue:s if_unused:b if_empty:b nowait:b"),
    "queue.delete-ok": (50, 41, "message_count:I"),
    "queue.unbind": (50, 50, "ticket:B queue:s exchange:s routing_key:s arguments:T"),
    "queue.unbind-ok": (50, 51, ""),
    "basic.qos": (60, 10, "prefetch_size:I prefetch_count:B global:b"),
    "basic.qos-ok": (60, 11, ""),
    "basic.consume": (
        60,
        20,
        "ticket:B queue:s consumer_tag:s no_local:b no_ack:b exclusive:b nowait:b arguments:T",
    ),
    "basic.consume-ok": (60, 21, "consumer_tag:s"),
    "basic.cancel": (60, 30, "consumer_tag:s nowait:b"),
    "basic.cancel-ok": (60, 31, "consumer_tag:s"),
    "basic.publish": (60, 40, "ticket:B exchange:s routing_key:s mandatory:b immediate:b"),
    "basic.return": (60, 50, "reply_code:B reply_text:s exchange:s routing_key:s"),
    "basic.deliver": (60, 60, "consumer_tag:s delivery_tag:Q redelivered:b exchange:s routing_key:s"),
    "basic.get": (60, 70, "ticket:B queue:s no_ack:b"),
    "basic.get-ok": (60, 71, "delivery_tag:Q redelivered:b exchange:s routing_key:s message_count:I"),
    "basic.get-empty": (60, 72, "cluster_id:s"),
    "basic.ack": (60, 80, "delivery_tag:Q multiple:b"),
    "basic.reject": (60, 90, "delivery_tag:Q requeue:b"),
    "basic.recover-async": (60, 100, "requeue:b"),
    "basic.recover": (60, 110, "requeue:b"),
    "basic.recover-ok": (60, 111, ""),
    "basic.nack": (60, 120, "delivery_tag:Q multiple:b requeue:b"),
    "confirm.select": (85, 10, "nowait:b"),
    "confirm.select-ok": (85, 11, ""),
    "tx.select": (90, 10, ""),
    "tx.select-ok": (90, 11, ""),
    "tx.commit": (90, 20, ""),
    "tx.commit-ok": (90, 21, ""),
    "tx.rollback": (90, 30, ""),
    "tx.rollback-ok": (90, 31, ""),
}
NAMES: Final = {(entry[0], entry[1]): name for name, entry in SIGNATURES.items()}


class Field(NamedTuple):
    """A field value with an explicit type letter: `Field("I", 5)`. Bytes are sent unchanged."""

    letter: str
    value: Any


_PACK: Final = {
    "I": ">i", "l": ">q", "b": ">b", "B": ">B", "s": ">h", "u": ">H", "i": ">I", "L": ">q", "f": ">f",
    "d": ">d", "T": ">Q",
}  # fmt: skip


def shortstr(value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return bytes([len(raw)]) + raw


def longstr(value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack(">I", len(raw)) + raw


def field_value(value: Any) -> bytes:
    """Encode one field value with its letter; Python values get the letter that most clients choose."""
    if not isinstance(value, Field):
        if value is None:
            value = Field("V", b"")
        elif isinstance(value, bool):
            value = Field("t", value)
        elif isinstance(value, int):
            value = Field("I" if -(2**31) <= value < 2**31 else "l", value)
        elif isinstance(value, float):
            value = Field("d", value)
        elif isinstance(value, (str, bytes)):
            value = Field("S", value)
        elif isinstance(value, dict):
            value = Field("F", value)
        elif isinstance(value, (list, tuple)):
            value = Field("A", value)
        else:
            raise TypeError(f"no AMQP type for {value!r}")
    letter, what = value
    head = letter.encode()
    if letter in ("S", "x"):
        return head + longstr(what)
    if isinstance(what, bytes):
        return head + what
    if letter == "t":
        return head + bytes([int(what)])
    if letter == "F":
        return head + table(what)
    if letter == "A":
        return head + longstr(b"".join(field_value(item) for item in what))
    if letter == "D":
        return head + struct.pack(">BI", *what)
    return head + struct.pack(_PACK[letter], what)


def table(entries: dict[Any, Any] | bytes | None) -> bytes:
    """Encode a field table with its length; raw bytes are taken as the complete table, including the length."""
    if isinstance(entries, bytes):
        return entries
    return longstr(b"".join(shortstr(key) + field_value(value) for key, value in (entries or {}).items()))


def frame(kind: int, channel: int, payload: bytes, *, size: int | None = None, end: int = FRAME_END) -> bytes:
    return struct.pack(">BHI", kind, channel, len(payload) if size is None else size) + payload + bytes([end])


def method_payload(name: str, /, **arguments: Any) -> bytes:
    """Return the payload of a method frame; missing arguments are 0, empty or false. `global_` sets the bit named
    global.
    """
    class_id, method_id, signature = SIGNATURES[name]
    out = struct.pack(">HH", class_id, method_id)
    bits: list[bool] = []
    given = {key.removesuffix("_"): value for key, value in arguments.items()}
    for part in signature.split():
        argument, kind = part.split(":")
        value = given.pop(argument, None)
        if kind == "b":
            bits.append(bool(value))
            continue
        if bits:
            out, bits = out + _packed(bits), []
        if kind == "s":
            out += shortstr(value or "")
        elif kind == "S":
            out += longstr(value or "")
        elif kind == "T":
            out += table(value)
        else:
            out += struct.pack({"o": ">B", "B": ">H", "I": ">I", "Q": ">Q"}[kind], value or 0)
    if bits:
        out += _packed(bits)
    if given:
        raise TypeError(f"{name} has no argument {', '.join(given)}")
    return out


def _packed(bits: list[bool]) -> bytes:
    return bytes(
        sum(bit << place for place, bit in enumerate(bits[start : start + 8])) for start in range(0, len(bits), 8)
    )


def method(name: str, /, channel: int = 1, **arguments: Any) -> bytes:
    return frame(METHOD, channel, method_payload(name, **arguments))


PROPERTY_BITS: Final = {
    "content_type": (15, "s"), "content_encoding": (14, "s"), "headers": (13, "T"), "delivery_mode": (12, "o"),
    "priority": (11, "o"), "correlation_id": (10, "s"), "reply_to": (9, "s"), "expiration": (8, "s"),
    "message_id": (7, "s"), "timestamp": (6, "Q"), "type": (5, "s"), "user_id": (4, "s"), "app_id": (3, "s"),
    "cluster_id": (2, "s"),
}  # fmt: skip


def properties(**values: Any) -> bytes:
    """Return property flags and fields as a content header has them after the body size."""
    flags = 0
    out = b""
    for name, (bit, kind) in PROPERTY_BITS.items():
        if name not in values:
            continue
        value = values.pop(name)
        flags |= 1 << bit
        if kind == "s":
            out += shortstr(value)
        elif kind == "T":
            out += table(value)
        else:
            out += struct.pack({"o": ">B", "Q": ">Q"}[kind], value)
    if values:
        raise TypeError(f"no property {', '.join(values)}")
    return struct.pack(">H", flags) + out


def header(size: int, props: bytes = b"\0\0", channel: int = 1, *, class_id: int = 60, weight: int = 0) -> bytes:
    return frame(HEADER, channel, struct.pack(">HHQ", class_id, weight, size) + props)


def body(payload: bytes, channel: int = 1) -> bytes:
    return frame(BODY, channel, payload)


def heartbeat() -> bytes:
    return frame(HEARTBEAT, 0, b"")


def publish(
    routing_key: str = "",
    payload: bytes = b"x",
    props: bytes = b"\0\0",
    *,
    exchange: str = "",
    channel: int = 1,
    mandatory: bool = False,
    immediate: bool = False,
    frame_max: int = 131072,
) -> bytes:
    """Return basic.publish, header and as many body frames as `frame_max` requires."""
    step = frame_max - 8
    parts = [payload[at : at + step] for at in range(0, len(payload), step)]
    return b"".join(
        [
            method(
                "basic.publish",
                channel,
                exchange=exchange,
                routing_key=routing_key,
                mandatory=mandatory,
                immediate=immediate,
            ),
            header(len(payload), props, channel),
            *(body(part, channel) for part in parts),
        ]
    )


class _Reader:
    """Cuts a method's arguments and fails the test if the bytes do not fit exactly."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def take(self, size: int) -> bytes:
        piece = self.data[self.at : self.at + size]
        assert len(piece) == size, f"the broker sent a truncated method: {self.data!r}"
        self.at += size
        return piece

    def argument(self, kind: str) -> Any:
        if kind == "s":
            return self.take(self.take(1)[0]).decode("utf-8", "surrogateescape")
        if kind == "S":
            return self.take(int.from_bytes(self.take(4), "big"))
        if kind == "T":
            return self.take(int.from_bytes(self.data[self.at : self.at + 4], "big") + 4)
        return int.from_bytes(self.take({"o": 1, "B": 2, "I": 4, "Q": 8}[kind]), "big")


def decode_method(payload: bytes) -> tuple[str, dict[str, Any]]:
    """Return name and arguments of a method frame's payload. Raises AssertionError unless it is exactly well formed."""
    key = (int.from_bytes(payload[:2], "big"), int.from_bytes(payload[2:4], "big"))
    assert key in NAMES, f"the broker sent the unknown method {key}"
    name = NAMES[key]
    reader = _Reader(payload[4:])
    arguments: dict[str, Any] = {}
    bit = 8
    octet = 0
    for part in SIGNATURES[name][2].split():
        argument, kind = part.split(":")
        if kind != "b":
            bit = 8
            arguments[argument] = reader.argument(kind)
            continue
        if bit == 8:
            octet, bit = reader.take(1)[0], 0
        arguments[argument] = bool(octet >> bit & 1)
        bit += 1
    assert reader.at == len(reader.data), f"the broker sent {name} with trailing bytes: {payload!r}"
    return name, arguments


@dataclass(frozen=True)
class Frame:
    """One received frame. name: the method, or the kind of another frame. arguments: those of a method."""

    kind: int
    channel: int
    payload: bytes
    name: str
    arguments: dict[str, Any] = field(default_factory=dict)

    def __getitem__(self, argument: str) -> Any:
        return self.arguments[argument]

    def __str__(self) -> str:
        return f"{self.name}/ch{self.channel} {self.arguments or self.payload[:60]!r}"
