"""Whether what is there is what is asked for: a declaration of something that exists must be equivalent.

Spec: AMQP 0-9-1 1.6.2.1 and 1.7.2.1; RabbitMQ: 406 for a flag or an argument that differs, 405 for another's exclusive
queue.
"""

from __future__ import annotations

from amqpd.broker.vhost.exchange_arguments import compared_names
from amqpd.broker.vhost.declaration import ExchangeDeclaration, NewQueue, QueueDeclaration
from amqpd.broker.vhost.exchange import Exchange
from amqpd.broker.vhost.vhost import Names, locked
from amqpd.broker.queue import arguments as queue_arguments
from amqpd.broker.queue.queue import Queue
from amqpd.errors import PreconditionFailed


def check_queue(names: Names, queue: Queue | NewQueue, asked: QueueDeclaration) -> None:
    """Raises: ResourceLocked, PreconditionFailed."""
    vhost = names.vhost
    vhost.check_exclusive(queue, asked.owner)
    if asked.exclusive is not (queue.exclusive_owner is not None):
        # rabbit: 405 here too, and not 406 as for the other flags
        raise locked(queue.name, vhost.name)
    thing = f"queue '{queue.name}'"
    _check_flag(thing, vhost.name, "durable", asked.durable, queue.durable)
    _check_flag(thing, vhost.name, "auto_delete", asked.auto_delete, queue.auto_delete)
    default = names.default_queue_type
    if queue.kind == default:  # rabbit: a queue made before the vhost had it stays as it is
        asked = asked.with_default_type(default)
    given = dict(asked.arguments)
    current = dict(queue.arguments)
    if given.get("x-queue-type", "classic") == current.get("x-queue-type", "classic"):
        # rabbit: classic is what no argument means
        given.pop("x-queue-type", None)
        current.pop("x-queue-type", None)
    elif "x-queue-type" not in given and current.get("x-queue-type") == default:
        # rabbit: in a vhost with another default, no argument means that one
        del current["x-queue-type"]
    # rabbit: what a queue of its kind does not take is not looked at, where a new queue is refused for it
    queue_arguments.compare(thing, vhost.name, queue_arguments.compared_names(queue.kind), given, current)


def check_exchange(vhost: str, exchange: Exchange, asked: ExchangeDeclaration) -> None:
    """Raises: PreconditionFailed."""
    thing = f"exchange '{exchange.name}'"
    if asked.kind != exchange.kind:
        raise PreconditionFailed(
            f"inequivalent arg 'type' for {thing} in vhost '{vhost}': "
            f"received '{asked.kind}' but current is '{_atom(exchange.kind)}'"
        )
    _check_flag(thing, vhost, "durable", asked.durable, exchange.durable)
    _check_flag(thing, vhost, "auto_delete", asked.auto_delete, exchange.auto_delete)
    _check_flag(thing, vhost, "internal", asked.internal, exchange.internal)
    compared = compared_names(exchange.kind, exchange.arguments)
    queue_arguments.compare(thing, vhost, compared, asked.arguments, exchange.arguments)


def _atom(kind: str) -> str:
    """rabbit: the current one is Erlang's word for it, with quotes of its own where it is not a plain one."""
    return kind if kind.isalnum() else f"'{kind}'"


def _check_flag(thing: str, vhost: str, name: str, given: bool, current: bool) -> None:
    if given != current:
        raise PreconditionFailed(
            f"inequivalent arg '{name}' for {thing} in vhost '{vhost}': "
            f"received '{str(given).lower()}' but current is '{str(current).lower()}'"
        )
