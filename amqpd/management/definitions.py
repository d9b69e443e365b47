"""Definitions: everything but messages, as one JSON document in RabbitMQ's form.

rabbit: what is transient or auto-delete is in it too, what is exclusive, or predeclared, is not. The way back is
`definitions_import`. A hash of argon2id stands where RabbitMQ does not look for it (`definitions_document`).

The shape of a definitions document: the keys of each kind of thing, their types, and what an item by itself may say.

`read` sets every key, passes over those that are not known (it tells which) and names the first thing that has no such
shape by its path; the `check_*` look at one item alone. What else may be wrong with an item is found by the catalogue's
calls, which `definitions_import` makes.

A hash of argon2id stands under a key of its own, beside an empty `password_hash` of RabbitMQ's: it reads that as a user
whom no password opens, where the hash itself would have it refuse the whole document.

What an import of definitions has passed over, and what it could not keep: by path, for whoever asked for it.

A key that is not known is passed over, as RabbitMQ does, so that documents of its later versions come in. An item that
cannot be is a fault, and nothing is made: unless what cannot be is to be left out, and then it is told here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from amqpd import __version__
from amqpd.auth.internal_backend import TAGS_MAX
from amqpd.auth.passwords import ARGON2ID, RABBIT_SHA256, check_hash
from amqpd.auth.permissions import Permissions
from amqpd.broker.queue.queue import Queue
from amqpd.broker.queue.types import KINDS
from amqpd.broker.vhost.limits import COMPONENT, OF_VHOSTS, PARAMETER, checked
from amqpd.broker.vhost.parameters import parameters
from amqpd.management.bindings import binding_item
from amqpd.management.listing import document, plain
from amqpd.management.policies import global_item, parameter_item, policy_item
from amqpd.management.request import ApiRequest, ApiResponse, BadRequest, Role, clean_name, parse_bool
from amqpd.management.router import ApiRoute
from amqpd.management.time_slice import TimeSlice
from amqpd.management.users import permission_item, tags_of, topic_item, user_item
from amqpd.management.vhosts import metadata_item
from amqpd.storage.metadata.store import PermissionRow, TopicPermissionRow

if TYPE_CHECKING:
    from amqpd.broker.broker import Broker
    from amqpd.broker.vhost.limits import UserLimits
    from amqpd.broker.vhost.vhost import VHost
    from amqpd.storage.metadata.store import UserRow


SHOWN_MAX: Final = 20
"""How many of each a sentence names; a report has REPORTED_MAX, and counts the others."""
REPORTED_MAX: Final = 1000


class DefinitionsError(Exception):
    """A start ends with this: a file of definitions cannot be read, or not be made. The text names it."""


class Fault(NamedTuple):
    """path: `queues[3]` or `policies[0].definition.no-such`."""

    path: str
    reason: str

    def __str__(self) -> str:
        # What RabbitMQ says of policies has lines.
        return f"{self.path}: {' '.join(self.reason.split())}"


class ImportReport:
    """Of one import."""

    def __init__(self) -> None:
        self.unknown: list[str] = []
        self.unknown_count = 0
        self.faults: list[Fault] = []
        self.fault_count = 0

    def pass_over(self, path: str) -> None:
        """A key that says nothing here."""
        self.unknown_count += 1
        if len(self.unknown) < REPORTED_MAX:
            self.unknown.append(path)

    def fault(self, path: str, reason: str) -> None:
        """What cannot be kept."""
        self.fault_count += 1
        if len(self.faults) < REPORTED_MAX:
            self.faults.append(Fault(path, reason))

    def fields(self) -> dict[str, object]:
        """As the API answers it."""
        return {
            "unknown": self.unknown,
            "unknown_count": self.unknown_count,
            "skipped": [fault._asdict() for fault in self.faults],
            "skipped_count": self.fault_count,
        }

    def faults_text(self) -> str:
        """One sentence for each, the first ones."""
        return _listed([str(fault) for fault in self.faults[:SHOWN_MAX]], self.fault_count, "; ")

    def unknown_text(self) -> str:
        """The first ones."""
        return _listed(self.unknown[:SHOWN_MAX], self.unknown_count, ", ")


def _listed(shown: list[str], count: int, between: str) -> str:
    text = between.join(shown)
    return text + (f" and {count - len(shown)} more" if count > len(shown) else "")


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


async def read(document: Item, report: ImportReport, vhost: str | None = None) -> dict[str, list[Item]]:
    """The document's items with every key set. vhost: all of them are for this one, whatever they say. report: hears of
    each key that is not known.

    Raises: BadRequest with the path of the first thing that is missing or of the wrong type.
    """
    found: dict[str, list[Item]] = {kind: [] for kind in SCHEMA}
    slices = TimeSlice()
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
            if slices.expired:
                await slices.yield_loop()
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


def _item(
    path: str, schema: dict[str, tuple[Any, Any]], given: object, vhost: str | None, report: ImportReport
) -> Item:
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
    parse_bool("metadata.protected_from_deletion", item["metadata"].get("protected_from_deletion", False))
    if item["default_queue_type"] in ("", "undefined"):
        item["default_queue_type"] = "classic"
    if item["default_queue_type"] not in KINDS:
        raise BadRequest(f"default_queue_type is {', '.join(KINDS)}")


Shown: TypeAlias = dict[str, Any] | None


async def get_definitions(call: ApiRequest) -> ApiResponse:
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


async def get_vhost_definitions(call: ApiRequest) -> ApiResponse:
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
    ApiRoute("GET", "api/definitions", Role.ADMINISTRATOR, get_definitions),
    ApiRoute("GET", "api/definitions/{vhost}", Role.ADMINISTRATOR, get_vhost_definitions),
)
