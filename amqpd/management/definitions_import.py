"""Import of definitions: POST /api/definitions, RabbitMQ's document.

The whole document is checked before anything is made, and the first thing wrong is named by its path
(`queues[3].arguments: ...`): a dry run of the calls that clients would make, on a draft of the vhosts. Then the same
calls are made in one transaction, which is committed and only then made in memory: all or nothing. What is there
already stays as it is, but for users, permissions, policies and parameters, which become those of the document.
RabbitMQ keeps operator policies among the parameters, and so does a document.

Plaintext passwords are refused: a document is kept and mailed. So is what this version does not have (parameters of
components that are not there): silently dropping it would be worse.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from amqpd.auth.backends import AuthError, user_row
from amqpd.auth.passwords import InvalidHash
from amqpd.auth.permissions import InvalidPattern
from amqpd.broker.catalogue import bindings, exchanges, policies, queues, vhosts
from amqpd.broker.catalogue.declaration import ExchangeDeclaration, NewQueue, QueueDeclaration
from amqpd.broker.catalogue.declared import OnItsWay, finished, promise, unheard
from amqpd.broker.catalogue.exchange import Exchange
from amqpd.broker.catalogue.limits import InvalidLimits, UserLimits
from amqpd.broker.catalogue.parameters import InvalidParameter, component_of
from amqpd.broker.catalogue.policy_keys import InvalidPolicy
from amqpd.broker.catalogue.transaction import Transaction
from amqpd.broker.catalogue.vhost import Names, VHost
from amqpd.broker.publishing.firehose import trace
from amqpd.broker.queues.queue import Queue
from amqpd.errors import AmqpError
from amqpd.management.call import NO_CONTENT, ApiError, BadRequest, Call, Reply, Role, clean_name
from amqpd.management.definitions_document import (
    Item,
    check_permission,
    check_user,
    check_vhost,
    permission_row,
    queue_arguments,
    read,
    with_limits_of_vhosts,
)
from amqpd.management.router import Route
from amqpd.management.slices import Slices, release
from amqpd.management.users import tags_of
from amqpd.protocol.codec import CodecError
from amqpd.routing.errors import RoutingError
from amqpd.storage.metadata.metadata import PermissionRow, TopicPermissionRow, UserRow

if TYPE_CHECKING:
    from amqpd.broker.broker import Broker

# What the calls raise when an item cannot be.
REFUSALS: Final = (
    ApiError, AmqpError, AuthError, InvalidHash, InvalidPattern, CodecError, RoutingError, UnicodeEncodeError,
    InvalidPolicy, InvalidParameter, InvalidLimits,
)  # fmt: skip


class Import:
    """One document: a dry run by `check`, then all of it in one transaction by `make`."""

    def __init__(self, call: Call, items: dict[str, list[Item]]) -> None:
        self.broker = call.broker
        self.items = items
        with_limits_of_vhosts(items)
        self.slices = Slices()

    async def check(self) -> None:
        """Raises: BadRequest with the path of the first item that could not be made; OnItsWay."""
        await self._declare(Declarations(self.broker, dry=True))

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
            async with self.broker.auth.changing:
                await self._make(Declarations(self.broker, dry=False))
        finally:
            await self.drop()

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
            await finished(given.transaction.commit)
        except BaseException:
            given.transaction.abandon()
            raise
        self.broker.auth.keep_all(given.users, given.permissions)
        for name, limits in given.user_limits.items():
            self.broker.user_limits.keep(name, limits)
        for _ in given.transaction.make_all():
            if self.slices.due:
                await self.slices.rest()
        for name in given.traced:
            if name in self.broker.vhosts:
                await finished(partial(trace, self.broker.vhosts[name], self.broker.node_name, True))
        for vhost in given.changed:
            obeyed, done = promise()
            vhost.policy_walk.when_done(partial(done, None))
            await obeyed

    async def _declare(self, given: Declarations) -> None:
        """The calls that clients would make, in the order in which one thing needs another."""
        declare: dict[str, Callable[[Item], None]] = {
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
        for kind, call in declare.items():
            for index, item in enumerate(self.items[kind]):
                try:
                    call(item)
                except REFUSALS as error:
                    raise _refused(f"{kind}[{index}]", error) from None
                if self.slices.due:
                    await self.slices.rest()


def _refused(path: str, error: Exception) -> BadRequest:
    """What is wrong with the item at `path`."""
    if isinstance(error, _Unknown):
        return BadRequest(f"{path}.{error.reason}")
    if isinstance(error, ApiError):
        return BadRequest(f"{path}: {error.reason}")
    if isinstance(error, AmqpError):
        return BadRequest(f"{path}: {error.text}")
    return BadRequest(f"{path}: {error}")


class _Unknown(BadRequest):
    """An item names something that is not there."""


def _known(key: str, known: bool) -> None:
    if not known:
        raise _Unknown(f"{key}: unknown")


class Declarations:
    """What becomes of a document's items: calls of the catalogue within one transaction, and rows of users.

    What is there already stays as it is, but for users, permissions, policies and parameters. Every call raises
    BadRequest, AmqpError, OnItsWay, ValueError or what auth raises. changed: vhosts with other policies or parameters.
    traced: names of vhosts with a firehose.
    """

    def __init__(self, broker: Broker, dry: bool) -> None:
        self.transaction = Transaction(broker.vhosts, dry)
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
        component.declare(vhost, clean_name(item["name"], "a parameter"), item["value"], unheard)

    def _once(self, item: Item, kind: str) -> Names:
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
        self.transaction.make(self._globals.coming(clean_name(item["name"], "a parameter"), item["value"]), unheard)

    def exchange(self, item: Item) -> None:
        vhost = self._of(item)
        clean_name(item["name"], "an exchange")
        flags = (item["durable"], item["auto_delete"], item["internal"])
        asked = ExchangeDeclaration(item["name"], item["type"], *flags, item["arguments"])
        if vhost.find_exchange(asked.name) is None:
            exchanges.declare(vhost, asked)
        else:
            exchanges.check(vhost.vhost.name, asked)

    def queue(self, item: Item) -> None:
        vhost = self._of(item)
        clean_name(item["name"], "a queue")
        flags = (item["durable"], False, item["auto_delete"])
        asked = QueueDeclaration(item["name"], *flags, queue_arguments(item))
        if vhost.find_queue(asked.name) is None:
            queues.declare(vhost, asked)
        else:
            queues.check(vhost.vhost.name, asked)

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
        bindings.bind(vhost, source, destination, item["routing_key"], item["arguments"])

    def _of(self, item: Item) -> Names:
        """The item's vhost, which is there or comes with the document."""
        draft = self.transaction.draft(item["vhost"])
        if draft is None:
            raise _Unknown("vhost: unknown")
        return draft


async def post_definitions(call: Call) -> Reply:
    """204 when everything is made and committed."""
    vhost = call.vhost().name if "vhost" in call.params else None
    work = Import(call, await read(call.fields(), vhost))
    try:
        await work.check()
    except (ApiError, OnItsWay):
        await work.drop()
        raise
    counts = {kind: len(items) for kind, items in work.items.items() if items}
    await work.make()
    about = {"vhost": vhost or "", "name": "definitions", "items": counts}
    call.broker.catalogue.events.record("definitions.imported", about)
    return NO_CONTENT


ROUTES: Final = (
    Route("POST", "api/definitions", Role.ADMINISTRATOR, post_definitions, definitions=True),
    Route("POST", "api/definitions/{vhost}", Role.ADMINISTRATOR, post_definitions, definitions=True),
)
