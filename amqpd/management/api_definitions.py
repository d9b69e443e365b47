"""Definitions: everything but messages, as one JSON document in RabbitMQ's form.

Only what is durable is in it. The way back is `api_import`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from amqpd import __version__
from amqpd.management.api_bindings import binding_item
from amqpd.management.api_call import Call, Reply, Slices
from amqpd.management.api_list import document, plain
from amqpd.management.api_users import permission_item, topic_item, user_item

if TYPE_CHECKING:
    from amqpd.broker.vhost import VHost


async def get_definitions(call: Call) -> Reply:
    """Of the whole broker."""
    broker = call.broker
    auth = broker.auth
    vhosts = sorted(broker.vhosts.values(), key=lambda vhost: vhost.name)
    found: dict[str, Any] = {
        "rabbit_version": broker.settings.product[1],
        "rabbitmq_version": broker.settings.product[1],
        "product_name": "amqpd",
        "product_version": __version__,
        "users": [user_item(row) for row in auth.users()],
        "vhosts": [
            {
                "name": vhost.name,
                "description": vhost.description,
                "tags": list(vhost.tags),
                "default_queue_type": vhost.default_queue_type,
            }
            for vhost in vhosts
        ],
        "permissions": [permission_item(row) for row in auth.permissions()],
        "topic_permissions": [topic_item(row) for row in auth.topic_permissions()],
        "parameters": [],
        "global_parameters": [{"name": "cluster_name", "value": broker.cluster_name}],
        "policies": [],
    }
    slices = Slices()
    found.update({"queues": [], "exchanges": [], "bindings": []})
    for vhost in vhosts:
        for name, items in (await _objects(vhost, slices)).items():
            found[name] += [{"vhost": vhost.name, **item} for item in items]
    return await document(found)


async def get_vhost_definitions(call: Call) -> Reply:
    """Of one vhost: without users, and without the vhost's name in each item."""
    found: dict[str, Any] = {
        "rabbit_version": call.broker.settings.product[1],
        "rabbitmq_version": call.broker.settings.product[1],
        "product_name": "amqpd",
        "product_version": __version__,
        "parameters": [],
        "policies": [],
    }
    found.update(await _objects(call.vhost(), Slices()))
    return await document(found)


async def _objects(vhost: VHost, slices: Slices) -> dict[str, list[dict[str, Any]]]:
    queues: list[dict[str, Any]] = []
    exchanges: list[dict[str, Any]] = []
    bindings: list[dict[str, Any]] = []
    for queue in list(vhost.queues.values()):
        if queue.durable and queue.exclusive_owner is None:
            queues.append(
                {
                    "name": queue.name,
                    "durable": True,
                    "auto_delete": queue.auto_delete,
                    "type": queue.kind,
                    "arguments": plain(queue.arguments),
                }
            )
        if slices.due:
            await slices.rest()
    for exchange in list(vhost.exchanges.values()):
        if exchange.durable and exchange.name and not exchange.name.startswith("amq."):
            exchanges.append(
                {
                    "name": exchange.name,
                    "type": exchange.kind,
                    "durable": True,
                    "auto_delete": exchange.auto_delete,
                    "internal": exchange.internal,
                    "arguments": plain(exchange.arguments),
                }
            )
    for binding in vhost.all_bindings():
        if binding.durable:
            item = binding_item(binding)._asdict()
            del item["vhost"]
            item["arguments"] = plain(item["arguments"])
            bindings.append(item)
        if slices.due:
            await slices.rest()
    return {"queues": queues, "exchanges": exchanges, "bindings": bindings}
