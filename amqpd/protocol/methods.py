"""Methods of the class basic: publish, consume, deliver, get, ack. basic.nack is RabbitMQ's extension.

Every method of AMQP 0-9-1 as RabbitMQ speaks it: the way from bytes to its NamedTuple and back.

The payload of a method frame is class id u16, method id u16, arguments. A method is known here by both ids in one
number, `class << 16 | method` (QUEUE_DECLARE); the tables in `methods/`, a file per class, tie that number to name,
NamedTuple and plan of arguments (letters: see methods.py). Reserved arguments, the access ticket among them, have no
field: they are passed over when read and sent as zero. Both directions of every method are there, also those that only
a server may send: whether a method is legal where it stands is for the connection and the channel to say.

Every field has a default, so that a test or a reply names what matters: `QueueDeclare(queue="jobs", durable=True)`.
This is the slow path: publish, deliver and ack have faster ways of their own, which agree with this one. Whoever
speaks methods of several classes finds them all by this module's name.

Source: AMQP 0-9-1 (amqp0-9-1.xml) and RabbitMQ's extensions to it.

Methods of the class channel; and access.request, as in 0-9, which old clients still send.

Methods of the class connection: the handshake, and what concerns the connection as a whole.

connection.blocked, unblocked and update-secret are RabbitMQ's extensions.

Methods of the class exchange. exchange.bind and unbind are RabbitMQ's extensions.

Methods of the classes confirm, RabbitMQ's extension, and tx: what a channel is put into once.

Methods of the class queue.

How the arguments of a method lie in bytes: a plan, one letter per argument, read and written by one loop each.

    o u8     h u16     i u32     q u64     b bit     t table
    n name: short string, strictly UTF-8             k short string, other bytes as surrogate escapes (keys, texts)
    L long string as bytes                           M long string as text, likewise
    H N Z B reserved u16, short string, long string, bit: passed over when read, zero or empty when written

Bits that follow each other share an octet, lowest bit first; any other argument ends the octet. Reading checks every
length before it is used and refuses what is left over, so that a method that decodes is whole and nothing else.

Source: AMQP 0-9-1 4.2.5 (fields), 4.2.5.2 (bits).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple, TypeAlias

from amqpd.protocol.field_table import CodecError, decode_table, encode_table, longstr, read_u64, shortstr

CHANNEL_OPEN: Final = 0x0014000A
CHANNEL_OPEN_OK: Final = 0x0014000B
CHANNEL_FLOW: Final = 0x00140014
CHANNEL_FLOW_OK: Final = 0x00140015
CHANNEL_CLOSE: Final = 0x00140028
CHANNEL_CLOSE_OK: Final = 0x00140029
ACCESS_REQUEST: Final = 0x001E000A
ACCESS_REQUEST_OK: Final = 0x001E000B


class ChannelOpen(NamedTuple):
    """No arguments."""


class ChannelOpenOk(NamedTuple):
    """No arguments."""


class ChannelFlow(NamedTuple):
    active: bool = False


class ChannelFlowOk(NamedTuple):
    active: bool = False


class ChannelClose(NamedTuple):
    reply_code: int = 0
    reply_text: str = ""
    class_id: int = 0
    method_id: int = 0


class ChannelCloseOk(NamedTuple):
    """No arguments."""


class AccessRequest(NamedTuple):
    realm: str = ""
    exclusive: bool = False
    passive: bool = False
    active: bool = False
    write: bool = False
    read: bool = False


class AccessRequestOk(NamedTuple):
    ticket: int = 0


# fmt: off
ChannelCommand: TypeAlias = (
    ChannelOpen | ChannelOpenOk | ChannelFlow | ChannelFlowOk | ChannelClose | ChannelCloseOk | AccessRequest
    | AccessRequestOk
)
# fmt: on

# Number, name, class, plan of arguments.
CHANNEL_METHODS: Final[tuple[tuple[int, str, type[ChannelCommand], str], ...]] = (
    (CHANNEL_OPEN, "channel.open", ChannelOpen, "N"),
    (CHANNEL_OPEN_OK, "channel.open-ok", ChannelOpenOk, "Z"),
    (CHANNEL_FLOW, "channel.flow", ChannelFlow, "b"),
    (CHANNEL_FLOW_OK, "channel.flow-ok", ChannelFlowOk, "b"),
    (CHANNEL_CLOSE, "channel.close", ChannelClose, "hkhh"),
    (CHANNEL_CLOSE_OK, "channel.close-ok", ChannelCloseOk, ""),
    (ACCESS_REQUEST, "access.request", AccessRequest, "nbbbbb"),
    (ACCESS_REQUEST_OK, "access.request-ok", AccessRequestOk, "h"),
)


CONFIRM_SELECT: Final = 0x0055000A
CONFIRM_SELECT_OK: Final = 0x0055000B
TX_SELECT: Final = 0x005A000A
TX_SELECT_OK: Final = 0x005A000B
TX_COMMIT: Final = 0x005A0014
TX_COMMIT_OK: Final = 0x005A0015
TX_ROLLBACK: Final = 0x005A001E
TX_ROLLBACK_OK: Final = 0x005A001F


class ConfirmSelect(NamedTuple):
    no_wait: bool = False


class ConfirmSelectOk(NamedTuple):
    """No arguments."""


class TxSelect(NamedTuple):
    """No arguments."""


class TxSelectOk(NamedTuple):
    """No arguments."""


class TxCommit(NamedTuple):
    """No arguments."""


class TxCommitOk(NamedTuple):
    """No arguments."""


class TxRollback(NamedTuple):
    """No arguments."""


class TxRollbackOk(NamedTuple):
    """No arguments."""


# fmt: off
ModeCommand: TypeAlias = (
    ConfirmSelect | ConfirmSelectOk | TxSelect | TxSelectOk | TxCommit | TxCommitOk | TxRollback | TxRollbackOk
)
# fmt: on

# Number, name, class, plan of arguments.
MODE_METHODS: Final[tuple[tuple[int, str, type[ModeCommand], str], ...]] = (
    (CONFIRM_SELECT, "confirm.select", ConfirmSelect, "b"),
    (CONFIRM_SELECT_OK, "confirm.select-ok", ConfirmSelectOk, ""),
    (TX_SELECT, "tx.select", TxSelect, ""),
    (TX_SELECT_OK, "tx.select-ok", TxSelectOk, ""),
    (TX_COMMIT, "tx.commit", TxCommit, ""),
    (TX_COMMIT_OK, "tx.commit-ok", TxCommitOk, ""),
    (TX_ROLLBACK, "tx.rollback", TxRollback, ""),
    (TX_ROLLBACK_OK, "tx.rollback-ok", TxRollbackOk, ""),
)


Table = Mapping[str, object]
NO_ENTRIES: Final[Table] = MappingProxyType({})

_SIZES: Final = {"o": 1, "h": 2, "i": 4, "q": 8, "H": 2}


def decode_arguments(plan: str, payload: bytes, position: int) -> list[object]:
    """The arguments that `payload` holds from `position` to its end, without the reserved ones.

    Cost: some 0.2 us an argument interpreted. Raises: CodecError for a cut argument, bad UTF-8 in a name, a bad table,
    bytes left over.
    """
    end = len(payload)
    arguments: list[object] = []
    octet = mask = 0
    for kind in plan:
        if kind == "b" or kind == "B":
            if mask == 0:
                if position >= end:
                    raise CodecError("bits are cut off")
                octet = payload[position]
                position += 1
                mask = 1
            if kind == "b":
                arguments.append(octet & mask != 0)
            mask = (mask << 1) & 0xFF
            continue
        mask = 0
        if kind == "n" or kind == "k" or kind == "N":
            if position >= end:
                raise CodecError("short string is cut off")
            start = position + 1
            position = start + payload[position]
            if position > end:
                raise CodecError("short string is cut off")
            if kind == "n":
                try:
                    arguments.append(payload[start:position].decode("utf-8"))
                except UnicodeDecodeError:
                    raise CodecError("short string is not UTF-8") from None
            elif kind == "k":
                arguments.append(payload[start:position].decode("utf-8", "surrogateescape"))
        elif kind == "t":
            table, position = decode_table(payload, position)
            arguments.append(table)
        elif kind == "L" or kind == "M" or kind == "Z":
            start, position = _long_string(payload, position, end)
            if kind == "L":
                arguments.append(payload[start:position])
            elif kind == "M":
                arguments.append(payload[start:position].decode("utf-8", "surrogateescape"))
        else:
            start = position
            position += _SIZES[kind]
            if position > end:
                raise CodecError("number is cut off")
            if kind == "q":
                arguments.append(read_u64(payload, start))
            elif kind != "H":
                arguments.append(int.from_bytes(payload[start:position], "big"))
    if position != end:
        raise CodecError("bytes after the last argument")
    return arguments


def _long_string(payload: bytes, position: int, end: int) -> tuple[int, int]:
    """Where the octets of the long string at `position` begin and end."""
    start = position + 4
    if start > end:
        raise CodecError("long string is cut off")
    stop = start + int.from_bytes(payload[position:start], "big")
    if stop > end:
        raise CodecError("long string is cut off")
    return start, stop


def encode_arguments(plan: str, arguments: Iterable[object], head: bytes) -> bytes:
    """`head` and behind it `arguments` (without the reserved ones) as `plan` lays them out.

    Raises: CodecError when a value does not fit its place (a number out of range, a text over 255 bytes, a wrong type).
    """
    parts = [head]
    values = iter(arguments)
    octet = mask = 0
    for kind in plan:
        if kind == "b" or kind == "B":
            if mask == 0x80:
                parts.append(bytes((octet,)))
                octet = mask = 0
            mask = mask << 1 or 1
            if kind == "b" and next(values):
                octet |= mask
            continue
        if mask != 0:
            parts.append(bytes((octet,)))
            octet = mask = 0
        if kind == "H":
            parts.append(b"\x00\x00")
        elif kind == "N":
            parts.append(b"\x00")
        elif kind == "Z":
            parts.append(b"\x00\x00\x00\x00")
        else:
            parts.append(_write_argument(kind, next(values)))
    if mask != 0:
        parts.append(bytes((octet,)))
    return b"".join(parts)


def _write_argument(kind: str, value: object) -> bytes:
    if isinstance(value, int):
        size = _SIZES.get(kind, 0)
        if size != 0:
            try:
                return value.to_bytes(size, "big")
            except OverflowError:
                raise CodecError(f"{value} does not fit {size} bytes") from None
    elif isinstance(value, (str, bytes)):
        if kind == "n" or kind == "k":
            return shortstr(value)
        if kind == "L" or kind == "M":
            return longstr(value)
    elif isinstance(value, Mapping) and kind == "t":
        return encode_table(value)
    raise CodecError(f"{type(value).__name__} where a field of kind {kind!r} is due")


BASIC_QOS: Final = 0x003C000A
BASIC_QOS_OK: Final = 0x003C000B
BASIC_CONSUME: Final = 0x003C0014
BASIC_CONSUME_OK: Final = 0x003C0015
BASIC_CANCEL: Final = 0x003C001E
BASIC_CANCEL_OK: Final = 0x003C001F
BASIC_PUBLISH: Final = 0x003C0028
BASIC_RETURN: Final = 0x003C0032
BASIC_DELIVER: Final = 0x003C003C
BASIC_GET: Final = 0x003C0046
BASIC_GET_OK: Final = 0x003C0047
BASIC_GET_EMPTY: Final = 0x003C0048
BASIC_ACK: Final = 0x003C0050
BASIC_REJECT: Final = 0x003C005A
BASIC_RECOVER_ASYNC: Final = 0x003C0064
BASIC_RECOVER: Final = 0x003C006E
BASIC_RECOVER_OK: Final = 0x003C006F
BASIC_NACK: Final = 0x003C0078


class BasicQos(NamedTuple):
    prefetch_size: int = 0
    prefetch_count: int = 0
    global_: bool = False


class BasicQosOk(NamedTuple):
    """No arguments."""


class BasicConsume(NamedTuple):
    queue: str = ""
    consumer_tag: str = ""
    no_local: bool = False
    no_ack: bool = False
    exclusive: bool = False
    no_wait: bool = False
    arguments: Table = NO_ENTRIES


class BasicConsumeOk(NamedTuple):
    consumer_tag: str = ""


class BasicCancel(NamedTuple):
    consumer_tag: str = ""
    no_wait: bool = False


class BasicCancelOk(NamedTuple):
    consumer_tag: str = ""


class BasicPublish(NamedTuple):
    exchange: str = ""
    routing_key: str = ""
    mandatory: bool = False
    immediate: bool = False


class BasicReturn(NamedTuple):
    reply_code: int = 0
    reply_text: str = ""
    exchange: str = ""
    routing_key: str = ""


class BasicDeliver(NamedTuple):
    consumer_tag: str = ""
    delivery_tag: int = 0
    redelivered: bool = False
    exchange: str = ""
    routing_key: str = ""


class BasicGet(NamedTuple):
    queue: str = ""
    no_ack: bool = False


class BasicGetOk(NamedTuple):
    delivery_tag: int = 0
    redelivered: bool = False
    exchange: str = ""
    routing_key: str = ""
    message_count: int = 0


class BasicGetEmpty(NamedTuple):
    """No arguments."""


class BasicAck(NamedTuple):
    delivery_tag: int = 0
    multiple: bool = False


class BasicReject(NamedTuple):
    delivery_tag: int = 0
    requeue: bool = False


class BasicRecoverAsync(NamedTuple):
    requeue: bool = False


class BasicRecover(NamedTuple):
    requeue: bool = False


class BasicRecoverOk(NamedTuple):
    """No arguments."""


class BasicNack(NamedTuple):
    delivery_tag: int = 0
    multiple: bool = False
    requeue: bool = False


# fmt: off
BasicCommand: TypeAlias = (
    BasicQos | BasicQosOk | BasicConsume | BasicConsumeOk | BasicCancel | BasicCancelOk | BasicPublish | BasicReturn
    | BasicDeliver | BasicGet | BasicGetOk | BasicGetEmpty | BasicAck | BasicReject | BasicRecoverAsync
    | BasicRecover | BasicRecoverOk | BasicNack
)
# fmt: on

# Number, name, class, plan of arguments.
BASIC_METHODS: Final[tuple[tuple[int, str, type[BasicCommand], str], ...]] = (
    (BASIC_QOS, "basic.qos", BasicQos, "ihb"),
    (BASIC_QOS_OK, "basic.qos-ok", BasicQosOk, ""),
    (BASIC_CONSUME, "basic.consume", BasicConsume, "Hnnbbbbt"),
    (BASIC_CONSUME_OK, "basic.consume-ok", BasicConsumeOk, "n"),
    (BASIC_CANCEL, "basic.cancel", BasicCancel, "nb"),
    (BASIC_CANCEL_OK, "basic.cancel-ok", BasicCancelOk, "n"),
    (BASIC_PUBLISH, "basic.publish", BasicPublish, "Hnkbb"),
    (BASIC_RETURN, "basic.return", BasicReturn, "hknk"),
    (BASIC_DELIVER, "basic.deliver", BasicDeliver, "nqbnk"),
    (BASIC_GET, "basic.get", BasicGet, "Hnb"),
    (BASIC_GET_OK, "basic.get-ok", BasicGetOk, "qbnki"),
    (BASIC_GET_EMPTY, "basic.get-empty", BasicGetEmpty, "N"),
    (BASIC_ACK, "basic.ack", BasicAck, "qb"),
    (BASIC_REJECT, "basic.reject", BasicReject, "qb"),
    (BASIC_RECOVER_ASYNC, "basic.recover-async", BasicRecoverAsync, "b"),
    (BASIC_RECOVER, "basic.recover", BasicRecover, "b"),
    (BASIC_RECOVER_OK, "basic.recover-ok", BasicRecoverOk, ""),
    (BASIC_NACK, "basic.nack", BasicNack, "qbb"),
)


CONNECTION_START: Final = 0x000A000A
CONNECTION_START_OK: Final = 0x000A000B
CONNECTION_SECURE: Final = 0x000A0014
CONNECTION_SECURE_OK: Final = 0x000A0015
CONNECTION_TUNE: Final = 0x000A001E
CONNECTION_TUNE_OK: Final = 0x000A001F
CONNECTION_OPEN: Final = 0x000A0028
CONNECTION_OPEN_OK: Final = 0x000A0029
CONNECTION_CLOSE: Final = 0x000A0032
CONNECTION_CLOSE_OK: Final = 0x000A0033
CONNECTION_BLOCKED: Final = 0x000A003C
CONNECTION_UNBLOCKED: Final = 0x000A003D
CONNECTION_UPDATE_SECRET: Final = 0x000A0046
CONNECTION_UPDATE_SECRET_OK: Final = 0x000A0047


class ConnectionStart(NamedTuple):
    version_major: int = 0
    version_minor: int = 0
    server_properties: Table = NO_ENTRIES
    mechanisms: str = ""
    locales: str = ""


class ConnectionStartOk(NamedTuple):
    client_properties: Table = NO_ENTRIES
    mechanism: str = ""
    response: bytes = b""
    locale: str = ""


class ConnectionSecure(NamedTuple):
    challenge: bytes = b""


class ConnectionSecureOk(NamedTuple):
    response: bytes = b""


class ConnectionTune(NamedTuple):
    channel_max: int = 0
    frame_max: int = 0
    heartbeat: int = 0


class ConnectionTuneOk(NamedTuple):
    channel_max: int = 0
    frame_max: int = 0
    heartbeat: int = 0


class ConnectionOpen(NamedTuple):
    virtual_host: str = ""


class ConnectionOpenOk(NamedTuple):
    """No arguments."""


class ConnectionClose(NamedTuple):
    reply_code: int = 0
    reply_text: str = ""
    class_id: int = 0
    method_id: int = 0


class ConnectionCloseOk(NamedTuple):
    """No arguments."""


class ConnectionBlocked(NamedTuple):
    reason: str = ""


class ConnectionUnblocked(NamedTuple):
    """No arguments."""


class ConnectionUpdateSecret(NamedTuple):
    new_secret: bytes = b""
    reason: str = ""


class ConnectionUpdateSecretOk(NamedTuple):
    """No arguments."""


# fmt: off
ConnectionCommand: TypeAlias = (
    ConnectionStart | ConnectionStartOk | ConnectionSecure | ConnectionSecureOk | ConnectionTune | ConnectionTuneOk
    | ConnectionOpen | ConnectionOpenOk | ConnectionClose | ConnectionCloseOk | ConnectionBlocked
    | ConnectionUnblocked | ConnectionUpdateSecret | ConnectionUpdateSecretOk
)
# fmt: on

# Number, name, class, plan of arguments.
CONNECTION_METHODS: Final[tuple[tuple[int, str, type[ConnectionCommand], str], ...]] = (
    (CONNECTION_START, "connection.start", ConnectionStart, "ootMM"),
    (CONNECTION_START_OK, "connection.start-ok", ConnectionStartOk, "tnLn"),
    (CONNECTION_SECURE, "connection.secure", ConnectionSecure, "L"),
    (CONNECTION_SECURE_OK, "connection.secure-ok", ConnectionSecureOk, "L"),
    (CONNECTION_TUNE, "connection.tune", ConnectionTune, "hih"),
    (CONNECTION_TUNE_OK, "connection.tune-ok", ConnectionTuneOk, "hih"),
    (CONNECTION_OPEN, "connection.open", ConnectionOpen, "nNB"),
    (CONNECTION_OPEN_OK, "connection.open-ok", ConnectionOpenOk, "N"),
    (CONNECTION_CLOSE, "connection.close", ConnectionClose, "hkhh"),
    (CONNECTION_CLOSE_OK, "connection.close-ok", ConnectionCloseOk, ""),
    (CONNECTION_BLOCKED, "connection.blocked", ConnectionBlocked, "k"),
    (CONNECTION_UNBLOCKED, "connection.unblocked", ConnectionUnblocked, ""),
    (CONNECTION_UPDATE_SECRET, "connection.update-secret", ConnectionUpdateSecret, "Lk"),
    (CONNECTION_UPDATE_SECRET_OK, "connection.update-secret-ok", ConnectionUpdateSecretOk, ""),
)


EXCHANGE_DECLARE: Final = 0x0028000A
EXCHANGE_DECLARE_OK: Final = 0x0028000B
EXCHANGE_DELETE: Final = 0x00280014
EXCHANGE_DELETE_OK: Final = 0x00280015
EXCHANGE_BIND: Final = 0x0028001E
EXCHANGE_BIND_OK: Final = 0x0028001F
EXCHANGE_UNBIND: Final = 0x00280028
EXCHANGE_UNBIND_OK: Final = 0x00280033


class ExchangeDeclare(NamedTuple):
    exchange: str = ""
    type: str = ""
    passive: bool = False
    durable: bool = False
    auto_delete: bool = False
    internal: bool = False
    no_wait: bool = False
    arguments: Table = NO_ENTRIES


class ExchangeDeclareOk(NamedTuple):
    """No arguments."""


class ExchangeDelete(NamedTuple):
    exchange: str = ""
    if_unused: bool = False
    no_wait: bool = False


class ExchangeDeleteOk(NamedTuple):
    """No arguments."""


class ExchangeBind(NamedTuple):
    destination: str = ""
    source: str = ""
    routing_key: str = ""
    no_wait: bool = False
    arguments: Table = NO_ENTRIES


class ExchangeBindOk(NamedTuple):
    """No arguments."""


class ExchangeUnbind(NamedTuple):
    destination: str = ""
    source: str = ""
    routing_key: str = ""
    no_wait: bool = False
    arguments: Table = NO_ENTRIES


class ExchangeUnbindOk(NamedTuple):
    """No arguments."""


# fmt: off
ExchangeCommand: TypeAlias = (
    ExchangeDeclare | ExchangeDeclareOk | ExchangeDelete | ExchangeDeleteOk | ExchangeBind | ExchangeBindOk
    | ExchangeUnbind | ExchangeUnbindOk
)
# fmt: on

# Number, name, class, plan of arguments.
EXCHANGE_METHODS: Final[tuple[tuple[int, str, type[ExchangeCommand], str], ...]] = (
    (EXCHANGE_DECLARE, "exchange.declare", ExchangeDeclare, "Hnnbbbbbt"),
    (EXCHANGE_DECLARE_OK, "exchange.declare-ok", ExchangeDeclareOk, ""),
    (EXCHANGE_DELETE, "exchange.delete", ExchangeDelete, "Hnbb"),
    (EXCHANGE_DELETE_OK, "exchange.delete-ok", ExchangeDeleteOk, ""),
    (EXCHANGE_BIND, "exchange.bind", ExchangeBind, "Hnnkbt"),
    (EXCHANGE_BIND_OK, "exchange.bind-ok", ExchangeBindOk, ""),
    (EXCHANGE_UNBIND, "exchange.unbind", ExchangeUnbind, "Hnnkbt"),
    (EXCHANGE_UNBIND_OK, "exchange.unbind-ok", ExchangeUnbindOk, ""),
)


QUEUE_DECLARE: Final = 0x0032000A
QUEUE_DECLARE_OK: Final = 0x0032000B
QUEUE_BIND: Final = 0x00320014
QUEUE_BIND_OK: Final = 0x00320015
QUEUE_PURGE: Final = 0x0032001E
QUEUE_PURGE_OK: Final = 0x0032001F
QUEUE_DELETE: Final = 0x00320028
QUEUE_DELETE_OK: Final = 0x00320029
QUEUE_UNBIND: Final = 0x00320032
QUEUE_UNBIND_OK: Final = 0x00320033


class QueueDeclare(NamedTuple):
    queue: str = ""
    passive: bool = False
    durable: bool = False
    exclusive: bool = False
    auto_delete: bool = False
    no_wait: bool = False
    arguments: Table = NO_ENTRIES


class QueueDeclareOk(NamedTuple):
    queue: str = ""
    message_count: int = 0
    consumer_count: int = 0


class QueueBind(NamedTuple):
    queue: str = ""
    exchange: str = ""
    routing_key: str = ""
    no_wait: bool = False
    arguments: Table = NO_ENTRIES


class QueueBindOk(NamedTuple):
    """No arguments."""


class QueuePurge(NamedTuple):
    queue: str = ""
    no_wait: bool = False


class QueuePurgeOk(NamedTuple):
    message_count: int = 0


class QueueDelete(NamedTuple):
    queue: str = ""
    if_unused: bool = False
    if_empty: bool = False
    no_wait: bool = False


class QueueDeleteOk(NamedTuple):
    message_count: int = 0


class QueueUnbind(NamedTuple):
    queue: str = ""
    exchange: str = ""
    routing_key: str = ""
    arguments: Table = NO_ENTRIES


class QueueUnbindOk(NamedTuple):
    """No arguments."""


# fmt: off
QueueCommand: TypeAlias = (
    QueueDeclare | QueueDeclareOk | QueueBind | QueueBindOk | QueuePurge | QueuePurgeOk | QueueDelete
    | QueueDeleteOk | QueueUnbind | QueueUnbindOk
)
# fmt: on

# Number, name, class, plan of arguments.
QUEUE_METHODS: Final[tuple[tuple[int, str, type[QueueCommand], str], ...]] = (
    (QUEUE_DECLARE, "queue.declare", QueueDeclare, "Hnbbbbbt"),
    (QUEUE_DECLARE_OK, "queue.declare-ok", QueueDeclareOk, "nii"),
    (QUEUE_BIND, "queue.bind", QueueBind, "Hnnkbt"),
    (QUEUE_BIND_OK, "queue.bind-ok", QueueBindOk, ""),
    (QUEUE_PURGE, "queue.purge", QueuePurge, "Hnb"),
    (QUEUE_PURGE_OK, "queue.purge-ok", QueuePurgeOk, "i"),
    (QUEUE_DELETE, "queue.delete", QueueDelete, "Hnbbb"),
    (QUEUE_DELETE_OK, "queue.delete-ok", QueueDeleteOk, "i"),
    (QUEUE_UNBIND, "queue.unbind", QueueUnbind, "Hnnkt"),
    (QUEUE_UNBIND_OK, "queue.unbind-ok", QueueUnbindOk, ""),
)


Command: TypeAlias = ConnectionCommand | ChannelCommand | ExchangeCommand | QueueCommand | BasicCommand | ModeCommand

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
        return method.make(decode_arguments(method.plan, payload, 4))
    except CodecError as error:
        raise MethodSyntaxError(
            number >> 16, number & 0xFFFF, f"cannot decode {_octets(payload[4:])}", f"{method.name}: {error}"
        ) from None


def encode(command: Command) -> bytes:
    """`command` as the payload of a method frame. Raises: CodecError when a value does not fit its field."""
    method = _BY_COMMAND[type(command)]
    if method.plan == "":
        return method.head
    return encode_arguments(method.plan, command, method.head)


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
