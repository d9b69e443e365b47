"""The shape of a definitions document: the keys of each kind of thing, their types, and what an item by itself may say.

`read` sets every key, passes over those that are not known (it tells which) and names the first thing that has no such
shape by its path; the `check_*` look at one item alone. What else may be wrong with an item is found by the catalogue's
calls, which `definitions_import` makes.

A hash of argon2id stands under a key of its own, beside an empty `password_hash` of RabbitMQ's: it reads that as a user
whom no password opens, where the hash itself would have it refuse the whole document.
"""

from __future__ import annotations

from typing import Any, Final

from amqpd.auth.passwords import ARGON2ID, RABBIT_SHA256, check_hash
from amqpd.auth.permissions import Permissions
from amqpd.auth.user_rows import TAGS_MAX
from amqpd.broker.vhost.limits import COMPONENT, OF_VHOSTS, PARAMETER, checked
from amqpd.broker.queue.types import KINDS
from amqpd.management.request import BadRequest, clean_name, truth
from amqpd.management.definitions_report import Report
from amqpd.management.time_slice import Slices
from amqpd.management.users import tags_of
from amqpd.storage.metadata.store import PermissionRow, TopicPermissionRow

Item = dict[str, Any]
_MISSING: Final = object()

ARGON2ID_KEY: Final = "argon2id_hash"

# Kind of thing -> its keys: type, default (_MISSING: must be there; null is as if it were not). What RabbitMQ exports
# and means nothing here is taken with the value it then has.
_TEXT, _FLAG, _TABLE, _TAGS, _ANY = str, bool, dict, (str, list), object
SCHEMA: Final[dict[str, dict[str, tuple[Any, Any]]]] = {
    "users": {
        "name": (_TEXT, _MISSING),
        "password_hash": (_TEXT, ""),
        "password": (_TEXT, ""),
        ARGON2ID_KEY: (_TEXT, ""),
        "hashing_algorithm": (_TEXT, RABBIT_SHA256),
        "tags": (_TAGS, ""),
        "limits": (_ANY, None),
    },
    "vhosts": {
        "name": (_TEXT, _MISSING),
        "description": (_TEXT, ""),
        "tags": (_TAGS, ""),
        "default_queue_type": (_TEXT, ""),
        "metadata": (_TABLE, {}),
        "limits": (_ANY, None),
        "tracing": (_FLAG, False),
    },
    "permissions": dict.fromkeys(("user", "vhost", "configure", "write", "read"), (_TEXT, _MISSING)),
    "topic_permissions": dict.fromkeys(("user", "vhost", "exchange", "write", "read"), (_TEXT, _MISSING)),
    "policies": {
        "name": (_TEXT, _MISSING),
        "vhost": (_TEXT, _MISSING),
        "pattern": (_ANY, _MISSING),
        "definition": (_ANY, _MISSING),
        "priority": (_ANY, 0),
        "apply-to": (_ANY, "all"),
    },
    "parameters": {
        "name": (_TEXT, _MISSING),
        "vhost": (_TEXT, _MISSING),
        "component": (_TEXT, _MISSING),
        "value": (_ANY, _MISSING),
    },
    "global_parameters": {
        "name": (_TEXT, _MISSING),
        "value": (_ANY, _MISSING),
    },
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
WHOLE_ONLY: Final = ("users", "vhosts", "permissions", "topic_permissions", "global_parameters")
"""What is not for one vhost: an import into one passes over it."""
TITLES: Final = (
    "rabbit_version", "rabbitmq_version", "product_name", "product_version", "original_vhost_name", "explanation",
    "rabbitmq_definition_format", "original_cluster_name", "description", "default_queue_type", "metadata",
)  # fmt: skip


async def read(document: Item, report: Report, vhost: str | None = None) -> dict[str, list[Item]]:
    """The document's items with every key set. vhost: all of them are for this one, whatever they say. report: hears of
    each key that is not known.

    Raises: BadRequest with the path of the first thing that is missing or of the wrong type.
    """
    found: dict[str, list[Item]] = {kind: [] for kind in SCHEMA}
    slices = Slices()
    for key, value in document.items():
        if key in TITLES:
            continue
        if vhost is not None and key == "limits":
            found["parameters"] += _limits_of_vhost(vhost, document)
            continue
        if key not in SCHEMA or (vhost is not None and key in WHOLE_ONLY):
            report.pass_over(key)
            continue
        if not isinstance(value, list):
            raise BadRequest(f"{key}: must be a list")
        for index, item in enumerate(value):
            found[key].append(_item(f"{key}[{index}]", SCHEMA[key], item, vhost, report))
            if slices.due:
                await slices.rest()
    return found


def _limits_of_vhost(vhost: str, document: Item) -> list[Item]:
    """rabbit: a document of 4.x for one vhost has its limits apart, `[]` for none, and among the parameters, too."""
    limits, others = document["limits"] or {}, document.get("parameters")
    if not isinstance(limits, dict):
        raise BadRequest("limits: must be an object")
    if not limits or (isinstance(others, list) and any(_is_of_limits(each) for each in others)):
        return []
    return [{"vhost": vhost, "component": COMPONENT, "name": PARAMETER, "value": limits}]


def _is_of_limits(item: object) -> bool:
    return isinstance(item, dict) and item.get("component") == COMPONENT


def _item(path: str, schema: dict[str, tuple[Any, Any]], given: object, vhost: str | None, report: Report) -> Item:
    if not isinstance(given, dict):
        raise BadRequest(f"{path}: must be an object")
    if vhost is not None:
        given = {**given, "vhost": vhost}
    for key in given:
        if key not in schema:
            report.pass_over(f"{path}.{key}")
    item: Item = {}
    for key, (kind, default) in schema.items():
        value = given.get(key, default)
        if value is None and kind is not _ANY:
            value = default
        if value is _MISSING:
            raise BadRequest(f"{path}.{key}: missing")
        if kind is dict and value == []:  # rabbit: an empty table may be written as an empty list
            value = {}
        if not isinstance(value, kind):
            raise BadRequest(f"{path}.{key}: wrong type")
        item[key] = value
    return item


def with_limits_of_vhosts(items: dict[str, list[Item]]) -> None:
    """rabbit: 4.x has the limits of a vhost at the vhost, and among the parameters, too, which then hold. Those that
    stand at the vhost alone become parameters.
    """
    there = {item["vhost"] for item in items["parameters"] if item["component"] == COMPONENT}
    for item in items["vhosts"]:
        if item["limits"] and item["name"] not in there:
            there.add(item["name"])
            items["parameters"].append(
                {"vhost": item["name"], "component": COMPONENT, "name": PARAMETER, "value": item["limits"]}
            )


# -- one item ---------------------------------------------------------------------------------------------------------


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
    """What there is under ARGON2ID_KEY becomes the hash. Raises: BadRequest, InvalidHash."""
    clean_name(item["name"], "a user")
    if item[ARGON2ID_KEY]:
        if item["password_hash"]:
            raise BadRequest(f"{ARGON2ID_KEY} goes with an empty password_hash")
        item["password_hash"], item["hashing_algorithm"], item[ARGON2ID_KEY] = item[ARGON2ID_KEY], ARGON2ID, ""
    if item["password_hash"]:
        check_hash(item["password_hash"], item["hashing_algorithm"])
    tags = tags_of(item["tags"])
    if len(tags) > TAGS_MAX or not all(0 < len(tag) < 256 and tag.isprintable() and " " not in tag for tag in tags):
        raise BadRequest(f"tags are words, at most {TAGS_MAX}")


def check_vhost(item: Item) -> None:
    """Makes `undefined` a classic, and takes from the metadata what does not stand beside them. Raises: BadRequest,
    InvalidLimits.
    """
    clean_name(item["name"], "a vhost")
    if item["limits"]:
        checked(item["limits"], OF_VHOSTS, PARAMETER)
    for key, kind in (("description", str), ("tags", (str, list)), ("default_queue_type", str)):
        there = item["metadata"].get(key, item[key])
        if not isinstance(there, kind):
            raise BadRequest(f"metadata.{key}: wrong type")
        item[key] = item[key] or there
    tags_of(item["tags"])
    truth("metadata.protected_from_deletion", item["metadata"].get("protected_from_deletion", False))
    if item["default_queue_type"] in ("", "undefined"):
        item["default_queue_type"] = "classic"
    if item["default_queue_type"] not in KINDS:
        raise BadRequest(f"default_queue_type is {', '.join(KINDS)}")
