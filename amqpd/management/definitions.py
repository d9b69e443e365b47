"""Definitions: the JSON document with everything except messages. Export, and checks of a document.

rabbit: the document has transient and auto-delete objects too, but no exclusive queues and no predeclared
exchanges.

`SCHEMA` has the keys of each kind of item and their types. `read` fills in defaults and rejects a document with a
missing key or a wrong type. Unknown keys are ignored and reported, so documents of later versions of RabbitMQ can
be imported. The `check_*` functions check one item alone; `definitions_import` finds everything else.

A password hash of argon2id has a key of its own beside an empty `password_hash`. RabbitMQ would refuse the whole
document because of such a hash; with the empty one, it imports a user without a password. SCRAM credentials have keys
of their own too, which RabbitMQ ignores.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias
from urllib.parse import quote

from amqpd import __version__
from amqpd.auth.internal_backend import TAGS_MAX
from amqpd.auth.passwords import ARGON2ID, RABBIT_SHA256, check_hash
from amqpd.auth.permissions import Permissions
from amqpd.auth.scram import parse_credentials
from amqpd.broker.queue.queue import Queue
from amqpd.broker.queue.types import KINDS
from amqpd.broker.vhost.limits import COMPONENT, OF_VHOSTS, PARAMETER, checked
from amqpd.broker.vhost.parameters import parameters
from amqpd.management.bindings import binding_item
from amqpd.management.listing import amqp_to_json, document_reply
from amqpd.management.policies import global_item, parameter_item, policy_item
from amqpd.management.request import ApiRequest, ApiResponse, BadRequest, Role, clean_name, parse_bool
from amqpd.management.router import ApiRoute
from amqpd.management.time_slice import TimeSlice
from amqpd.management.users import permission_item, tags_of, topic_item, user_item
from amqpd.management.vhosts import metadata_item
from amqpd.storage.metadata.rows import PermissionRow, TopicPermissionRow

if TYPE_CHECKING:
    from amqpd.broker.broker import Broker
    from amqpd.broker.vhost.vhost import VHost
    from amqpd.storage.metadata.rows import UserRow


SHOWN_MAX: Final = 20
"""Number of paths in a sentence for the log or an error."""
REPORTED_MAX: Final = 1000
"""Number of paths in a report. The others are only counted."""


class DefinitionsError(Exception):
    """Definitions that cannot be read or imported at the start, so the broker does not start. The text
    names the file.
    """


class Fault(NamedTuple):
    """An item that cannot be imported.

    Attributes:
        path: for example `queues[3]` or `policies[0].definition.no-such`.
    """

    path: str
    reason: str

    def __str__(self) -> str:
        # RabbitMQ's texts about policies have line breaks.
        return f"{self.path}: {' '.join(self.reason.split())}"


class ImportReport:
    """The unknown keys and faulty items of one import."""

    def __init__(self) -> None:
        self.unknown: list[str] = []
        self.unknown_count = 0
        self.faults: list[Fault] = []
        self.fault_count = 0

    def add_unknown_key(self, path: str) -> None:
        """Add an unknown key."""
        self.unknown_count += 1
        if len(self.unknown) < REPORTED_MAX:
            self.unknown.append(path)

    def add_fault(self, path: str, reason: str) -> None:
        """Add an item, or a key of a policy, that cannot be imported."""
        self.fault_count += 1
        if len(self.faults) < REPORTED_MAX:
            self.faults.append(Fault(path, reason))

    def fields(self) -> dict[str, object]:
        """Return the report as the API answers it."""
        return {
            "unknown": self.unknown,
            "unknown_count": self.unknown_count,
            "skipped": [fault._asdict() for fault in self.faults],
            "skipped_count": self.fault_count,
        }

    def faults_text(self) -> str:
        """Return the first faults as one line of text."""
        return _listed([str(fault) for fault in self.faults[:SHOWN_MAX]], self.fault_count, "; ")

    def unknown_text(self) -> str:
        """Return the first unknown keys as one line of text."""
        return _listed(self.unknown[:SHOWN_MAX], self.unknown_count, ", ")


def _listed(shown: list[str], count: int, between: str) -> str:
    text = between.join(shown)
    return text + (f" and {count - len(shown)} more" if count > len(shown) else "")


Item = dict[str, Any]
_MISSING: Final = object()

ARGON2ID_KEY: Final = "argon2id_hash"
SCRAM_KEYS: Final = {"scram_sha_256": "SCRAM-SHA-256", "scram_sha_512": "SCRAM-SHA-512"}

# Kind of item -> key -> type and default. A key with the default _MISSING is required. null means that the key is
# missing. Keys of RabbitMQ without an effect here are accepted.
_TEXT, _FLAG, _TABLE, _TAGS, _ANY = str, bool, dict, (str, list), object
SCHEMA: Final[dict[str, dict[str, tuple[Any, Any]]]] = {
    "users": {
        "name": (_TEXT, _MISSING),
        "password_hash": (_TEXT, ""),
        "password": (_TEXT, ""),
        ARGON2ID_KEY: (_TEXT, ""),
        **dict.fromkeys(SCRAM_KEYS, (_TEXT, "")),
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
    "global_parameters": {"name": (_TEXT, _MISSING), "value": (_ANY, _MISSING)},
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
BROKER_KINDS: Final = ("users", "vhosts", "permissions", "topic_permissions", "global_parameters")
"""Kinds of items that an import into a single vhost ignores."""
TITLES: Final = (
    "rabbit_version", "rabbitmq_version", "product_name", "product_version", "original_vhost_name", "explanation",
    "rabbitmq_definition_format", "original_cluster_name", "description", "default_queue_type", "metadata",
)  # fmt: skip


async def read_items(document: Item, report: ImportReport, vhost: str | None = None) -> dict[str, list[Item]]:
    """Return the items of the document, each with all keys of its kind.

    Args:
        report: collects unknown keys.
        vhost: if given, every item belongs to this vhost, and its own key is ignored.

    Raises: BadRequest with the path of the first key that is missing or has the wrong type.
    """
    found: dict[str, list[Item]] = {kind: [] for kind in SCHEMA}
    slices = TimeSlice()
    for key, value in document.items():
        if key in TITLES:
            continue
        if vhost is not None and key == "limits":
            found["parameters"] += _limits_of_vhost(vhost, document)
            continue
        if key not in SCHEMA or (vhost is not None and key in BROKER_KINDS):
            report.add_unknown_key(key)
            continue
        if not isinstance(value, list):
            raise BadRequest(f"{key}: must be a list")
        for index, item in enumerate(value):
            found[key].append(_item(f"{key}[{index}]", SCHEMA[key], item, vhost, report))
            await slices.yield_if_due()
    return found


def _limits_of_vhost(vhost: str, document: Item) -> list[Item]:
    """Return the limits in the document of one vhost as a parameter.

    rabbit: 4.x has limits as a key of their own (`[]` for none) and as a parameter. The parameter has priority.
    """
    limits, others = document["limits"] or {}, document.get("parameters")
    if not isinstance(limits, dict):
        raise BadRequest("limits: must be an object")
    if not limits or (isinstance(others, list) and any(_is_of_limits(each) for each in others)):
        return []
    return [{"vhost": vhost, "component": COMPONENT, "name": PARAMETER, "value": limits}]


def _is_of_limits(item: object) -> bool:
    return isinstance(item, dict) and item.get("component") == COMPONENT


def _item(path: str, schema: dict[str, tuple[Any, Any]], raw: object, vhost: str | None, report: ImportReport) -> Item:
    if not isinstance(raw, dict):
        raise BadRequest(f"{path}: must be an object")
    if vhost is not None:
        raw = {**raw, "vhost": vhost}
    for key in raw:
        if key not in schema:
            report.add_unknown_key(f"{path}.{key}")
    item: Item = {}
    for key, (kind, default) in schema.items():
        value = raw.get(key, default)
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


def add_vhost_limits(items: dict[str, list[Item]]) -> None:
    """Add the limits that are only in items of vhosts to the parameters.

    rabbit: 4.x has limits at the vhost and as a parameter. The parameter has priority.
    """
    with_limits = {item["vhost"] for item in items["parameters"] if item["component"] == COMPONENT}
    for item in items["vhosts"]:
        if item["limits"] and item["name"] not in with_limits:
            with_limits.add(item["name"])
            items["parameters"].append(
                {"vhost": item["name"], "component": COMPONENT, "name": PARAMETER, "value": item["limits"]}
            )


# -- one item ---------------------------------------------------------------------------------------------------------


def queue_arguments(item: Item) -> dict[str, object]:
    """Return the arguments of the queue's declaration, with the type, which a document has as a key of its own."""
    arguments: dict[str, object] = dict(item["arguments"])
    if item["type"] and item["type"] != "classic":
        arguments.setdefault("x-queue-type", item["type"])
    return arguments


def permission_row(item: Item) -> PermissionRow | TopicPermissionRow:
    """Return the row for an item of `permissions` or `topic_permissions`."""
    return TopicPermissionRow(**item) if "exchange" in item else PermissionRow(**item)


def check_permission(item: Item) -> None:
    """Check one permission. Raises: BadRequest, AuthError, InvalidPattern."""
    if item.get("exchange"):
        clean_name(item["exchange"], "an exchange")
    Permissions.check_patterns(permission_row(item))


def check_user(item: Item) -> None:
    """Check one user, and move the value of ARGON2ID_KEY to `password_hash`.

    Raises: BadRequest, InvalidHash, InvalidCredentials.
    """
    clean_name(item["name"], "a user")
    if item[ARGON2ID_KEY]:
        if item["password_hash"]:
            raise BadRequest(f"{ARGON2ID_KEY} needs an empty password_hash")
        item["password_hash"], item["hashing_algorithm"], item[ARGON2ID_KEY] = item[ARGON2ID_KEY], ARGON2ID, ""
    if item["password_hash"]:
        check_hash(item["password_hash"], item["hashing_algorithm"])
    for key, mechanism in SCRAM_KEYS.items():
        if item[key]:
            parse_credentials(mechanism, item[key])
    tags = tags_of(item["tags"])
    if len(tags) > TAGS_MAX or not all(0 < len(tag) < 256 and tag.isprintable() and " " not in tag for tag in tags):
        raise BadRequest(f"tags: expected at most {TAGS_MAX} words")


def check_vhost(item: Item) -> None:
    """Check one vhost, and fill in its keys from its metadata. The queue type `undefined` becomes classic.

    Raises: BadRequest, InvalidLimits.
    """
    clean_name(item["name"], "a vhost")
    if item["limits"]:
        checked(item["limits"], OF_VHOSTS, PARAMETER)
    for key, kind in (("description", str), ("tags", (str, list)), ("default_queue_type", str)):
        value = item["metadata"].get(key, item[key])
        if not isinstance(value, kind):
            raise BadRequest(f"metadata.{key}: wrong type")
        item[key] = item[key] or value
    tags_of(item["tags"])
    parse_bool("metadata.protected_from_deletion", item["metadata"].get("protected_from_deletion", False))
    if item["default_queue_type"] in ("", "undefined"):
        item["default_queue_type"] = "classic"
    if item["default_queue_type"] not in KINDS:
        raise BadRequest(f"default_queue_type: expected one of {', '.join(KINDS)}")


ExportedItem: TypeAlias = dict[str, Any] | None


async def get_definitions(call: ApiRequest) -> ApiResponse:
    """Return all definitions of the broker, as one document."""
    return _as_download(call, await document_reply(export_definitions(call.broker)))


def _as_download(call: ApiRequest, response: ApiResponse) -> ApiResponse:
    """Let a browser save the response if the query has the name of a file: `?download=NAME`."""
    name = call.query.get("download")
    if name is None:
        return response
    return response._replace(headers={"Content-Disposition": f'attachment; filename="{quote(name)}"'})


def _titles(broker: Broker) -> dict[str, Any]:
    version = broker.settings.product[1]
    versions = {"rabbit_version": version, "rabbitmq_version": version}
    return {**versions, "product_name": "amqpd", "product_version": __version__}


def export_definitions(broker: Broker) -> dict[str, Any]:
    """Return the document. Its long lists are iterators, which `listing.document_reply` encodes in slices."""
    auth = broker.auth
    vhosts = sorted(broker.vhosts.values(), key=lambda vhost: vhost.name)
    found: dict[str, Any] = {
        **_titles(broker),
        "users": [_user(broker, row) for row in auth.users()],
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
    """Return the definitions of the virtual host, as one document.

    It has no users. Only policies and parameters have the name of the vhost in each item.
    """
    vhost = call.vhost()
    found: dict[str, Any] = {
        **_titles(call.broker),
        "parameters": [parameter_item(each) for each in parameters([vhost])],
        "policies": [policy_item(policy) for policy in vhost.policies.all()],
    }
    found.update(queues=_queues(vhost), exchanges=_exchanges(vhost), bindings=_bindings(vhost))
    return _as_download(call, await document_reply(found))


def _user(broker: Broker, row: UserRow) -> dict[str, Any]:
    """Return one user, with a hash of argon2id under a key of its own. rabbit: it refuses a document
    with such a hash.
    """
    item = user_item(broker.user_limits, row)
    for key, mechanism in SCRAM_KEYS.items():
        credentials = broker.auth.scram_credentials(row.name, mechanism)
        if credentials is not None:
            item[key] = str(credentials)
    if row.hashing_algorithm == ARGON2ID:
        item.update(password_hash="", hashing_algorithm=RABBIT_SHA256)
        if row.password_hash:
            item[ARGON2ID_KEY] = row.password_hash
    return item


# These iterators render one item at a time while the document is encoded. They yield None for an object that is not
# exported, because skipping many takes time too. They use snapshots, because clients declare and delete meanwhile.


def _of_all(vhosts: list[VHost], items: Callable[[VHost], Iterator[ExportedItem]]) -> Iterator[ExportedItem]:
    for vhost in vhosts:
        for item in items(vhost):
            yield item and {"vhost": vhost.name, **item}


def _queues(vhost: VHost) -> Iterator[ExportedItem]:
    for queue in list(vhost.queues.values()):
        if queue.exclusive_owner is not None:
            yield None
            continue
        yield {
            "name": queue.name,
            "durable": queue.durable,
            "auto_delete": queue.auto_delete,
            "type": queue.kind,
            "arguments": amqp_to_json(queue.arguments),
        }


def _exchanges(vhost: VHost) -> Iterator[ExportedItem]:
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
            "arguments": amqp_to_json(exchange.arguments),
        }


def _bindings(vhost: VHost) -> Iterator[ExportedItem]:
    for exchange in list(vhost.exchanges.values()):
        for binding in list(exchange.bindings.values()):
            end = binding.destination
            if not exchange.name or (isinstance(end, Queue) and end.exclusive_owner is not None):
                yield None
                continue
            item = binding_item(binding)._asdict()
            del item["vhost"]
            item["arguments"] = amqp_to_json(item["arguments"])
            yield item


ROUTES: Final = (
    ApiRoute("GET", "api/definitions", Role.ADMINISTRATOR, get_definitions),
    ApiRoute("GET", "api/definitions/{vhost}", Role.ADMINISTRATOR, get_vhost_definitions),
)
