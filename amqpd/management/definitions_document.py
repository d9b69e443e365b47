"""The shape of a definitions document: the keys of each kind of thing, their types, and what an item by itself may say.

`read` sets every key and names the first thing wrong by its path; the `check_*` look at one item alone. What an item
says of others (its vhost, the ends of a binding) is looked at by the import, `definitions_import`.
"""

from __future__ import annotations

from typing import Any, Final

from amqpd.auth.backends import TAGS_MAX
from amqpd.auth.passwords import RABBIT_SHA256, check_hash
from amqpd.auth.permissions import Permissions
from amqpd.broker.queues import arguments as arguments_table
from amqpd.management.call import BadRequest, clean_name
from amqpd.management.slices import Slices
from amqpd.management.users import tags_of
from amqpd.protocol.codec import encode_table
from amqpd.routing.exchange import exchange_type
from amqpd.storage.metadata.metadata import PermissionRow, TopicPermissionRow

Item = dict[str, Any]
_MISSING: Final = object()

# Kind of thing -> its keys: type, default (_MISSING: must be there). What RabbitMQ exports and means nothing here is
# taken with the value it then has.
_TEXT, _FLAG, _TABLE, _TAGS, _ANY = str, bool, dict, (str, list), object
SCHEMA: Final[dict[str, dict[str, tuple[Any, Any]]]] = {
    "users": {
        "name": (_TEXT, _MISSING),
        "password_hash": (_TEXT, _MISSING),
        "hashing_algorithm": (_TEXT, RABBIT_SHA256),
        "tags": (_TAGS, ""),
        "limits": (_ANY, {}),
    },
    "vhosts": {
        "name": (_TEXT, _MISSING),
        "description": (_TEXT, ""),
        "tags": (_TAGS, ""),
        "default_queue_type": (_TEXT, "classic"),
        "metadata": (_TABLE, {}),
        "limits": (_ANY, []),
        "tracing": (_FLAG, False),
    },
    "permissions": dict.fromkeys(("user", "vhost", "configure", "write", "read"), (_TEXT, _MISSING)),
    "topic_permissions": dict.fromkeys(("user", "vhost", "exchange", "write", "read"), (_TEXT, _MISSING)),
    "exchanges": {
        "name": (_TEXT, _MISSING),
        "vhost": (_TEXT, _MISSING),
        "type": (_TEXT, _MISSING),
        "durable": (_FLAG, True),
        "auto_delete": (_FLAG, False),
        "internal": (_FLAG, False),
        "arguments": (_TABLE, {}),
    },
    "queues": {
        "name": (_TEXT, _MISSING),
        "vhost": (_TEXT, _MISSING),
        "type": (_TEXT, ""),
        "durable": (_FLAG, True),
        "auto_delete": (_FLAG, False),
        "arguments": (_TABLE, {}),
    },
    "bindings": {
        "source": (_TEXT, _MISSING),
        "vhost": (_TEXT, _MISSING),
        "destination": (_TEXT, _MISSING),
        "destination_type": (_TEXT, _MISSING),
        "routing_key": (_TEXT, ""),
        "arguments": (_TABLE, {}),
        "properties_key": (_ANY, ""),
    },
}
ABSENT: Final = ("policies", "parameters")
TITLES: Final = (
    "rabbit_version", "rabbitmq_version", "product_name", "product_version", "original_vhost_name", "explanation",
    "rabbitmq_definition_format", "original_cluster_name", "description", "default_queue_type", "metadata",
)  # fmt: skip
_OWN_PARAMETERS: Final = ("cluster_name", "internal_cluster_id", "cluster_tags")


async def read(document: Item, vhost: str | None = None) -> dict[str, list[Item]]:
    """The document's items with every key set. vhost: of a document for one vhost, whose items name none.

    Raises: BadRequest with the path of the first thing that is unknown, missing or of the wrong type.
    """
    found: dict[str, list[Item]] = {kind: [] for kind in SCHEMA}
    slices = Slices()
    for key, value in document.items():
        if key in TITLES:
            continue
        if key in ABSENT or key == "global_parameters":
            _check_absent(key, value)
            continue
        if key not in SCHEMA or (vhost is not None and key in ("users", "vhosts", "permissions", "topic_permissions")):
            raise BadRequest(f"{key}: unknown")
        if not isinstance(value, list):
            raise BadRequest(f"{key}: must be a list")
        for index, item in enumerate(value):
            found[key].append(_item(f"{key}[{index}]", SCHEMA[key], item, vhost))
            if slices.due:
                await slices.rest()
    return found


def _check_absent(key: str, value: object) -> None:
    own = key == "global_parameters"
    for index, each in enumerate(value if isinstance(value, list) else [value]):
        if not (own and isinstance(each, dict) and each.get("name") in _OWN_PARAMETERS):
            raise BadRequest(f"{key}[{index}]: not part of this version of amqpd")


def _item(path: str, schema: dict[str, tuple[Any, Any]], given: object, vhost: str | None) -> Item:
    if not isinstance(given, dict):
        raise BadRequest(f"{path}: must be an object")
    if vhost is not None:
        given = {**given, "vhost": vhost}
    for key in given:
        if key not in schema:
            raise BadRequest(f"{path}.{key}: unknown")
    item: Item = {}
    for key, (kind, default) in schema.items():
        value = given.get(key, default)
        if value is _MISSING:
            raise BadRequest(f"{path}.{key}: missing")
        if kind is dict and value == []:  # rabbit: an empty table may be written as an empty list
            value = {}
        if not isinstance(value, kind):
            raise BadRequest(f"{path}.{key}: wrong type")
        item[key] = value
    return item


# -- one item ---------------------------------------------------------------------------------------------------------

SYSTEM_EXCHANGES: Final = {
    "amq.direct": "direct",
    "amq.fanout": "fanout",
    "amq.headers": "headers",
    "amq.match": "headers",
    "amq.topic": "topic",
}


def queue_arguments(item: Item) -> dict[str, object]:
    """The arguments it is declared with; the type stands beside them in a document."""
    arguments: dict[str, object] = dict(item["arguments"])
    if item["type"] and item["type"] != "classic":
        arguments.setdefault("x-queue-type", item["type"])
    return arguments


def permission_row(item: Item) -> PermissionRow | TopicPermissionRow:
    """The row of an item of `permissions` or `topic_permissions`."""
    return TopicPermissionRow(**item) if "exchange" in item else PermissionRow(**item)


def check_permission(item: Item) -> None:
    """Raises: BadRequest, AuthError, InvalidPattern."""
    if item.get("exchange"):
        clean_name(item["exchange"], "an exchange")
    Permissions.check(permission_row(item))


def check_user(item: Item) -> None:
    """Raises: BadRequest, InvalidHash."""
    clean_name(item["name"], "a user")
    if item["password_hash"]:
        check_hash(item["password_hash"], item["hashing_algorithm"])
    tags = tags_of(item["tags"])
    if len(tags) > TAGS_MAX or not all(0 < len(tag) < 256 and tag.isprintable() and " " not in tag for tag in tags):
        raise BadRequest(f"tags are words, at most {TAGS_MAX}")


def check_vhost(item: Item) -> None:
    """Makes `undefined` a classic. Raises: BadRequest."""
    clean_name(item["name"], "a vhost")
    tags_of(item["tags"])
    if item["tracing"]:
        raise BadRequest("tracing is not part of this version of amqpd")
    item["default_queue_type"] = item["default_queue_type"].replace("undefined", "classic")
    if item["default_queue_type"] not in ("classic", "quorum"):
        raise BadRequest("default_queue_type is classic or quorum")


def check_exchange(item: Item) -> None:
    """Raises: BadRequest, RoutingError, CodecError."""
    if clean_name(item["name"], "an exchange").startswith("amq.") and item["name"] not in SYSTEM_EXCHANGES:
        raise BadRequest("the prefix amq. is reserved")
    exchange_type(item["type"])
    encode_table(item["arguments"])
    if not isinstance(item["arguments"].get("alternate-exchange", ""), str):
        raise BadRequest("alternate-exchange must be text")


def check_queue(item: Item) -> None:
    """Raises: BadRequest, CodecError, AmqpError for its arguments."""
    name = clean_name(item["name"], "a queue")
    # What a server-named queue is called may be exported, and so must be taken back.
    if name.startswith("amq.") and not name.startswith("amq.gen-"):
        raise BadRequest("the prefix amq. is reserved")
    arguments = queue_arguments(item)
    encode_table(arguments)
    arguments_table.validate(item["name"], item["vhost"], arguments)
    if "x-export" in arguments and not item["durable"]:
        raise BadRequest("x-export needs a durable queue")
    if arguments.get("x-queue-type") == "quorum" and (item["auto_delete"] or not item["durable"]):
        raise BadRequest("a quorum queue is durable and not auto-delete")


def check_binding(item: Item, kind: str) -> None:
    """kind: type of the source. Raises: BadRequest, CodecError, RoutingError."""
    if len(item["routing_key"].encode()) > 255:
        raise BadRequest("a routing key has at most 255 bytes")
    encode_table(item["arguments"])
    exchange_type(kind)().validate(item["routing_key"], item["arguments"])
