"""Methods of the class queue."""

from __future__ import annotations

from typing import Final, NamedTuple, TypeAlias

from amqpd.protocol.plans import NO_ENTRIES, Table

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
