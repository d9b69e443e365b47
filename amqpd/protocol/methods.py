"""Methods of the class basic: publish, consume, deliver, get, ack. basic.nack is RabbitMQ's extension."""

from __future__ import annotations

from typing import Final, NamedTuple, TypeAlias

from amqpd.protocol.plans import NO_ENTRIES, Table

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
