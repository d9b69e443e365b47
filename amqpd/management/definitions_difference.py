"""The dry run of an import of definitions: what it would make, what it would change and how, and what it would refuse.

The document goes through the same checks as an import (`definitions_import.Import.check`), on a draft of the vhosts;
then each item is held beside what is there. Nothing is made. An import deletes nothing: what is there and not in the
document stays, and is not told of here. Nor does it change what is declared: a queue that the document has with other
arguments stays as it is, which is told as `kept`.

Hashes of passwords are in no answer: of a user it says whether the password would be another.

RabbitMQ has no such route.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from amqpd.auth.user_rows import user_row
from amqpd.broker.vhost.exchange import BindingKey, binding_table
from amqpd.broker.vhost.parameters import CLUSTER_NAME, OPERATOR_POLICY, find
from amqpd.management.request import BadRequest, Call, Reply, Role, number
from amqpd.management.definitions_document import Item, permission_row, read
from amqpd.management.definitions_import import Import
from amqpd.management.definitions_report import Report
from amqpd.management.listing import document, plain
from amqpd.management.router import Route
from amqpd.management.time_slice import Slices
from amqpd.management.users import tags_of
from amqpd.storage.metadata.store import PermissionRow, TopicPermissionRow, UserRow

if TYPE_CHECKING:
    from amqpd.broker.broker import Broker

COUNT: Final = 200
COUNT_MAX: Final = 10_000

NEW, CHANGED, SAME, KEPT = "new", "changed", "same", "kept"
Values: TypeAlias = dict[str, Any]


class Beside(NamedTuple):
    """An item of the document, and what is there under its name. before: None where there is nothing. obeyed: whether
    an import makes what is there like it.
    """

    name: str
    before: Values | None
    after: Values
    obeyed: bool = True


class Difference:
    """Between a document that was checked and the broker. count: how many changes are shown."""

    def __init__(self, broker: Broker, work: Import, count: int) -> None:
        self._broker = broker
        self._work = work
        self._count = count
        self.counts: dict[str, dict[str, int]] = {}
        self.changes: list[dict[str, Any]] = []
        self.changes_count = 0
        self._users = {row.name: row for row in broker.auth.users()}
        self._permissions: dict[tuple[str, ...], PermissionRow | TopicPermissionRow] = {}
        rows: list[PermissionRow | TopicPermissionRow] = [*broker.auth.permissions(), *broker.auth.topic_permissions()]
        for row in rows:
            self._permissions[_whose(row)] = row

    async def find(self) -> None:
        """Cost: some us an item, in slices."""
        beside: dict[str, Callable[[Item], Beside]] = {
            "users": self._user,
            "vhosts": self._vhost,
            "permissions": self._permission,
            "topic_permissions": self._permission,
            "policies": self._policy,
            "parameters": self._parameter,
            "global_parameters": self._global,
            "exchanges": self._exchange,
            "queues": self._queue,
            "bindings": self._binding,
        }
        slices = Slices()
        for kind, index, item in self._work.kept():
            self._note(kind, f"{kind}[{index}]", item.get("vhost", ""), beside[kind](item))
            if slices.due:
                await slices.rest()

    def _note(self, kind: str, path: str, vhost: str, found: Beside) -> None:
        before, after = found.before, found.after
        what = NEW if before is None else SAME if before == after else CHANGED if found.obeyed else KEPT
        counts = self.counts.setdefault(kind, {NEW: 0, CHANGED: 0, SAME: 0, KEPT: 0})
        counts[what] += 1
        if what == SAME:
            return
        self.changes_count += 1
        if len(self.changes) >= self._count:
            return
        if before is not None:
            differ = [key for key in after if before.get(key) != after[key]]
            before, after = {key: before.get(key) for key in differ}, {key: after[key] for key in differ}
        told = {"path": path, "kind": kind, "vhost": vhost, "name": found.name, "what": what}
        self.changes.append({**told, "before": before, "after": after})

    # -- by kind -----------------------------------------------------------------------------------------------------

    def _user(self, item: Item) -> Beside:
        there = self._users.get(item["name"])
        row = user_row(item["name"], tags_of(item["tags"]), item["password_hash"], item["hashing_algorithm"])
        limits = self._broker.user_limits.get(row.name)
        after = {"tags": list(row.tags), "limits": limits if item["limits"] is None else item["limits"]}
        after["password"] = _password(row, there)
        if there is None:
            return Beside(row.name, None, after)
        return Beside(row.name, {"tags": list(there.tags), "limits": limits, "password": _AS_IT_IS}, after)

    def _vhost(self, item: Item) -> Beside:
        """An import changes the default queue type of one that is there, and that alone."""
        there = self._broker.vhosts.get(item["name"])
        kind: Values = {"default_queue_type": item["default_queue_type"]}
        after = {"description": item["description"], "tags": tags_of(item["tags"]), **kind}
        if there is None:
            return Beside(item["name"], None, after)
        before: Values = {"default_queue_type": there.default_queue_type}
        if before != kind:
            return Beside(item["name"], before, kind)
        before |= {"description": there.description, "tags": list(there.tags)}
        return Beside(item["name"], before, after, False)

    def _permission(self, item: Item) -> Beside:
        row = permission_row(item)
        there = self._permissions.get(_whose(row))
        name = f"{row.user} on {row.exchange}" if isinstance(row, TopicPermissionRow) else row.user
        return Beside(name, None if there is None else _patterns(there), _patterns(row))

    def _policy(self, item: Item) -> Beside:
        vhost = self._broker.vhosts.get(item["vhost"])
        there = None if vhost is None else vhost.policies.get(item["name"])
        return Beside(item["name"], None if there is None else there.value, _policy_value(item))

    def _parameter(self, item: Item) -> Beside:
        vhost, component = self._broker.vhosts.get(item["vhost"]), item["component"]
        there = None if vhost is None else find(vhost, component, item["name"])
        name = f"{component} {item['name']}"
        if component == OPERATOR_POLICY:
            return Beside(name, None if there is None else dict(there.value), _policy_value(item["value"]))
        return Beside(name, None if there is None else {"value": there.value}, {"value": item["value"]})

    def _global(self, item: Item) -> Beside:
        name, shown = item["name"], self._broker.global_parameters
        if name == CLUSTER_NAME:
            return Beside(name, {"value": self._broker.cluster_name}, {"value": item["value"]})
        return Beside(name, {"value": shown.get(name)} if shown.has(name) else None, {"value": item["value"]})

    def _exchange(self, item: Item) -> Beside:
        vhost = self._broker.vhosts.get(item["vhost"])
        there = None if vhost is None else vhost.exchanges.get(item["name"])
        after = {key: item[key] for key in ("type", "durable", "auto_delete", "internal", "arguments")}
        if there is None:
            return Beside(item["name"], None, after)
        flags = {"durable": there.durable, "auto_delete": there.auto_delete, "internal": there.internal}
        before = {"type": there.kind, **flags, "arguments": plain(there.arguments)}
        return Beside(item["name"], before, {**after, "arguments": plain(item["arguments"])}, False)

    def _queue(self, item: Item) -> Beside:
        vhost = self._broker.vhosts.get(item["vhost"])
        there = None if vhost is None else vhost.queues.get(item["name"])
        default = "classic" if vhost is None else vhost.default_queue_type
        kind = item["type"] or item["arguments"].get("x-queue-type") or default
        after = {"type": kind, "durable": item["durable"], "auto_delete": item["auto_delete"]}
        after["arguments"] = _without_type(item["arguments"])
        if there is None:
            return Beside(item["name"], None, after)
        before = {"type": there.kind, "durable": there.durable, "auto_delete": there.auto_delete}
        return Beside(item["name"], {**before, "arguments": _without_type(there.arguments)}, after, False)

    def _binding(self, item: Item) -> Beside:
        source, kind, end = item["source"], item["destination_type"], item["destination"]
        vhost = self._broker.vhosts.get(item["vhost"])
        exchange = None if vhost is None else vhost.exchanges.get(source)
        after = {key: item[key] for key in ("routing_key", "arguments")}
        key = BindingKey(source, kind, end, item["routing_key"], binding_table(item["arguments"]))
        there = exchange is not None and key in exchange.bindings
        return Beside(f"{source} to {kind} {end}", after if there else None, after)


_AS_IT_IS: Final = "as it is"


def _password(row: UserRow, there: UserRow | None) -> str:
    if there is not None and row._replace(tags=there.tags) == there:
        return _AS_IT_IS
    return "another" if row.password_hash else "none"


def _whose(row: PermissionRow | TopicPermissionRow) -> tuple[str, ...]:
    return (row.user, row.vhost, *((row.exchange,) if isinstance(row, TopicPermissionRow) else ()))


def _patterns(row: PermissionRow | TopicPermissionRow) -> Values:
    return {key: value for key, value in row._asdict().items() if key not in ("user", "vhost", "exchange")}


def _policy_value(value: Item) -> Values:
    return {
        "pattern": value["pattern"],
        "definition": value["definition"],
        "priority": int(value.get("priority", 0)),
        "apply-to": value.get("apply-to", "all"),
    }


def _without_type(arguments: dict[str, object]) -> Values:
    """As JSON; the type stands beside them."""
    return {name: plain(value) for name, value in arguments.items() if name != "x-queue-type"}


async def post_difference(call: Call) -> Reply:
    """What an import of this document would make, change, keep and refuse; nothing is done."""
    vhost = call.vhost().name if "vhost" in call.params else None
    skip = call.query_flag("skip_unsupported")
    count = number("count", call.query.get("count", COUNT), 0, COUNT_MAX)
    report = Report()
    work = Import(call.broker, await read(call.fields(), report, vhost), report, skip)
    try:
        try:
            await work.check()
        except BadRequest:
            if not report.fault_count:
                raise
        found = Difference(call.broker, work, count)
        await found.find()
    finally:
        await work.drop()
    return await document(
        {
            "possible": skip or not report.fault_count,
            "counts": found.counts,
            "changes": found.changes,
            "changes_left_out": found.changes_count - len(found.changes),
            **report.fields(),
        }
    )


ROUTES: Final = (
    Route(
        "POST", "api/amqpd/definitions/difference", Role.ADMINISTRATOR, post_difference, definitions=True, quiet=True
    ),
    Route(
        "POST", "api/amqpd/definitions/{vhost}/difference", Role.ADMINISTRATOR, post_difference, definitions=True,
        quiet=True,
    ),
)  # fmt: skip
