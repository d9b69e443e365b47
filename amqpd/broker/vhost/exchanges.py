"""Exchanges: declared and deleted, whoever asks for it.

`declare` checks, submits the row and puts the exchange among the vhost's once that is committed. `delete` takes it out
of memory at once and answers when its row is gone.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from amqpd.broker.vhost.declaration import ExchangeDeclaration
from amqpd.broker.vhost.pending import Coming, Done, Name, unheard
from amqpd.broker.vhost.equivalence import check_exchange
from amqpd.broker.vhost.exchange import Exchange
from amqpd.broker.vhost.exchange_arguments import DELAYED_MESSAGE, routing_type, validate
from amqpd.broker.vhost.leaving import drop_exchange
from amqpd.broker.vhost.vhost import Names, VHost
from amqpd.errors import AccessRefused, CommandInvalid, PreconditionFailed
from amqpd.protocol.field_table import encode_table
from amqpd.routing.errors import UnknownExchangeType
from amqpd.routing.base import ExchangeType
from amqpd.routing.registry import exchange_type
from amqpd.storage.metadata.store import Delete, ExchangeRow, Put

ARGUMENTS_SIZE_MAX: Final = 64 * 1024


def declare(names: Names, asked: ExchangeDeclaration, done: Done = unheard) -> bool:
    """Whether it is new; done(None) once it is there, at once where it was there already and is equivalent.

    Raises: CommandInvalid for an unknown type, AccessRefused, PreconditionFailed, OnItsWay.
    """
    vhost = names.vhost
    vhost.check_not_default(asked.name)
    exchange = names.find_exchange(asked.name)
    if exchange is not None:
        if exchange.kind != asked.kind and asked.kind != DELAYED_MESSAGE:  # else its package may be gone
            _type(asked)
        check_exchange(vhost.name, exchange, asked)
        done(None)
        return False
    make = _type(asked)
    if asked.name.startswith("amq."):
        raise AccessRefused(f"exchange name '{asked.name}' contains reserved prefix 'amq.*'")
    check(vhost.name, asked)
    if vhost.catalogue.storage.replicates:
        from amqpd.broker.vhost.cluster_checks import check_exchange as check_in_cluster

        check_in_cluster(vhost.name, asked)
    flags = (asked.durable, asked.auto_delete, asked.internal)
    exchange = Exchange(asked.name, asked.kind, make(), *flags, asked.arguments)
    encoded = encode_table(asked.arguments)
    row = ExchangeRow(vhost.name, asked.name, asked.kind, True, asked.auto_delete, asked.internal, encoded)
    put, undo = (Put(row), Delete(row)) if asked.durable else (None, None)
    add = partial(vhost.add_exchange, exchange)
    names.make(Coming(Name(vhost.name, "exchange", asked.name), put, undo, add, exchange), done)
    return True


def check(vhost: str, asked: ExchangeDeclaration) -> None:
    """Raises: CommandInvalid, PreconditionFailed when there can be no such exchange."""
    _type(asked)
    if len(encode_table(asked.arguments)) > ARGUMENTS_SIZE_MAX:
        raise PreconditionFailed(f"arguments of exchange '{asked.name}' are larger than {ARGUMENTS_SIZE_MAX} bytes")
    validate(asked.name, vhost, asked.kind, asked.arguments)


def _type(asked: ExchangeDeclaration) -> Callable[[], ExchangeType]:
    kind = routing_type(asked.kind, asked.arguments)
    try:
        return exchange_type(kind)
    except UnknownExchangeType:
        # rabbit: 3.x closes the connection for this
        raise CommandInvalid(f"{'unknown' if kind else 'invalid'} exchange type '{kind}'") from None


def delete(vhost: VHost, exchange: Exchange, if_unused: bool, done: Done = unheard) -> None:
    """Deletes it with its bindings. done: called when its row is gone, or with the error of the first try.

    Raises: AccessRefused for a predeclared one, PreconditionFailed when in use.
    """
    vhost.check_not_default(exchange.name)
    if exchange.name.startswith("amq."):
        raise AccessRefused(f"deletion of system exchange '{exchange.name}' in vhost '{vhost.name}' not allowed")
    if if_unused and exchange.bindings:
        raise PreconditionFailed(f"exchange '{exchange.name}' in vhost '{vhost.name}' in use")
    vhost.catalogue.deletions.delete(drop_exchange(vhost, exchange), done=done)
