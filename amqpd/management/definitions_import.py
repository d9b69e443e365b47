"""Import of definitions (POST /api/definitions), and its dry run. `definitions_start` imports files.

An import first checks the whole document: it makes the calls that clients would make on a draft of the vhosts, and
names each item that fails by its path (`queues[3]: ...`). Then it makes the same calls in one transaction, commits
it and applies it in memory: all or nothing. Existing objects stay as they are, except users, permissions, policies
and parameters, which get the values of the document. Operator policies are among the parameters, as in RabbitMQ.

One faulty item stops the whole import: a failed import does less harm than messages routed to the wrong queue. With
`skip_unsupported` the import leaves out faulty items and the items that need them, and reports them. Of a policy it
leaves out only the unknown keys.

The dry run (`DefinitionsDiff`; not in RabbitMQ) makes the same checks and compares each item with the existing
object. It reports what the import would create, change, keep or refuse. An existing queue with other arguments is
`kept`. Objects that are not in the document are not reported, because an import deletes nothing. The answer has no
password hashes, only whether the password would change.
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
from amqpd.auth.patterns import InvalidPattern
from amqpd.auth.scram import InvalidCredentials
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
    add_vhost_limits,
    check_permission,
    check_user,
    check_vhost,
    permission_row,
    queue_arguments,
    read_items,
)
from amqpd.management.listing import amqp_to_json, document_reply
from amqpd.management.request import (
    NO_CONTENT,
    ApiError,
    ApiRequest,
    ApiResponse,
    BadRequest,
    Role,
    clean_name,
    parse_int,
    reply,
)
from amqpd.management.router import ApiRoute
from amqpd.management.time_slice import TimeSlice, free_in_slices
from amqpd.management.users import tags_of
from amqpd.protocol.field_table import CodecError
from amqpd.routing.base import RoutingError
from amqpd.storage.metadata.rows import Delete, PermissionRow, Put, TopicPermissionRow, UserRow

if TYPE_CHECKING:
    from amqpd.broker.broker import Broker


log = logging.getLogger(__name__)

# Errors of the calls for a faulty item.
REFUSALS: Final = (
    ApiError, AmqpError, AuthError, InvalidCredentials, InvalidHash, InvalidPattern, CodecError, RoutingError,
    UnicodeEncodeError, InvalidPolicy, InvalidParameter, InvalidLimits,
)  # fmt: skip


class Import:
    """One import: `check` is a dry run, `make` imports everything in one transaction.

    Attributes:
        skip: leave faulty items out instead of refusing the document.

    Args:
        owner: the user of the HTTP request; empty for other imports.
    """

    def __init__(
        self, broker: Broker, items: dict[str, list[Item]], report: ImportReport, skip: bool = False, owner: str = ""
    ) -> None:
        self.broker = broker
        self.items = items
        self.report = report
        self.skip = skip
        add_vhost_limits(items)
        self._owner = owner
        self.slices = TimeSlice()
        self._skipped: set[tuple[str, int]] = set()

    def _grant_new_vhosts(self) -> None:
        """Give the owner all permissions in new vhosts, except where the document has its own. As RabbitMQ."""
        owner, permissions = self._owner, self.items["permissions"]
        given = {item["vhost"] for item in permissions if item["user"] == owner}
        for name in dict.fromkeys(item["name"] for kind, _, item in self.items_to_import() if kind == "vhosts"):
            if name not in self.broker.vhosts and name not in given:
                permissions.append(all_permissions(owner, name))

    async def check(self) -> None:
        """Check all items.

        Raises:
            BadRequest: with the paths of faulty items, unless they are skipped.
            DeclarationPending: a name is being declared or deleted.
        """
        await self._hash_passwords()
        if self.skip:
            await self._drop_unknown_policy_keys()
        declarations = Declarations(self.broker, dry=True)
        await self._declare(declarations)
        await self._release(declarations)
        if self.report.fault_count and not self.skip:
            raise BadRequest(self.report.faults_text())

    async def _hash_passwords(self) -> None:
        """Replace plaintext passwords by hashes. rabbit: an item with both is an error."""
        for index, item in enumerate(self.items["users"]):
            if not item["password"]:
                continue
            if item["password_hash"] or item[ARGON2ID_KEY]:
                raise BadRequest(f"users[{index}]: both_password_and_password_hash_are_provided")
            made = await self.broker.auth.secrets_for_user(item["name"], item["password"].encode())
            item["password_hash"], item["hashing_algorithm"], item["password"] = made.hash, made.algorithm, ""
            item["scram_sha_256"], item["scram_sha_512"] = made.scram or ("", "")

    async def _drop_unknown_policy_keys(self) -> None:
        """Remove unknown keys from policies and operator policies that have known keys too, so their limits apply."""
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
                await self.slices.yield_if_due()

    def _drop_unknown_keys(self, path: str, value: Item, definition: Item, operator: bool) -> None:
        unknown = unknown_keys(definition, operator)
        if len(unknown) < len(definition):
            for key in unknown:
                self.report.add_fault(f"{path}.{key}", "unknown policy key")
            value["definition"] = {key: each for key, each in definition.items() if key not in unknown}

    def items_to_import(self) -> Iterator[tuple[str, int, Item]]:
        """Yield kind, index in the document, and item of each item that was not skipped."""
        for kind, items in self.items.items():
            for index, item in enumerate(items):
                if (kind, index) not in self._skipped:
                    yield kind, index, item

    def counts(self) -> dict[str, int]:
        """Return the number of items to import, by kind, without zeros."""
        skipped = Counter(kind for kind, _ in self._skipped)
        found = {kind: len(items) - skipped[kind] for kind, items in self.items.items()}
        return {kind: count for kind, count in found.items() if count}

    async def import_all(self) -> None:
        """Import everything or nothing. Raises: BadRequest, DeclarationPending, MetadataError; nothing is imported
        then.
        """
        # The task continues if the client disconnects: committed rows must also be applied in memory.
        await asyncio.shield(asyncio.create_task(self._run()))

    async def free_items(self) -> None:
        """Free the items in slices."""
        for items in self.items.values():
            await free_in_slices(items)

    async def _run(self) -> None:
        try:
            declarations = Declarations(self.broker, dry=False)
            async with self.broker.auth.change_lock:
                await self._declare_and_commit(declarations)
            await self._release(declarations)
        finally:
            await self.free_items()

    async def _release(self, declarations: Declarations) -> None:
        for _ in declarations.transaction.free_drafts():
            await self.slices.yield_if_due()

    async def _declare_and_commit(self, declarations: Declarations) -> None:
        try:
            await self._declare(declarations)
            # No yield from here to the commit.
            gone = declarations.transaction.find_deleted()
            if isinstance(gone, VHost):
                raise BadRequest(f"vhost '{gone.name}': unknown")
            if gone is not None:
                kind = "exchange" if isinstance(gone, Exchange) else "queue"
                raise BadRequest(f"bindings.{kind} '{gone.name}': unknown")
            await wait_done(declarations.transaction.commit)
        except BaseException:
            declarations.transaction.abandon()
            raise
        self.broker.auth.apply_committed(declarations.users, declarations.permissions, declarations.scram)
        for name, limits in declarations.user_limits.items():
            self.broker.user_limits.apply_committed(name, limits)
        for _ in declarations.transaction.make_all():
            await self.slices.yield_if_due()
        for name in declarations.traced:
            if name in self.broker.vhosts:
                await wait_done(partial(trace, self.broker.vhosts[name], self.broker.node_name, True))
        for vhost in declarations.changed:
            walked, done = done_future()
            vhost.policy_walk.when_done(partial(done, None))
            await walked

    async def _declare(self, declarations: Declarations) -> None:
        """Make the calls for all items. The order of the kinds follows their dependencies."""
        calls: dict[str, Callable[[Item], None]] = {
            "users": declarations.user,
            "vhosts": declarations.vhost,
            "permissions": declarations.permission,
            "topic_permissions": declarations.permission,
            "policies": declarations.policy,
            "parameters": declarations.parameter,
            "global_parameters": declarations.global_parameter,
            "exchanges": declarations.exchange,
            "queues": declarations.queue,
            "bindings": declarations.binding,
        }
        for kind, call in calls.items():
            if kind == "permissions" and self._owner and declarations.transaction.dry:
                self._grant_new_vhosts()
            for index, item in enumerate(self.items[kind]):
                try:
                    if (kind, index) not in self._skipped:
                        call(item)
                except REFUSALS as error:
                    refused = _refused(f"{kind}[{index}]", error)
                    if not declarations.transaction.dry:
                        raise BadRequest(str(refused)) from None
                    self._skipped.add((kind, index))
                    self.report.add_fault(*refused)
                await self.slices.yield_if_due()


def _refused(path: str, error: Exception) -> Fault:
    """Return the fault of the item at `path`."""
    if isinstance(error, _UnknownReference):
        return Fault(f"{path}.{error.reason}", "unknown")
    if isinstance(error, ApiError):
        return Fault(path, error.reason)
    if isinstance(error, AmqpError):
        return Fault(path, error.text)
    return Fault(path, str(error))


class _UnknownReference(BadRequest):
    """An item refers to an object that does not exist. The reason is the key with the reference."""


def _require(key: str, exists: bool) -> None:
    if not exists:
        raise _UnknownReference(key)


def _is_default(binding: Item) -> bool:
    """Return whether it is a queue's binding to the default exchange."""
    named = binding["destination_type"] == "queue" and binding["routing_key"] == binding["destination"]
    return named and not binding["source"] and not binding["arguments"]


class Declarations:
    """The calls for the items of one document: declarations within one transaction, and rows of users.

    Existing objects stay as they are, except users, permissions, policies and parameters. Each method raises
    BadRequest, AmqpError, DeclarationPending, ValueError or an error of auth.

    Attributes:
        changed: vhosts whose policies or parameters change.
        traced: names of vhosts with tracing (the firehose).
    """

    def __init__(self, broker: Broker, dry: bool) -> None:
        self.transaction = DeclarationBatch(broker.vhosts, dry)
        self.users: list[UserRow] = []
        self.user_limits: dict[str, dict[str, int]] = {}
        self.permissions: list[PermissionRow | TopicPermissionRow] = []
        self._auth = broker.auth
        self.scram: list[Put | Delete] = []
        self._user_names = {row.name for row in broker.auth.users()}
        self._vhosts: set[str] = set()  # vhosts seen in the document
        self.changed: dict[VHost, None] = {}
        self.traced: list[str] = []
        self._seen: set[tuple[str, ...]] = set()  # policies and parameters seen in the document
        self._globals = broker.global_parameters

    def user(self, item: Item) -> None:
        check_user(item)
        row = user_row(item["name"], tags_of(item["tags"]), item["password_hash"], item["hashing_algorithm"])
        self._user_names.add(row.name)
        self.users.append(row)
        self.transaction.add_change(Put(row))
        texts = item["scram_sha_256"], item["scram_sha_512"]
        scram = self._auth.scram_change(row, texts if any(texts) else None)
        if scram is not None:
            self.scram.append(scram)
            self.transaction.add_change(scram)
        if item["limits"] is not None:
            self.transaction.add_change(Put(UserLimits.row(row.name, item["limits"])))
            self.user_limits[row.name] = dict(item["limits"])

    def vhost(self, item: Item) -> None:
        """Declare a new vhost, or change the default queue type of an existing one. Nothing else of it changes."""
        check_vhost(item)
        name, kind = item["name"], item["default_queue_type"]
        if name in self._vhosts:
            return
        self._vhosts.add(name)
        if item["tracing"]:
            self.traced.append(name)
        existing = self.transaction.find_vhost(name)
        if existing is None:
            vhosts.declare(self.transaction, name, item["description"], tags_of(item["tags"]), kind)
            if item["metadata"].get("protected_from_deletion") in (True, "true"):
                draft = self.transaction.draft(name)
                assert draft is not None  # declared above
                vhosts.protect(draft, True)
        else:
            vhosts.change(self.transaction, existing, existing.description, existing.tags, kind)

    def permission(self, item: Item) -> None:
        _require("user", item["user"] in self._user_names)
        self._draft_of(item)
        check_permission(item)
        row = permission_row(item)
        self.permissions.append(row)
        self.transaction.add_change(Put(row))

    def policy(self, item: Item) -> None:
        vhost = self._draft_once(item, "policy")
        value = {key: item[key] for key in policies.FIELDS}
        policies.declare(vhost, clean_name(item["name"], "a policy"), value)

    def parameter(self, item: Item) -> None:
        component = component_of(item["component"])
        if not component.listed:
            raise BadRequest(f"{component.name}: not a parameter")
        vhost = self._draft_once(item, component.name)
        component.declare(vhost, clean_name(item["name"], "a parameter"), item["value"], ignore_result)

    def _draft_once(self, item: Item, kind: str) -> Namespace:
        vhost = self._draft_of(item)
        self._check_once(kind, item["vhost"], item["name"])
        self.changed[vhost.vhost] = None
        return vhost

    def _check_once(self, *key: str) -> None:
        if key in self._seen:
            raise BadRequest("appears twice in the document")
        self._seen.add(key)

    def global_parameter(self, item: Item) -> None:
        self._check_once("global", item["name"])
        self.transaction.make(
            self._globals.pending_change(clean_name(item["name"], "a parameter"), item["value"]), ignore_result
        )

    def exchange(self, item: Item) -> None:
        vhost = self._draft_of(item)
        if not item["name"] and item["type"] == "direct":
            return  # rabbit: the default exchange is there; GET /api/exchanges lists it
        clean_name(item["name"], "an exchange")
        flags = (item["durable"], item["auto_delete"], item["internal"])
        declaration = ExchangeDeclaration(item["name"], item["type"], *flags, item["arguments"])
        if vhost.find_exchange(declaration.name) is None:
            declare.declare_exchange(vhost, declaration)
        else:
            declare.check_exchange_declaration(vhost.vhost.name, declaration)

    def queue(self, item: Item) -> None:
        vhost = self._draft_of(item)
        clean_name(item["name"], "a queue")
        flags = (item["durable"], False, item["auto_delete"])
        declaration = QueueDeclaration(item["name"], *flags, queue_arguments(item))
        if vhost.find_queue(declaration.name) is None:
            declare.declare_queue(vhost, declaration)
        else:
            declare.check_queue_declaration(vhost.vhost.name, declaration)

    def binding(self, item: Item) -> None:
        vhost = self._draft_of(item)
        if _is_default(item):
            _require("destination", vhost.find_queue(item["destination"]) is not None)
            return  # rabbit: every queue has it; GET /api/bindings lists it
        source = vhost.find_exchange(item["source"]) if item["source"] else None
        _require("source", source is not None)
        end, kind = item["destination"], item["destination_type"]
        _require("destination_type", kind in ("queue", "exchange"))
        destination: Queue | NewQueue | Exchange | None = None
        if kind == "queue":
            destination = vhost.find_queue(end)
        elif end:
            destination = vhost.find_exchange(end)
        _require("destination", destination is not None)
        assert source is not None  # for mypy: checked above
        assert destination is not None
        if len(item["routing_key"].encode()) > 255:
            raise BadRequest("a routing key has at most 255 bytes")
        declare.bind(vhost, source, destination, item["routing_key"], item["arguments"])

    def _draft_of(self, item: Item) -> Namespace:
        """Return the draft of the item's vhost, which exists or is in the document. Raises: BadRequest."""
        draft = self.transaction.draft(item["vhost"])
        if draft is None:
            raise _UnknownReference("vhost")
        return draft


async def import_document(
    broker: Broker, document: Item, name: str, vhost: str | None, skip: bool, owner: str = ""
) -> ImportReport:
    """Import a document. When this returns, everything is committed and in memory. The log has the report too.

    Args:
        name: the origin of the document, for the log.
        vhost: if given, all items belong to this vhost.
        skip: leave out faulty items.
        owner: the user who gets permissions in new vhosts.

    Raises: BadRequest, DeclarationPending, MetadataError; nothing is imported then.
    """
    report = ImportReport()
    work = Import(broker, await read_items(document, report, vhost), report, skip, owner)
    try:
        await work.check()
    except (ApiError, DeclarationPending):
        await work.free_items()
        raise
    counts = work.counts()
    await work.import_all()
    broker.catalogue.events.record("definitions.imported", {"vhost": vhost or "", "name": name, "items": counts})
    summary = ", ".join(f"{count} {kind}" for kind, count in counts.items()) or "nothing"
    log.info("%s: imported %s", name, summary, extra={"vhost": vhost})
    if report.unknown_count:
        log.warning("%s: ignored unknown keys: %s", name, report.unknown_text())
    if report.fault_count:
        log.warning("%s: skipped what cannot be imported: %s", name, report.faults_text())
    return report


def all_permissions(user: str, vhost: str) -> Item:
    """Return all permissions of a user in a vhost, as an item of a document."""
    return {"user": user, "vhost": vhost, "configure": ".*", "write": ".*", "read": ".*"}


def importing_user(call: ApiRequest) -> str:
    """Return the user who imports over HTTP; "" for amqpctl, which has no user."""
    return "" if call.caller.operator else call.caller.user.name


async def post_definitions(call: ApiRequest) -> ApiResponse:
    """Import definitions; 204 when everything is committed.

    With `report` or `skip_unsupported` the answer is 200 with the unknown keys and the skipped items.
    """
    vhost = call.administered_vhost().name if "vhost" in call.params else None
    skip, with_report = call.query_flag("skip_unsupported"), call.query_flag("report")
    report = await import_document(call.broker, call.fields(), "definitions", vhost, skip, importing_user(call))
    return reply(report.fields()) if skip or with_report else NO_CONTENT


COUNT: Final = 200
COUNT_MAX: Final = 10_000

NEW, CHANGED, SAME, KEPT = "new", "changed", "same", "kept"
Values: TypeAlias = dict[str, Any]


class Comparison(NamedTuple):
    """An item of the document and the existing object of its name.

    Attributes:
        before: the values of the existing object, None if there is none.
        after: the values in the document.
        is_applied: an import would change the existing object.
    """

    name: str
    before: Values | None
    after: Values
    is_applied: bool = True


class DefinitionsDiff:
    """The differences between a checked document and the broker.

    Args:
        count: maximum number of changes in `changes`. `changes_count` counts all.
    """

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
            self._permissions[_permission_key(row)] = row

    async def compare_all(self) -> None:
        """Compare all items, in slices. Cost: some us an item."""
        comparers: dict[str, Callable[[Item], Comparison]] = {
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
        for kind, index, item in self._work.items_to_import():
            self._add(kind, f"{kind}[{index}]", item.get("vhost", ""), comparers[kind](item))
            await slices.yield_if_due()

    def _add(self, kind: str, path: str, vhost: str, found: Comparison) -> None:
        before, after = found.before, found.after
        what = NEW if before is None else SAME if before == after else CHANGED if found.is_applied else KEPT
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
        change = {"path": path, "kind": kind, "vhost": vhost, "name": found.name, "what": what}
        self.changes.append({**change, "before": before, "after": after})

    # -- by kind -----------------------------------------------------------------------------------------------------

    def _user(self, item: Item) -> Comparison:
        existing = self._users.get(item["name"])
        row = user_row(item["name"], tags_of(item["tags"]), item["password_hash"], item["hashing_algorithm"])
        limits = self._broker.user_limits.get(row.name)
        after = {"tags": list(row.tags), "limits": limits if item["limits"] is None else item["limits"]}
        after["password"] = _password(row, existing)
        if existing is None:
            return Comparison(row.name, None, after)
        return Comparison(row.name, {"tags": list(existing.tags), "limits": limits, "password": _AS_IT_IS}, after)

    def _vhost(self, item: Item) -> Comparison:
        """Compare a vhost. An import only changes the default queue type of an existing one."""
        existing = self._broker.vhosts.get(item["name"])
        kind: Values = {"default_queue_type": item["default_queue_type"]}
        after = {"description": item["description"], "tags": tags_of(item["tags"]), **kind}
        if existing is None:
            return Comparison(item["name"], None, after)
        before: Values = {"default_queue_type": existing.default_queue_type}
        if before != kind:
            return Comparison(item["name"], before, kind)
        before |= {"description": existing.description, "tags": list(existing.tags)}
        return Comparison(item["name"], before, after, False)

    def _permission(self, item: Item) -> Comparison:
        row = permission_row(item)
        existing = self._permissions.get(_permission_key(row))
        name = f"{row.user} on {row.exchange}" if isinstance(row, TopicPermissionRow) else row.user
        return Comparison(name, None if existing is None else _patterns(existing), _patterns(row))

    def _policy(self, item: Item) -> Comparison:
        vhost = self._broker.vhosts.get(item["vhost"])
        existing = None if vhost is None else vhost.policies.get(item["name"])
        return Comparison(item["name"], None if existing is None else existing.value, _policy_value(item))

    def _parameter(self, item: Item) -> Comparison:
        vhost, component = self._broker.vhosts.get(item["vhost"]), item["component"]
        existing = None if vhost is None else find(vhost, component, item["name"])
        name = f"{component} {item['name']}"
        if component == OPERATOR_POLICY:
            return Comparison(name, None if existing is None else dict(existing.value), _policy_value(item["value"]))
        return Comparison(name, None if existing is None else {"value": existing.value}, {"value": item["value"]})

    def _global(self, item: Item) -> Comparison:
        name, shown = item["name"], self._broker.global_parameters
        if name == CLUSTER_NAME:
            return Comparison(name, {"value": self._broker.cluster_name}, {"value": item["value"]})
        return Comparison(name, {"value": shown.get(name)} if shown.has(name) else None, {"value": item["value"]})

    def _exchange(self, item: Item) -> Comparison:
        vhost = self._broker.vhosts.get(item["vhost"])
        existing = None if vhost is None else vhost.exchanges.get(item["name"])
        after = {key: item[key] for key in ("type", "durable", "auto_delete", "internal", "arguments")}
        if existing is None:
            return Comparison(item["name"], None, after)
        flags = {"durable": existing.durable, "auto_delete": existing.auto_delete, "internal": existing.internal}
        before = {"type": existing.kind, **flags, "arguments": amqp_to_json(existing.arguments)}
        return Comparison(item["name"], before, {**after, "arguments": amqp_to_json(item["arguments"])}, False)

    def _queue(self, item: Item) -> Comparison:
        vhost = self._broker.vhosts.get(item["vhost"])
        existing = None if vhost is None else vhost.queues.get(item["name"])
        default = "classic" if vhost is None else vhost.default_queue_type
        kind = item["type"] or item["arguments"].get("x-queue-type") or default
        after = {"type": kind, "durable": item["durable"], "auto_delete": item["auto_delete"]}
        after["arguments"] = _without_type(item["arguments"])
        if existing is None:
            return Comparison(item["name"], None, after)
        before = {"type": existing.kind, "durable": existing.durable, "auto_delete": existing.auto_delete}
        return Comparison(item["name"], {**before, "arguments": _without_type(existing.arguments)}, after, False)

    def _binding(self, item: Item) -> Comparison:
        source, kind, end = item["source"], item["destination_type"], item["destination"]
        vhost = self._broker.vhosts.get(item["vhost"])
        exchange = None if vhost is None else vhost.exchanges.get(source)
        after = {key: item[key] for key in ("routing_key", "arguments")}
        key = BindingKey(source, kind, end, item["routing_key"], binding_table(item["arguments"]))
        existing = exchange is not None and key in exchange.bindings
        if _is_default(item):
            existing = vhost is not None and end in vhost.queues
        return Comparison(f"{source} to {kind} {end}", after if existing else None, after)


_AS_IT_IS: Final = "as it is"


def _password(row: UserRow, existing: UserRow | None) -> str:
    if existing is not None and row._replace(tags=existing.tags) == existing:
        return _AS_IT_IS
    return "another" if row.password_hash else "none"


def _permission_key(row: PermissionRow | TopicPermissionRow) -> tuple[str, ...]:
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
    """Return the arguments as JSON values, without the queue type, which has a key of its own."""
    return {name: amqp_to_json(value) for name, value in arguments.items() if name != "x-queue-type"}


async def post_difference(call: ApiRequest) -> ApiResponse:
    """Return the changes that an import of this document would make, without making them."""
    vhost = call.administered_vhost().name if "vhost" in call.params else None
    skip = call.query_flag("skip_unsupported")
    count = parse_int("count", call.query.get("count", COUNT), 0, COUNT_MAX)
    report = ImportReport()
    work = Import(call.broker, await read_items(call.fields(), report, vhost), report, skip, importing_user(call))
    try:
        try:
            await work.check()
        except BadRequest:
            if not report.fault_count:
                raise
        found = DefinitionsDiff(call.broker, work, count)
        await found.compare_all()
    finally:
        await work.free_items()
    return await document_reply(
        {
            "possible": skip or not report.fault_count,
            "counts": found.counts,
            "changes": found.changes,
            "changes_left_out": found.changes_count - len(found.changes),
            **report.fields(),
        }
    )


ROUTES: Final = (
    ApiRoute("POST", "api/definitions", Role.ADMINISTRATOR, post_definitions, definitions=True),
    ApiRoute("POST", "api/definitions/{vhost}", Role.ADMINISTRATOR, post_definitions, definitions=True),
    ApiRoute(
        "POST", "api/amqpd/definitions/difference", Role.ADMINISTRATOR, post_difference, definitions=True, quiet=True
    ),
    ApiRoute(
        "POST",
        "api/amqpd/definitions/{vhost}/difference",
        Role.ADMINISTRATOR,
        post_difference,
        definitions=True,
        quiet=True,
    ),
)
