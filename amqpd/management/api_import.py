"""Import of definitions: POST /api/definitions, RabbitMQ's document.

The whole document is checked before anything is made, and the first thing wrong is named by its path
(`queues[3].arguments: ...`). What is there already stays as it is, but for users and permissions, which become those of
the document. Made in the order users, vhosts, permissions, exchanges, queues, bindings; only a database that fails
half-way leaves a part, and the same import can be sent again.

Plaintext passwords are refused: a document is kept and mailed. So is what this version does not have (policies,
parameters, stream queues): silently dropping it would be worse.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from amqpd.auth.backends import TAGS_MAX, AuthError
from amqpd.auth.passwords import RABBIT_SHA256, InvalidHash, check_hash
from amqpd.auth.permissions import InvalidPattern, Permissions
from amqpd.broker import arguments as queue_arguments
from amqpd.errors import AmqpError
from amqpd.management.api_call import NO_CONTENT, ApiError, BadRequest, Call, Reply, Slices, clean_name
from amqpd.management.api_users import tags_of
from amqpd.management.api_vhosts import change_vhost
from amqpd.protocol.codec import CodecError, encode_table
from amqpd.routing.exchange import RoutingError, exchange_type
from amqpd.storage.metadata import Change, PermissionRow, TopicPermissionRow

if TYPE_CHECKING:
    from amqpd.broker.exchange import Exchange
    from amqpd.broker.queue import Queue
    from amqpd.broker.vhost import VHost

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


def read(document: Item, vhost: str | None = None) -> dict[str, list[Item]]:
    """The document's items with every key set. vhost: of a document for one vhost, whose items name none.

    Raises: BadRequest with the path of the first thing that is unknown, missing or of the wrong type.
    """
    found: dict[str, list[Item]] = {kind: [] for kind in SCHEMA}
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


class Import:
    """One document, checked by `check`, then made by `make`."""

    def __init__(self, call: Call, items: dict[str, list[Item]]) -> None:
        self.call = call
        self.broker = call.broker
        self.items = items
        self.slices = Slices()

    # -- check -------------------------------------------------------------------------------------------------------

    async def check(self) -> None:
        """Raises: BadRequest with the path of the first item that could not be made."""
        users = {row.name for row in self.broker.auth.users()} | {item["name"] for item in self.items["users"]}
        vhosts = set(self.broker.vhosts) | {item["name"] for item in self.items["vhosts"]}
        exchanges = {(v.name, x.name): x.kind for v in self.broker.vhosts.values() for x in v.exchanges.values()}
        exchanges |= {(v, name): kind for v in vhosts for name, kind in _SYSTEM.items()}
        queues = {(v.name, name) for v in self.broker.vhosts.values() for name in v.queues}
        for path, item in self._all("users"):
            self._named(path, partial(_check_user, item))
        for path, item in self._all("vhosts"):
            self._named(path, partial(_check_vhost, item))
        for kind in ("permissions", "topic_permissions"):
            for path, item in self._all(kind):
                self._known(path, "user", item["user"] in users)
                self._known(path, "vhost", item["vhost"] in vhosts)
                self._named(path, partial(_check_permission, item))
        for path, item in self._all("exchanges"):
            self._known(path, "vhost", item["vhost"] in vhosts)
            self._named(path, partial(_check_exchange, item))
            exchanges.setdefault((item["vhost"], item["name"]), item["type"])
            await self._rest()
        for path, item in self._all("queues"):
            self._known(path, "vhost", item["vhost"] in vhosts)
            self._named(path, partial(_check_queue, item))
            queues.add((item["vhost"], item["name"]))
            await self._rest()
        for path, item in self._all("bindings"):
            matcher = exchanges.get((item["vhost"], item["source"])) if item["source"] else None
            self._known(path, "source", matcher is not None)
            end = (item["vhost"], item["destination"])
            to_queue = item["destination_type"] == "queue"
            self._known(path, "destination_type", to_queue or item["destination_type"] == "exchange")
            self._known(path, "destination", end in queues if to_queue else bool(end[1]) and end in exchanges)
            self._named(path, partial(_check_binding, item, matcher or ""))
            await self._rest()

    def _all(self, kind: str) -> Iterator[tuple[str, Item]]:
        for index, item in enumerate(self.items[kind]):
            yield f"{kind}[{index}]", item

    async def _rest(self) -> None:
        if self.slices.due:
            await self.slices.rest()

    @staticmethod
    def _known(path: str, key: str, known: bool) -> None:
        if not known:
            raise BadRequest(f"{path}.{key}: unknown")

    @staticmethod
    def _named(path: str, check: Callable[[], None]) -> None:
        """Runs a check; what it raises gets the path."""
        try:
            check()
        except ApiError as error:
            raise BadRequest(f"{path}: {error.reason}") from None
        except AmqpError as error:
            raise BadRequest(f"{path}: {error.text}") from None
        except (AuthError, InvalidHash, InvalidPattern, CodecError, RoutingError, UnicodeEncodeError) as error:
            raise BadRequest(f"{path}: {error}") from None

    # -- make --------------------------------------------------------------------------------------------------------

    async def make(self) -> None:
        """Raises: MetadataError."""
        auth = self.broker.auth
        for item in self.items["users"]:
            await auth.add_user(
                item["name"],
                tags=tags_of(item["tags"]),
                password_hash=item["password_hash"] or None,
                hashing_algorithm=item["hashing_algorithm"],
                replace=True,
            )
        for item in self.items["vhosts"]:
            vhost = await self.broker.create_vhost(item["name"], item["description"], tags_of(item["tags"]))
            await change_vhost(self.call, vhost, vhost.description, vhost.tags, item["default_queue_type"])
        for item in self.items["permissions"]:
            await auth.set_permissions(item["user"], item["vhost"], item["configure"], item["write"], item["read"])
        for item in self.items["topic_permissions"]:
            await auth.set_topic_permissions(
                item["user"], item["vhost"], item["exchange"], item["write"], item["read"]
            )
        changes: list[Change] = []
        for item in self.items["exchanges"]:
            changes += self._exchange(self.broker.vhosts[item["vhost"]], item)
            await self._rest()
        for item in self.items["queues"]:
            changes += self._queue(self.broker.vhosts[item["vhost"]], item)
            await self._rest()
        for item in self.items["bindings"]:
            vhost = self.broker.vhosts[item["vhost"]]
            ends: dict[str, Any] = vhost.queues if item["destination_type"] == "queue" else vhost.exchanges
            end: Queue | Exchange = ends[item["destination"]]
            changes += vhost.bind(vhost.exchanges[item["source"]], end, item["routing_key"], item["arguments"])
            await self._rest()
        await self.broker.committed(changes)

    def _exchange(self, vhost: VHost, item: Item) -> list[Change]:
        if item["name"] in vhost.exchanges:
            return []
        flags = (item["durable"], item["auto_delete"], item["internal"])
        return vhost.declare_exchange(item["name"], item["type"], *flags, item["arguments"])[1]

    def _queue(self, vhost: VHost, item: Item) -> list[Change]:
        if item["name"] in vhost.queues:
            return []
        self.broker.queue_created_count += 1
        arguments = _queue_arguments(item)
        return vhost.declare_queue(item["name"], item["durable"], False, item["auto_delete"], arguments, None)[1]


_SYSTEM: Final = {
    "amq.direct": "direct",
    "amq.fanout": "fanout",
    "amq.headers": "headers",
    "amq.match": "headers",
    "amq.topic": "topic",
}


def _queue_arguments(item: Item) -> dict[str, object]:
    arguments: dict[str, object] = dict(item["arguments"])
    if item["type"] and item["type"] != "classic":
        arguments.setdefault("x-queue-type", item["type"])
    return arguments


def _permission(item: Item) -> PermissionRow | TopicPermissionRow:
    return TopicPermissionRow(**item) if "exchange" in item else PermissionRow(**item)


def _check_permission(item: Item) -> None:
    if item.get("exchange"):
        clean_name(item["exchange"], "an exchange")
    Permissions.check(_permission(item))


def _check_user(item: Item) -> None:
    clean_name(item["name"], "a user")
    if item["password_hash"]:
        check_hash(item["password_hash"], item["hashing_algorithm"])
    tags = tags_of(item["tags"])
    if len(tags) > TAGS_MAX or not all(0 < len(tag) < 256 and tag.isprintable() and " " not in tag for tag in tags):
        raise BadRequest(f"tags are words, at most {TAGS_MAX}")


def _check_vhost(item: Item) -> None:
    clean_name(item["name"], "a vhost")
    tags_of(item["tags"])
    if item["tracing"]:
        raise BadRequest("tracing is not part of this version of amqpd")
    item["default_queue_type"] = item["default_queue_type"].replace("undefined", "classic")
    if item["default_queue_type"] not in ("classic", "quorum"):
        raise BadRequest("default_queue_type is classic or quorum")


def _check_exchange(item: Item) -> None:
    if clean_name(item["name"], "an exchange").startswith("amq.") and item["name"] not in _SYSTEM:
        raise BadRequest("the prefix amq. is reserved")
    exchange_type(item["type"])
    encode_table(item["arguments"])
    if not isinstance(item["arguments"].get("alternate-exchange", ""), str):
        raise BadRequest("alternate-exchange must be text")


def _check_queue(item: Item) -> None:
    name = clean_name(item["name"], "a queue")
    # What a server-named queue is called may be exported, and so must be taken back.
    if name.startswith("amq.") and not name.startswith("amq.gen-"):
        raise BadRequest("the prefix amq. is reserved")
    arguments = _queue_arguments(item)
    encode_table(arguments)
    queue_arguments.validate(item["name"], item["vhost"], arguments)
    if arguments.get("x-queue-type") == "quorum" and (item["auto_delete"] or not item["durable"]):
        raise BadRequest("a quorum queue is durable and not auto-delete")


def _check_binding(item: Item, kind: str) -> None:
    if len(item["routing_key"].encode()) > 255:
        raise BadRequest("a routing key has at most 255 bytes")
    encode_table(item["arguments"])
    exchange_type(kind)().validate(item["routing_key"], item["arguments"])


async def post_definitions(call: Call) -> Reply:
    """204 when everything is made and committed."""
    vhost = call.vhost().name if "vhost" in call.params else None
    work = Import(call, read(call.fields(), vhost))
    await work.check()
    await work.make()
    return NO_CONTENT
