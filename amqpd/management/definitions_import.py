"""Import of definitions: POST /api/definitions, RabbitMQ's document.

The whole document is checked before anything is made, and the first thing wrong is named by its path
(`queues[3].arguments: ...`). What is there already stays as it is, but for users and permissions, which become those of
the document. Then all of it is committed in one transaction, and only then made in memory: all or nothing.

Plaintext passwords are refused: a document is kept and mailed. So is what this version does not have (policies,
parameters, stream queues): silently dropping it would be worse.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from amqpd.auth.backends import AuthError, user_row
from amqpd.auth.passwords import InvalidHash
from amqpd.auth.permissions import InvalidPattern
from amqpd.broker.catalogue.declared import Coming, Name, named_in
from amqpd.broker.catalogue.exchange import Binding, BindingKey
from amqpd.errors import AmqpError
from amqpd.management.call import NO_CONTENT, ApiError, BadRequest, Call, Reply, Role
from amqpd.management.definitions_document import (
    SYSTEM_EXCHANGES,
    Item,
    check_binding,
    check_exchange,
    check_permission,
    check_queue,
    check_user,
    check_vhost,
    permission_row,
    queue_arguments,
    read,
)
from amqpd.management.router import Route
from amqpd.management.slices import Slices, release
from amqpd.management.users import tags_of
from amqpd.protocol.codec import CodecError, encode_table
from amqpd.routing.exchange import RoutingError
from amqpd.storage.metadata.metadata import (
    BindingRow,
    Change,
    Delete,
    PermissionRow,
    Put,
    TopicPermissionRow,
    UserRow,
    VhostRow,
    random_id,
)

if TYPE_CHECKING:
    from amqpd.broker.broker import Broker
    from amqpd.broker.catalogue.exchange import Exchange
    from amqpd.broker.catalogue.vhost import VHost
    from amqpd.broker.queues.queue import Queue


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
        exchanges |= {(v, name): kind for v in vhosts for name, kind in SYSTEM_EXCHANGES.items()}
        queues: set[tuple[str, str]] = set()
        for path, item in self._all("users"):
            self._named(path, partial(check_user, item))
            await self._rest()
        for path, item in self._all("vhosts"):
            self._named(path, partial(check_vhost, item))
            await self._rest()
        for kind in ("permissions", "topic_permissions"):
            for path, item in self._all(kind):
                self._known(path, "user", item["user"] in users)
                self._known(path, "vhost", item["vhost"] in vhosts)
                self._named(path, partial(check_permission, item))
                await self._rest()
        for path, item in self._all("exchanges"):
            self._known(path, "vhost", item["vhost"] in vhosts)
            self._named(path, partial(check_exchange, item))
            exchanges.setdefault((item["vhost"], item["name"]), item["type"])
            await self._rest()
        for path, item in self._all("queues"):
            self._known(path, "vhost", item["vhost"] in vhosts)
            self._named(path, partial(check_queue, item))
            queues.add((item["vhost"], item["name"]))
            await self._rest()
        for path, item in self._all("bindings"):
            matcher = exchanges.get((item["vhost"], item["source"])) if item["source"] else None
            self._known(path, "source", matcher is not None)
            end = (item["vhost"], item["destination"])
            to_queue = item["destination_type"] == "queue"
            self._known(path, "destination_type", to_queue or item["destination_type"] == "exchange")
            there = end in queues or self._has_queue(*end) if to_queue else bool(end[1]) and end in exchanges
            self._known(path, "destination", there)
            self._named(path, partial(check_binding, item, matcher or ""))
            await self._rest()

    def _has_queue(self, vhost: str, name: str) -> bool:
        there = self.broker.vhosts.get(vhost)
        return there is not None and name in there.queues

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
        """All of it or nothing. Raises: BadRequest, OnItsWay, MetadataError; then nothing is made."""
        # What is committed must be made, also when nobody waits for the answer any more.
        await asyncio.shield(asyncio.create_task(self._made()))

    async def _made(self) -> None:
        try:
            await self._make()
        finally:
            await self.drop()

    async def drop(self) -> None:
        """The items go, in slices."""
        for items in self.items.values():
            await release(items)

    async def _make(self) -> None:
        auth, declared = self.broker.auth, self.broker.declared
        async with auth.changing:
            plan = Plan(self.broker)
            submitted = False
            try:
                await self._fill(plan)
                submitted = True
                await self.broker.committed(plan.changes)
            except BaseException:
                declared.free(plan.names)
                if submitted:
                    declared.take_back(plan.undo[::-1], plan.names)
                raise
            auth.keep_all(plan.users, plan.permissions)
            for names, apply in plan.steps:
                declared.free(names)
                apply()
                await self._rest()

    async def _fill(self, plan: Plan) -> None:
        """The calls that clients would make, as far as they have changed nothing yet."""
        for path, item in self._all("users"):
            self._named(path, partial(plan.user, item))
        for path, item in self._all("vhosts"):
            self._named(path, partial(plan.vhost, item))
        for kind in ("permissions", "topic_permissions"):
            for _, item in self._all(kind):
                plan.permission(permission_row(item))
        for path, item in self._all("exchanges"):
            self._known(path, "vhost", plan.knows(item))
            self._named(path, partial(plan.exchange, item))
            await self._rest()
        for path, item in self._all("queues"):
            self._known(path, "vhost", plan.knows(item))
            self._named(path, partial(plan.queue, item))
            await self._rest()
        for path, item in self._all("bindings"):
            # What was there at the check may have been deleted meanwhile.
            self._known(path, "vhost", plan.knows(item))
            self._known(path, "source", plan.durable(item, "exchange", item["source"]) is not None)
            end = plan.durable(item, item["destination_type"], item["destination"])
            self._known(path, "destination", end is not None)
            plan.binding(item)
            await self._rest()
        for name, there in plan.ends.items():
            # Without a rest from here to the commit.
            self._known("bindings", f"{name.kind} '{name.name}'", name.name in there)


class Plan:
    """What a document makes: the changes of one transaction, and the steps to memory once it is committed.

    Names are held from here on, so nobody else declares them meanwhile. steps: (names free then, what is made).
    """

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.changes: list[Change] = []
        self.undo: list[Change] = []
        self.users: list[UserRow] = []
        self.permissions: list[PermissionRow | TopicPermissionRow] = []
        self.steps: list[tuple[list[Name], Callable[[], object]]] = []
        self.names: list[Name] = []
        # Ends of bindings that were there before, and where to look whether they still are.
        self.ends: dict[Name, Container[str]] = {}
        self._vhosts: dict[str, VHost] = {}
        self._kinds: dict[str, str] = {}  # default queue types, by vhost
        self._new: dict[Name, bool] = {}  # whether it is durable

    def _step(self, name: Name, coming: Coming) -> None:
        self._broker.declared.hold(name)
        self.names.append(name)
        self.changes += coming.changes
        self.undo += coming.undo
        self.steps.append(([name], coming.apply))

    def user(self, item: Item) -> None:
        row = user_row(item["name"], tags_of(item["tags"]), item["password_hash"], item["hashing_algorithm"])
        self.users.append(row)
        self.changes.append(Put(row))

    def vhost(self, item: Item) -> None:
        """A new one, or another default queue type for the one there is; the rest of it stays as it is."""
        name, kind = item["name"], item["default_queue_type"]
        if name in self._vhosts:
            return
        vhost = self._broker.vhosts.get(name)
        if vhost is None:
            row = VhostRow(name, random_id(), item["description"], tuple(tags_of(item["tags"])), kind)
            vhost = self._broker.new_vhost(row)
            add = partial(self._broker.add_vhost, vhost)
            self._step(Name(name, "vhost", name), Coming([Put(row)], add, [Delete(row)]))
        elif vhost.default_queue_type != kind:
            row = vhost.row()._replace(default_queue_type=kind)
            self._step(Name(name, "vhost", name), Coming([Put(row)], partial(vhost.become, row), [Put(vhost.row())]))
        self._vhosts[name] = vhost
        self._kinds[name] = kind

    def permission(self, row: PermissionRow | TopicPermissionRow) -> None:
        self.permissions.append(row)
        self.changes.append(Put(row))

    def knows(self, item: Item) -> bool:
        """Whether the item's vhost is there, or comes."""
        return item["vhost"] in self._vhosts or item["vhost"] in self._broker.vhosts

    def _of(self, item: Item) -> VHost:
        return self._vhosts.get(item["vhost"]) or self._broker.vhosts[item["vhost"]]

    def exchange(self, item: Item) -> None:
        """Raises: AmqpError, OnItsWay."""
        vhost, name = self._of(item), Name(item["vhost"], "exchange", item["name"])
        if name.name in vhost.exchanges or name in self._new:
            return
        flags = (item["durable"], item["auto_delete"], item["internal"])
        found = vhost.declare_exchange(name.name, item["type"], *flags, item["arguments"])
        assert isinstance(found, Coming)  # it is not there
        self._step(name, found)
        self._new[name] = item["durable"]

    def queue(self, item: Item) -> None:
        """Raises: AmqpError, OnItsWay."""
        vhost, name = self._of(item), Name(item["vhost"], "queue", item["name"])
        if name.name in vhost.queues or name in self._new:
            return
        arguments = queue_arguments(item)
        kind = self._kinds.get(vhost.name, vhost.default_queue_type)
        if kind != vhost.default_queue_type and item["durable"] and not item["auto_delete"]:
            arguments.setdefault("x-queue-type", kind)  # as it will be when the queue is there
        found = vhost.declare_queue(name.name, item["durable"], False, item["auto_delete"], arguments, None)
        assert isinstance(found, Coming)  # it is not there
        self._step(name, found)
        self._new[name] = item["durable"]

    def durable(self, item: Item, kind: str, name: str) -> bool | None:
        """Whether that end of a binding is durable; None when there is none."""
        new = self._new.get(Name(item["vhost"], kind, name))
        if new is not None:
            return new
        vhost = self._of(item)
        there = vhost.queues.get(name) if kind == "queue" else vhost.exchanges.get(name)
        return None if there is None else there.durable

    def binding(self, item: Item) -> None:
        """Raises: OnItsWay."""
        vhost, arguments = self._of(item), encode_table(item["arguments"])
        ends = (item["source"], item["destination"], item["destination_type"])
        row = BindingRow(vhost.name, *ends, item["routing_key"], arguments)
        source = vhost.exchanges.get(row.source)
        key = BindingKey(row.source, row.destination_type, row.destination, row.routing_key, arguments)
        (name,) = named_in([Put(row)])
        if name in self._new or (source is not None and key in source.bindings):
            return
        durable = self.durable(item, "exchange", ends[0]) and self.durable(item, ends[2], ends[1])
        make = partial(self._bind, vhost, item)
        self._step(name, Coming([Put(row)], make, [Delete(row)]) if durable else Coming([], make, []))
        self._new[name] = bool(durable)
        for end in (Name(vhost.name, "exchange", row.source), Name(vhost.name, row.destination_type, row.destination)):
            if end not in self._new:
                self.ends[end] = vhost.queues if end.kind == "queue" else vhost.exchanges

    def _bind(self, vhost: VHost, item: Item) -> None:
        """Whoever has deleted an end since the commit has removed the row too."""
        source = vhost.exchanges.get(item["source"])
        ends: dict[str, Any] = vhost.queues if item["destination_type"] == "queue" else vhost.exchanges
        end: Queue | Exchange | None = ends.get(item["destination"])
        if source is not None and end is not None:
            vhost.add_binding(Binding(source, end, item["routing_key"], item["arguments"]))


async def post_definitions(call: Call) -> Reply:
    """204 when everything is made and committed."""
    vhost = call.vhost().name if "vhost" in call.params else None
    work = Import(call, await read(call.fields(), vhost))
    try:
        await work.check()
    except ApiError:
        await work.drop()
        raise
    await work.make()
    return NO_CONTENT


ROUTES: Final = (
    Route("POST", "api/definitions", Role.ADMINISTRATOR, post_definitions, definitions=True),
    Route("POST", "api/definitions/{vhost}", Role.ADMINISTRATOR, post_definitions, definitions=True),
)
