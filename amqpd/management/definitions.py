"""Definitions: everything but messages, as one JSON document in RabbitMQ's form.

rabbit: what is transient or auto-delete is in it too, what is exclusive, or predeclared, is not. The way back is
`definitions_import`. A hash of argon2id stands where RabbitMQ does not look for it (`definitions_document`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from amqpd import __version__
from amqpd.auth.passwords import ARGON2ID, RABBIT_SHA256
from amqpd.broker.vhost.parameters import parameters
from amqpd.broker.queue.queue import Queue
from amqpd.management.bindings import binding_item
from amqpd.management.request import Call, Reply, Role
from amqpd.management.definitions_document import ARGON2ID_KEY
from amqpd.management.listing import document, plain
from amqpd.management.parameters import global_item, parameter_item
from amqpd.management.policies import policy_item
from amqpd.management.router import Route
from amqpd.management.users import permission_item, topic_item, user_item
from amqpd.management.vhosts import metadata_item

if TYPE_CHECKING:
    from amqpd.broker.broker import Broker
    from amqpd.broker.vhost.limits import UserLimits
    from amqpd.broker.vhost.vhost import VHost
    from amqpd.storage.metadata.store import UserRow

Shown: TypeAlias = dict[str, Any] | None


async def get_definitions(call: Call) -> Reply:
    """All definitions of the broker, as one document."""
    return await document(definitions_of(call.broker))


def definitions_of(broker: Broker) -> dict[str, Any]:
    """The document; its long lists are iterators, as `document` takes them."""
    auth = broker.auth
    vhosts = sorted(broker.vhosts.values(), key=lambda vhost: vhost.name)
    found: dict[str, Any] = {
        "rabbit_version": broker.settings.product[1],
        "rabbitmq_version": broker.settings.product[1],
        "product_name": "amqpd",
        "product_version": __version__,
        "users": [_user(broker.user_limits, row) for row in auth.users()],
        "vhosts": [
            {
                "name": vhost.name,
                "description": vhost.description,
                "tags": list(vhost.tags),
                "default_queue_type": vhost.default_queue_type,
                "metadata": metadata_item(vhost),
            }
            for vhost in vhosts
        ],
        "permissions": [permission_item(row) for row in auth.permissions()],
        "topic_permissions": [topic_item(row) for row in auth.topic_permissions()],
        "parameters": [parameter_item(each) for each in parameters(vhosts)],
        "global_parameters": [global_item(named) for named in broker.global_parameters.all()],
        "policies": [policy_item(policy) for vhost in vhosts for policy in vhost.policies.all()],
    }
    for name, items in (("queues", _queues), ("exchanges", _exchanges), ("bindings", _bindings)):
        found[name] = _of_all(vhosts, items)
    return found


async def get_vhost_definitions(call: Call) -> Reply:
    """What is declared in the virtual host, as one document.
    Without users, and without the vhost's name in each item but policies and parameters."""
    vhost = call.vhost()
    found: dict[str, Any] = {
        "rabbit_version": call.broker.settings.product[1],
        "rabbitmq_version": call.broker.settings.product[1],
        "product_name": "amqpd",
        "product_version": __version__,
        "parameters": [parameter_item(each) for each in parameters([vhost])],
        "policies": [policy_item(policy) for policy in vhost.policies.all()],
    }
    found.update(queues=_queues(vhost), exchanges=_exchanges(vhost), bindings=_bindings(vhost))
    return await document(found)


def _user(limits: UserLimits, row: UserRow) -> dict[str, Any]:
    """rabbit: it takes a hash that is no base64 for a reason to refuse the whole document."""
    item = user_item(limits, row)
    if row.hashing_algorithm == ARGON2ID:
        item.update(password_hash="", hashing_algorithm=RABBIT_SHA256)
        if row.password_hash:
            item[ARGON2ID_KEY] = row.password_hash
    return item


# Rendered one by one while they are encoded, None for what is not shown: passing over many takes its time too. Each
# goes through a snapshot: others declare and delete meanwhile.


def _of_all(vhosts: list[VHost], items: Callable[[VHost], Iterator[Shown]]) -> Iterator[Shown]:
    for vhost in vhosts:
        for item in items(vhost):
            yield item and {"vhost": vhost.name, **item}


def _queues(vhost: VHost) -> Iterator[Shown]:
    for queue in list(vhost.queues.values()):
        if queue.exclusive_owner is not None:
            yield None
            continue
        yield {
            "name": queue.name,
            "durable": queue.durable,
            "auto_delete": queue.auto_delete,
            "type": queue.kind,
            "arguments": plain(queue.arguments),
        }


def _exchanges(vhost: VHost) -> Iterator[Shown]:
    for exchange in list(vhost.exchanges.values()):
        if not exchange.name or exchange.name.startswith("amq."):
            yield None
            continue
        yield {
            "name": exchange.name,
            "type": exchange.kind,
            "durable": exchange.durable,
            "auto_delete": exchange.auto_delete,
            "internal": exchange.internal,
            "arguments": plain(exchange.arguments),
        }


def _bindings(vhost: VHost) -> Iterator[Shown]:
    for exchange in list(vhost.exchanges.values()):
        for binding in list(exchange.bindings.values()):
            if not exchange.name or _is_exclusive(binding.destination):
                yield None
                continue
            item = binding_item(binding)._asdict()
            del item["vhost"]
            item["arguments"] = plain(item["arguments"])
            yield item


def _is_exclusive(end: object) -> bool:
    return isinstance(end, Queue) and end.exclusive_owner is not None


ROUTES: Final = (
    Route("GET", "api/definitions", Role.ADMINISTRATOR, get_definitions),
    Route("GET", "api/definitions/{vhost}", Role.ADMINISTRATOR, get_vhost_definitions),
)
