"""Import of definitions: POST /api/definitions, RabbitMQ's document; `definitions_start` imports files.

The whole document is checked before anything is made: a dry run of the calls that clients would make, on a draft of the
vhosts, which finds each item that cannot be and names it by its path (`queues[3]: ...`). Then the same calls are made
in one transaction, which is committed and only then made in memory: all or nothing. What is there already stays as it
is, but for users, permissions, policies and parameters, which become those of the document. RabbitMQ keeps operator
policies among the parameters, and so does a document.

One item that cannot be, and nothing is made: an order that is routed elsewhere is worse than an import that fails.
Whoever asks for `skip_unsupported` gets the others, and is told of each that was left out, and of those that needed it;
of a policy only the keys that are not known are.

The dry run of an import of definitions: what it would make, what it would change and how, and what it would refuse.

The document goes through the same checks as an import (`definitions_import.Import.check`), on a draft of the vhosts;
then each item is held beside what is there. Nothing is made. An import deletes nothing: what is there and not in the
document stays, and is not told of here. Nor does it change what is declared: a queue that the document has with other
arguments stays as it is, which is told as `kept`.

Hashes of passwords are in no answer: of a user it says whether the password would be another.

RabbitMQ has no such route.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from amqpd.auth.internal_backend import AuthError, user_row
from amqpd.auth.passwords import InvalidHash
from amqpd.auth.permissions import InvalidPattern
from amqpd.broker.publish.firehose import trace
from amqpd.broker.queue.queue import Queue
from amqpd.broker.vhost import declare, policies, vhosts
from amqpd.broker.vhost.batch import DeclarationBatch
from amqpd.broker.vhost.declaration import ExchangeDeclaration, NewQueue, QueueDeclaration
from amqpd.broker.vhost.exchange import BindingKey, Exchange, binding_table
from amqpd.broker.vhost.limits import InvalidLimits, UserLimits
from amqpd.broker.vhost.parameters import CLUSTER_NAME, OPERATOR_POLICY, InvalidParameter, component_of, find
from amqpd.broker.vhost.pending import DeclarationPending, done_future, ignore_result, wait_done
from amqpd.broker.vhost.policy_table import InvalidPolicy, unknown_keys
from amqpd.broker.vhost.vhost import Namespace, VHost
from amqpd.errors import AmqpError
from amqpd.management.definitions import (
    ARGON2ID_KEY,
    Fault,
    ImportReport,
    Item,
    check_permission,
    check_user,
    check_vhost,
    permission_row,
    queue_arguments,
    read,
    with_limits_of_vhosts,
)
from amqpd.management.listing import document, plain
from amqpd.management.request import (
    NO_CONTENT,
    ApiError,
    ApiRequest,
    ApiResponse,
    BadRequest,
    Role,
    clean_name,
    number,
    reply,
)
from amqpd.management.router import ApiRoute
from amqpd.management.time_slice import TimeSlice, release
from amqpd.management.users import tags_of
from amqpd.protocol.field_table import CodecError
from amqpd.routing.base import RoutingError
from amqpd.storage.metadata.store import PermissionRow, TopicPermissionRow, UserRow

if TYPE_CHECKING:
    from amqpd.broker.broker import Broker


log = logging.getLogger(__name__)

# What the calls raise when an item cannot be.
REFUSALS: Final = (
    ApiError, AmqpError, AuthError, InvalidHash, InvalidPattern, CodecError, RoutingError, UnicodeEncodeError,
    InvalidPolicy, InvalidParameter, InvalidLimits,
)  # fmt: skip


class Import:
    """One document: a dry run by `check`, then all of it in one transaction by `make`.

    skip: what cannot be is left out.
    """

    def __init__(self, broker: Broker, items: dict[str, list[Item]], report: ImportReport, skip: bool = False) -> None:
        self.broker = broker
        self.items = items
        self.report = report
        self.skip = skip
        with_limits_of_vhosts(items)
        self.slices = TimeSlice()
        self._skipped: set[tuple[str, int]] = set()

    async def check(self) -> None:
        """Raises: BadRequest with the paths of the items that could not be made, unless they are to be skipped;
        OnItsWay.
        """
        await self._hash_passwords()
        if self.skip:
            await self._drop_unknown_policy_keys()
        given = Declarations(self.broker, dry=True)
        await self._declare(given)
        await self._let_go(given)
        if self.report.fault_count and not self.skip:
            raise BadRequest(self.report.faults_text())

    async def _hash_passwords(self) -> None:
        """rabbit: a document may have plaintext passwords; both is an error."""
        for index, item in enumerate(self.items["users"]):
            if not item["password"]:
                continue
            if item["password_hash"] or item[ARGON2ID_KEY]:
                raise BadRequest(f"users[{index}]: both_password_and_password_hash_are_provided")
            stored, algorithm = await self.broker.auth.hashed(item["name"], item["password"].encode())
            item["password_hash"], item["hashing_algorithm"], item["password"] = stored, algorithm, ""

    async def _drop_unknown_policy_keys(self) -> None:
        """Of policies and operator policies that have others, too: a limit does not go with a key beside it."""
        for kind in ("policies", "parameters"):
            for index, item in enumerate(self.items[kind]):
                operator = item.get("component") == OPERATOR_POLICY
                value = item["value"] if operator else item
                if operator and isinstance(value, dict):
                    value = item["value"] = dict(value)
                definition = value.get("definition") if isinstance(value, dict) else None
                if isinstance(definition, dict) and (kind == "policies" or operator):
                    path = f"{kind}[{index}]{'.value' if operator else ''}.definition"
                    self._drop_unknown_keys(path, value, definition, operator)
                if self.slices.expired:
                    await self.slices.yield_loop()

    def _drop_unknown_keys(self, path: str, value: Item, definition: Item, operator: bool) -> None:
        unknown = unknown_keys(definition, operator)
        if len(unknown) < len(definition):
            for key in unknown:
                self.report.fault(f"{path}.{key}", "not a key of policies here")
            value["definition"] = {key: each for key, each in definition.items() if key not in unknown}

    def kept(self) -> Iterator[tuple[str, int, Item]]:
        """Kind, place in the document and item of what has passed the check."""
        for kind, items in self.items.items():
            for index, item in enumerate(items):
                if (kind, index) not in self._skipped:
                    yield kind, index, item

    def counts(self) -> dict[str, int]:
        """How many of each kind are to be made, where there are any."""
        skipped = Counter(kind for kind, _ in self._skipped)
        found = {kind: len(items) - skipped[kind] for kind, items in self.items.items()}
        return {kind: count for kind, count in found.items() if count}

    async def make(self) -> None:
        """All of it or nothing. Raises: BadRequest, OnItsWay, MetadataError; then nothing is made."""
        # What is committed must be made, also when nobody waits for the answer any more.
        await asyncio.shield(asyncio.create_task(self._made()))

    async def drop(self) -> None:
        """The items go, in slices."""
        for items in self.items.values():
            await release(items)

    async def _made(self) -> None:
        try:
            given = Declarations(self.broker, dry=False)
            async with self.broker.auth.changing:
                await self._make(given)
            await self._let_go(given)
        finally:
            await self.drop()

    async def _let_go(self, given: Declarations) -> None:
        for _ in given.transaction.let_go():
            if self.slices.expired:
                await self.slices.yield_loop()

    async def _make(self, given: Declarations) -> None:
        try:
            await self._declare(given)
            # Without a rest from here to the commit.
            gone = given.transaction.gone()
            if isinstance(gone, VHost):
                raise BadRequest(f"vhost '{gone.name}': unknown")
            if gone is not None:
                kind = "exchange" if isinstance(gone, Exchange) else "queue"
                raise BadRequest(f"bindings.{kind} '{gone.name}': unknown")
            await wait_done(given.transaction.commit)
        except BaseException:
            given.transaction.abandon()
            raise
        self.broker.auth.save_all(given.users, given.permissions)
        for name, limits in given.user_limits.items():
            self.broker.user_limits.keep(name, limits)
        for _ in given.transaction.make_all():
            if self.slices.expired:
                await self.slices.yield_loop()
        for name in given.traced:
            if name in self.broker.vhosts:
                await wait_done(partial(trace, self.broker.vhosts[name], self.broker.node_name, True))
        for vhost in given.changed:
            obeyed, done = done_future()
            vhost.policy_walk.when_done(partial(done, None))
            await obeyed

    async def _declare(self, given: Declarations) -> None:
        """The calls that clients would make, in the order in which one thing needs another."""
        calls: dict[str, Callable[[Item], None]] = {
            "users": given.user,
            "vhosts": given.vhost,
            "permissions": given.permission,
            "topic_permissions": given.permission,
            "policies": given.policy,
            "parameters": given.parameter,
            "global_parameters": given.global_parameter,
            "exchanges": given.exchange,
            "queues": given.queue,
            "bindings": given.binding,
        }
        for kind, call in calls.items():
            for index, item in enumerate(self.items[kind]):
                try:
                    if (kind, index) not in self._skipped:
                        call(item)
                except REFUSALS as error:
                    refused = _refused(f"{kind}[{index}]", error)
                    if not given.transaction.dry:
                        raise BadRequest(str(refused)) from None
                    self._skipped.add((kind, index))
                    self.report.fault(*refused)
                if self.slices.expired:
                    await self.slices.yield_loop()


def _refused(path: str, error: Exception) -> Fault:
    """What is wrong with the item at `path`."""
    if isinstance(error, _Unknown):
        return Fault(f"{path}.{error.reason}", "unknown")
    if isinstance(error, ApiError):
        return Fault(path, error.reason)
    if isinstance(error, AmqpError):
        return Fault(path, error.text)
    return Fault(path, str(error))


class _Unknown(BadRequest):
    """An item names something that is not there, by this key."""


def _known(key: str, known: bool) -> None:
    if not known:
        raise _Unknown(key)


class Declarations:
    """What becomes of a document's items: calls of the catalogue within one transaction, and rows of users.

    What is there already stays as it is, but for users, permissions, policies and parameters. Every call raises
    BadRequest, AmqpError, OnItsWay, ValueError or what auth raises. changed: vhosts with other policies or parameters.
    traced: names of vhosts with a firehose.
    """

    def __init__(self, broker: Broker, dry: bool) -> None:
        self.transaction = DeclarationBatch(broker.vhosts, dry)
        self.users: list[UserRow] = []
        self.user_limits: dict[str, dict[str, int]] = {}
        self.permissions: list[PermissionRow | TopicPermissionRow] = []
        self._user_names = {row.name for row in broker.auth.users()}
        self._vhosts: set[str] = set()  # those that the document has named
        self.changed: dict[VHost, None] = {}
        self.traced: list[str] = []
        self._set: set[tuple[str, ...]] = set()  # policies and parameters that the document has named
        self._globals = broker.global_parameters

    def user(self, item: Item) -> None:
        check_user(item)
        row = user_row(item["name"], tags_of(item["tags"]), item["password_hash"], item["hashing_algorithm"])
        self._user_names.add(row.name)
        self.users.append(row)
        self.transaction.put(row)
        if item["limits"] is not None:
            self.transaction.put(UserLimits.row(row.name, item["limits"]))
            self.user_limits[row.name] = dict(item["limits"])

    def vhost(self, item: Item) -> None:
        """A new one, or another default queue type for the one there is; the rest of it stays as it is."""
        check_vhost(item)
        name, kind = item["name"], item["default_queue_type"]
        if name in self._vhosts:
            return
        self._vhosts.add(name)
        if item["tracing"]:
            self.traced.append(name)
        there = self.transaction.find_vhost(name)
        if there is None:
            vhosts.declare(self.transaction, name, item["description"], tags_of(item["tags"]), kind)
            if item["metadata"].get("protected_from_deletion") in (True, "true"):
                draft = self.transaction.draft(name)
                assert draft is not None  # it was declared in it
                vhosts.protect(draft, True)
        else:
            vhosts.change(self.transaction, there, there.description, there.tags, kind)

    def permission(self, item: Item) -> None:
        _known("user", item["user"] in self._user_names)
        self._of(item)
        check_permission(item)
        row = permission_row(item)
        self.permissions.append(row)
        self.transaction.put(row)

    def policy(self, item: Item) -> None:
        vhost = self._once(item, "policy")
        value = {key: item[key] for key in policies.FIELDS}
        policies.declare(vhost, clean_name(item["name"], "a policy"), value)

    def parameter(self, item: Item) -> None:
        component = component_of(item["component"])
        if not component.listed:
            raise BadRequest(f"{component.name}: not a parameter")
        vhost = self._once(item, component.name)
        component.declare(vhost, clean_name(item["name"], "a parameter"), item["value"], ignore_result)

    def _once(self, item: Item, kind: str) -> Namespace:
        vhost = self._of(item)
        self._check_once(kind, item["vhost"], item["name"])
        self.changed[vhost.vhost] = None
        return vhost

    def _check_once(self, *key: str) -> None:
        if key in self._set:
            raise BadRequest("stands twice in the document")
        self._set.add(key)

    def global_parameter(self, item: Item) -> None:
        self._check_once("global", item["name"])
        self.transaction.make(
            self._globals.coming(clean_name(item["name"], "a parameter"), item["value"]), ignore_result
        )

    def exchange(self, item: Item) -> None:
        vhost = self._of(item)
        clean_name(item["name"], "an exchange")
        flags = (item["durable"], item["auto_delete"], item["internal"])
        asked = ExchangeDeclaration(item["name"], item["type"], *flags, item["arguments"])
        if vhost.find_exchange(asked.name) is None:
            declare.declare_exchange(vhost, asked)
        else:
            declare.check_exchange_declaration(vhost.vhost.name, asked)

    def queue(self, item: Item) -> None:
        vhost = self._of(item)
        clean_name(item["name"], "a queue")
        flags = (item["durable"], False, item["auto_delete"])
        asked = QueueDeclaration(item["name"], *flags, queue_arguments(item))
        if vhost.find_queue(asked.name) is None:
            declare.declare_queue(vhost, asked)
        else:
            declare.check_queue_declaration(vhost.vhost.name, asked)

    def binding(self, item: Item) -> None:
        vhost = self._of(item)
        source = vhost.find_exchange(item["source"]) if item["source"] else None
        _known("source", source is not None)
        end, kind = item["destination"], item["destination_type"]
        _known("destination_type", kind in ("queue", "exchange"))
        destination: Queue | NewQueue | Exchange | None = None
        if kind == "queue":
            destination = vhost.find_queue(end)
        elif end:
            destination = vhost.find_exchange(end)
        _known("destination", destination is not None)
        assert source is not None  # both are known
        assert destination is not None
        if len(item["routing_key"].encode()) > 255:
            raise BadRequest("a routing key has at most 255 bytes")
        declare.bind(vhost, source, destination, item["routing_key"], item["arguments"])

    def _of(self, item: Item) -> Namespace:
        """The item's vhost, which is there or comes with the document."""
        draft = self.transaction.draft(item["vhost"])
        if draft is None:
            raise _Unknown("vhost")
        return draft


async def import_document(broker: Broker, document: Item, name: str, vhost: str | None, skip: bool) -> ImportReport:
    """Everything is made and committed when it returns; what is told is in the log, too. name: of where it came from.
    vhost: everything is for this one. skip: what cannot be is left out.

    Raises: BadRequest, OnItsWay, MetadataError; then nothing is made.
    """
    report = ImportReport()
    work = Import(broker, await read(document, report, vhost), report, skip)
    try:
        await work.check()
    except (ApiError, DeclarationPending):
        await work.drop()
        raise
    counts = work.counts()
    await work.make()
    broker.catalogue.events.record("definitions.imported", {"vhost": vhost or "", "name": name, "items": counts})
    told = ", ".join(f"{count} {kind}" for kind, count in counts.items()) or "nothing"
    log.info("%s: imported %s", name, told, extra={"vhost": vhost})
    if report.unknown_count:
        log.warning("%s: passed over what is not known: %s", name, report.unknown_text())
    if report.fault_count:
        log.warning("%s: left out what cannot be kept: %s", name, report.faults_text())
    return report


async def post_definitions(call: ApiRequest) -> ApiResponse:
    """Imports a document; 204 when everything is made and committed; 200 with what was passed over, if `report` or
    `skip_unsupported` asks
    for it.
    """
    vhost = call.vhost().name if "vhost" in call.params else None
    skip, told = call.query_flag("skip_unsupported"), call.query_flag("report")
    report = await import_document(call.broker, call.fields(), "definitions", vhost, skip)
    return reply(report.fields()) if skip or told else NO_CONTENT


ROUTES: Final = (
    ApiRoute("POST", "api/definitions", Role.ADMINISTRATOR, post_definitions, definitions=True),
    ApiRoute("POST", "api/definitions/{vhost}", Role.ADMINISTRATOR, post_definitions, definitions=True),
)


COUNT: Final = 200
COUNT_MAX: Final = 10_000

NEW, CHANGED, SAME, KEPT = "new", "changed", "same", "kept"
Values: TypeAlias = dict[str, Any]


class Comparison(NamedTuple):
    """An item of the document, and what is there under its name. before: None where there is nothing. obeyed: whether
    an import makes what is there like it.
    """

    name: str
    before: Values | None
    after: Values
    obeyed: bool = True


class DefinitionsDiff:
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
        beside: dict[str, Callable[[Item], Comparison]] = {
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
        slices = TimeSlice()
        for kind, index, item in self._work.kept():
            self._note(kind, f"{kind}[{index}]", item.get("vhost", ""), beside[kind](item))
            if slices.expired:
                await slices.yield_loop()

    def _note(self, kind: str, path: str, vhost: str, found: Comparison) -> None:
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

    def _user(self, item: Item) -> Comparison:
        there = self._users.get(item["name"])
        row = user_row(item["name"], tags_of(item["tags"]), item["password_hash"], item["hashing_algorithm"])
        limits = self._broker.user_limits.get(row.name)
        after = {"tags": list(row.tags), "limits": limits if item["limits"] is None else item["limits"]}
        after["password"] = _password(row, there)
        if there is None:
            return Comparison(row.name, None, after)
        return Comparison(row.name, {"tags": list(there.tags), "limits": limits, "password": _AS_IT_IS}, after)

    def _vhost(self, item: Item) -> Comparison:
        """An import changes the default queue type of one that is there, and that alone."""
        there = self._broker.vhosts.get(item["name"])
        kind: Values = {"default_queue_type": item["default_queue_type"]}
        after = {"description": item["description"], "tags": tags_of(item["tags"]), **kind}
        if there is None:
            return Comparison(item["name"], None, after)
        before: Values = {"default_queue_type": there.default_queue_type}
        if before != kind:
            return Comparison(item["name"], before, kind)
        before |= {"description": there.description, "tags": list(there.tags)}
        return Comparison(item["name"], before, after, False)

    def _permission(self, item: Item) -> Comparison:
        row = permission_row(item)
        there = self._permissions.get(_whose(row))
        name = f"{row.user} on {row.exchange}" if isinstance(row, TopicPermissionRow) else row.user
        return Comparison(name, None if there is None else _patterns(there), _patterns(row))

    def _policy(self, item: Item) -> Comparison:
        vhost = self._broker.vhosts.get(item["vhost"])
        there = None if vhost is None else vhost.policies.get(item["name"])
        return Comparison(item["name"], None if there is None else there.value, _policy_value(item))

    def _parameter(self, item: Item) -> Comparison:
        vhost, component = self._broker.vhosts.get(item["vhost"]), item["component"]
        there = None if vhost is None else find(vhost, component, item["name"])
        name = f"{component} {item['name']}"
        if component == OPERATOR_POLICY:
            return Comparison(name, None if there is None else dict(there.value), _policy_value(item["value"]))
        return Comparison(name, None if there is None else {"value": there.value}, {"value": item["value"]})

    def _global(self, item: Item) -> Comparison:
        name, shown = item["name"], self._broker.global_parameters
        if name == CLUSTER_NAME:
            return Comparison(name, {"value": self._broker.cluster_name}, {"value": item["value"]})
        return Comparison(name, {"value": shown.get(name)} if shown.has(name) else None, {"value": item["value"]})

    def _exchange(self, item: Item) -> Comparison:
        vhost = self._broker.vhosts.get(item["vhost"])
        there = None if vhost is None else vhost.exchanges.get(item["name"])
        after = {key: item[key] for key in ("type", "durable", "auto_delete", "internal", "arguments")}
        if there is None:
            return Comparison(item["name"], None, after)
        flags = {"durable": there.durable, "auto_delete": there.auto_delete, "internal": there.internal}
        before = {"type": there.kind, **flags, "arguments": plain(there.arguments)}
        return Comparison(item["name"], before, {**after, "arguments": plain(item["arguments"])}, False)

    def _queue(self, item: Item) -> Comparison:
        vhost = self._broker.vhosts.get(item["vhost"])
        there = None if vhost is None else vhost.queues.get(item["name"])
        default = "classic" if vhost is None else vhost.default_queue_type
        kind = item["type"] or item["arguments"].get("x-queue-type") or default
        after = {"type": kind, "durable": item["durable"], "auto_delete": item["auto_delete"]}
        after["arguments"] = _without_type(item["arguments"])
        if there is None:
            return Comparison(item["name"], None, after)
        before = {"type": there.kind, "durable": there.durable, "auto_delete": there.auto_delete}
        return Comparison(item["name"], {**before, "arguments": _without_type(there.arguments)}, after, False)

    def _binding(self, item: Item) -> Comparison:
        source, kind, end = item["source"], item["destination_type"], item["destination"]
        vhost = self._broker.vhosts.get(item["vhost"])
        exchange = None if vhost is None else vhost.exchanges.get(source)
        after = {key: item[key] for key in ("routing_key", "arguments")}
        key = BindingKey(source, kind, end, item["routing_key"], binding_table(item["arguments"]))
        there = exchange is not None and key in exchange.bindings
        return Comparison(f"{source} to {kind} {end}", after if there else None, after)


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


async def post_difference(call: ApiRequest) -> ApiResponse:
    """What an import of this document would make, change, keep and refuse; nothing is done."""
    vhost = call.vhost().name if "vhost" in call.params else None
    skip = call.query_flag("skip_unsupported")
    count = number("count", call.query.get("count", COUNT), 0, COUNT_MAX)
    report = ImportReport()
    work = Import(call.broker, await read(call.fields(), report, vhost), report, skip)
    try:
        try:
            await work.check()
        except BadRequest:
            if not report.fault_count:
                raise
        found = DefinitionsDiff(call.broker, work, count)
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


DIFFERENCE_ROUTES: Final = (
    ApiRoute(
        "POST", "api/amqpd/definitions/difference", Role.ADMINISTRATOR, post_difference, definitions=True, quiet=True
    ),
    ApiRoute(
        "POST", "api/amqpd/definitions/{vhost}/difference", Role.ADMINISTRATOR, post_difference, definitions=True,
        quiet=True,
    ),
)  # fmt: skip
