"""Methods of the class exchange. exchange.bind and unbind are RabbitMQ's extensions."""

from __future__ import annotations

from typing import Final, NamedTuple, TypeAlias

from amqpd.protocol.plans import NO_ENTRIES, Table

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
