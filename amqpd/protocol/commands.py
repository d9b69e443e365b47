"""Every method of AMQP 0-9-1 as RabbitMQ speaks it: the way from bytes to its NamedTuple and back.

The payload of a method frame is class id u16, method id u16, arguments. A method is known here by both ids in one
number, `class << 16 | method` (QUEUE_DECLARE); the tables in `methods/`, a file per class, tie that number to name,
NamedTuple and plan of arguments (letters: see plans.py). Reserved arguments, the access ticket among them, have no
field: they are passed over when read and sent as zero. Both directions of every method are there, also those that only
a server may send: whether a method is legal where it stands is for the connection and the channel to say.

Every field has a default, so that a test or a reply names what matters: `QueueDeclare(queue="jobs", durable=True)`.
This is the slow path: publish, deliver and ack have faster ways of their own, which agree with this one. Whoever
speaks methods of several classes finds them all by this module's name.

Source: AMQP 0-9-1 (amqp0-9-1.xml) and RabbitMQ's extensions to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, TypeAlias

from amqpd.protocol.field_table import CodecError
from amqpd.protocol.methods import *
from amqpd.protocol.channel import *
from amqpd.protocol.connection import *
from amqpd.protocol.exchange import *
from amqpd.protocol.modes import *
from amqpd.protocol.queue import *
from amqpd.protocol.plans import read_arguments, write_arguments

Command: TypeAlias = (
    ConnectionCommand | ChannelCommand | ExchangeCommand | QueueCommand | BasicCommand | ModeCommand
)

_CATALOGUE: Final[tuple[tuple[int, str, type[Command], str], ...]] = (
    *CONNECTION_METHODS,
    *CHANNEL_METHODS,
    *EXCHANGE_METHODS,
    *QUEUE_METHODS,
    *BASIC_METHODS,
    *MODE_METHODS,
)

_SHOWN_BYTES_MAX: Final = 32  # so that a reply text, 255 bytes at most, holds them all at up to four characters each


class MethodSyntaxError(Exception):
    """A method whose arguments cannot be read. The peer is told 501.

    text: what a client sees behind `FRAME_ERROR - `, worded as by RabbitMQ. reason: what was wrong, for the log.
    """

    def __init__(self, class_id: int, method_id: int, text: str, reason: str) -> None:
        super().__init__(f"{text}: {reason}")
        self.class_id = class_id
        self.method_id = method_id
        self.text = text
        self.reason = reason


class UnknownMethod(Exception):
    """A class or method id that AMQP 0-9-1 does not have. The peer is told 540."""

    def __init__(self, class_id: int, method_id: int) -> None:
        super().__init__(f"no method {class_id}.{method_id}")
        self.class_id = class_id
        self.method_id = method_id


class _Method:
    """A row of the catalogue, made ready for use."""

    __slots__ = ("head", "make", "name", "number", "plan")

    def __init__(self, number: int, name: str, command: type[Command], plan: str) -> None:
        self.number = number
        self.name = name
        self.plan = plan
        self.head = number.to_bytes(4, "big")
        self.make: Callable[[Iterable[object]], Command] = command._make


_BY_NUMBER: Final = {row[0]: _Method(*row) for row in _CATALOGUE}
_BY_COMMAND: Final = {row[2]: _BY_NUMBER[row[0]] for row in _CATALOGUE}


def decode(payload: bytes) -> Command:
    """The command in the whole payload of a method frame.

    Cost: 1 to 4 us interpreted. Raises: MethodSyntaxError when it is cut off, has bytes left over, a name that is not
    UTF-8 or a bad table (ids 0 when it is too short for them); UnknownMethod.
    Spec: AMQP 0-9-1 2.3.5.1; RabbitMQ: `cannot decode <<1>>`, the arguments in decimal.
    """
    if len(payload) < 4:
        raise MethodSyntaxError(0, 0, f"cannot decode {_octets(payload)}", "no class and method id")
    number = int.from_bytes(payload[:4], "big")
    method = _BY_NUMBER.get(number)
    if method is None:
        raise UnknownMethod(number >> 16, number & 0xFFFF)
    try:
        return method.make(read_arguments(method.plan, payload, 4))
    except CodecError as error:
        raise MethodSyntaxError(
            number >> 16, number & 0xFFFF, f"cannot decode {_octets(payload[4:])}", f"{method.name}: {error}"
        ) from None


def encode(command: Command) -> bytes:
    """`command` as the payload of a method frame. Raises: CodecError when a value does not fit its field."""
    method = _BY_COMMAND[type(command)]
    if method.plan == "":
        return method.head
    return write_arguments(method.plan, command, method.head)


def frame(channel: int, command: Command) -> bytes:
    """`command` as a whole method frame on `channel`. Raises: CodecError."""
    payload = encode(command)
    return b"\x01" + channel.to_bytes(2, "big") + len(payload).to_bytes(4, "big") + payload + b"\xce"


def method_id(command: Command) -> int:
    """Class id << 16 | method id of `command`."""
    return _BY_COMMAND[type(command)].number


def method_name(method: int) -> str:
    """`queue.declare` for QUEUE_DECLARE; both ids with a dot between them for a number that is no method."""
    known = _BY_NUMBER.get(method)
    return known.name if known is not None else f"{method >> 16}.{method & 0xFFFF}"


def _octets(raw: bytes) -> str:
    """`<<1,2,3>>`, cut short behind 32 octets."""
    shown = ",".join(str(octet) for octet in raw[:_SHOWN_BYTES_MAX])
    return f"<<{shown},...>>" if len(raw) > _SHOWN_BYTES_MAX else f"<<{shown}>>"
