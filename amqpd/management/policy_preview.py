"""What a policy would do before it is set, or cleared: which queues and exchanges its pattern matches, which of them
would obey it, what changes for them, and how many messages that costs. Nothing is set.

The vhost's policies are put beside the one that is asked for in a table of their own, and every queue and exchange is
asked what it would obey then (`policy_table.py`). What matches and yet does not obey is told with its reason: another
policy comes first (`outranked`: its priority is higher, or the same and its name is before), or the queue's kind cannot
follow all of it (`unsupported`). What obeys the policy of this name today and would not any more is `released`.

RabbitMQ has no such route.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from amqpd.broker.vhost import policies
from amqpd.broker.vhost.policy_keys import InvalidPolicy
from amqpd.broker.vhost.policy_table import EXCHANGE, Effective, Policy, PolicyTable
from amqpd.broker.queue.log_opener import opened
from amqpd.broker.queue.queue import Queue
from amqpd.management.request import BadRequest, Call, NotThere, Reply, Role, clean_name, number
from amqpd.management.message_counts import unacked_apart
from amqpd.management.listing import document
from amqpd.management.router import Route
from amqpd.management.time_slice import Slices

if TYPE_CHECKING:
    from amqpd.broker.vhost.exchange import Exchange
    from amqpd.broker.vhost.vhost import VHost

COUNT: Final = 100
COUNT_MAX: Final = 1000

APPLIED, OUTRANKED, UNSUPPORTED, RELEASED = "applied", "outranked", "unsupported", "released"


class Preview:
    """What is found, thing by thing. count: how many are shown; policy: what is to be set, None: it is cleared."""

    def __init__(self, name: str, operator: bool, policy: Policy | None, count: int) -> None:
        self.name = name
        self.operator = operator
        self.policy = policy
        self.count = count
        self.matched = {"queues": 0, "exchanges": 0}
        self.whys = dict.fromkeys((APPLIED, OUTRANKED, UNSUPPORTED, RELEASED), 0)
        self.changed = {"queues": 0, "exchanges": 0}
        self.over_length = 0
        self.shorter_ttl = 0
        self.expiring = 0
        self.items: list[dict[str, Any]] = []
        self.found_count = 0

    async def look(self, vhost: VHost, slices: Slices) -> None:
        """At each queue and exchange there is. Cost: 1 us a policy and thing."""
        table = await _table(vhost, self.name, self.operator, self.policy, slices)
        for thing in vhost.things():
            if not thing.deleted:
                await self._look_at(vhost, table, thing)
            if slices.due:
                await slices.rest()

    async def _look_at(self, vhost: VHost, table: PolicyTable, thing: Queue | Exchange) -> None:
        is_queue = isinstance(thing, Queue)
        kind = thing.kind if is_queue else EXCHANGE
        before, after = vhost.policies.obeyed_by(thing), table.effective(kind, thing.name)
        why = self._why(kind, thing.name, before, after)
        if not why:
            return
        things = "queues" if is_queue else "exchanges"
        self.matched[things] += why != RELEASED
        self.whys[why] += 1
        item: dict[str, Any] = {"kind": "queue" if is_queue else "exchange", "name": thing.name, "type": thing.kind}
        item |= {"why": why, "holds": after.operator_policy if self.operator else after.policy}
        item |= {"before": dict(before.definition), "after": dict(after.definition)}
        if isinstance(thing, Queue):
            await opened(thing)
            item |= {"messages": thing.ready_count + unacked_apart(thing), "consumers": len(thing.consumers)}
        if before.definition != after.definition:
            self.changed[things] += 1
            if isinstance(thing, Queue):
                item |= self._costs(thing, before, after)
        self.found_count += 1
        if len(self.items) < self.count:
            self.items.append(item)

    def _why(self, kind: str, name: str, before: Effective, after: Effective) -> str:
        """Empty: the policy has nothing to do with it."""
        was, holds = (
            (before.operator_policy, after.operator_policy) if self.operator else (before.policy, after.policy)
        )
        if self.policy is not None:
            if self.policy.matches(kind, name):
                return APPLIED if holds == self.name else OUTRANKED
            if kind != EXCHANGE and self.policy.pattern.matches(name) and self._is_for_queues():
                return UNSUPPORTED
        return RELEASED if was == self.name else ""

    def _is_for_queues(self) -> bool:
        return self.policy is not None and self.policy.row.apply_to in ("queues", "all")

    def _costs(self, queue: Queue, before: Effective, after: Effective) -> dict[str, Any]:
        """What it loses by other rules: messages over a length, which go at once; those whose time to live gets
        shorter, which may; and the queue itself, where nobody uses it."""
        old, new = before.rules(queue.kind, queue.arguments), after.rules(queue.kind, queue.arguments)
        over: int = 0
        if new.drops_head:
            over = max(0, queue.ready_count - new.length_max) if new.length_max >= 0 else 0
            if 0 <= new.length_bytes_max < queue.ready_bytes:
                # As many as the bytes that are too many are on an average.
                many = queue.ready_count * (queue.ready_bytes - new.length_bytes_max)
                over = max(over, -(-many // queue.ready_bytes))
        sooner = queue.ready_count if new.ttl_ms >= 0 and (old.ttl_ms < 0 or new.ttl_ms < old.ttl_ms) else 0
        unused = not queue.consumers and new.expires_ms >= 0 and (old.expires_ms < 0 or new.expires_ms < old.expires_ms)
        self.over_length += over
        self.shorter_ttl += sooner
        self.expiring += unused
        return {"over_length": over, "shorter_ttl": sooner, "expires_unused": unused}

    def told(self) -> dict[str, Any]:
        return {
            "matched": self.matched,
            **self.whys,
            "changed": self.changed,
            "messages_over_length": self.over_length,
            "messages_with_shorter_ttl": self.shorter_ttl,
            "unused_queues_that_expire": self.expiring,
            "items": self.items,
            "items_left_out": self.found_count - len(self.items),
        }


async def _table(vhost: VHost, name: str, operator: bool, policy: Policy | None, slices: Slices) -> PolicyTable:
    """The vhost's policies as they would be."""
    there = [each for kind in (False, True) for each in vhost.policies.all(kind)]
    kept = [each for each in there if (each.row.name, each.row.operator) != (name, operator)]
    table = PolicyTable()
    for each in (*kept, *(() if policy is None else (policy,))):
        table.put(each)
        if slices.due:
            await slices.rest()
    return table


async def preview(operator: bool, call: Call) -> Reply:
    """What the policy of the body would do: what it matches, what changes there, and how many messages go."""
    vhost = call.vhost()
    fields = call.fields()
    name = clean_name(call.text("name"), "a policy")
    count = number("count", fields.get("count", COUNT), 0, COUNT_MAX)
    policy: Policy | None = None
    if call.flag("clear"):
        if vhost.policies.get(name, operator) is None:
            raise NotThere(f"no policy '{name}' in vhost '{vhost.name}'")
    else:
        value: dict[str, Any] = {"priority": 0, **{key: fields[key] for key in policies.FIELDS if key in fields}}
        try:
            policy = policies.checked(vhost.name, name, value, operator)
        except InvalidPolicy as error:
            raise BadRequest(str(error)) from None
    found = Preview(name, operator, policy, count)
    await found.look(vhost, Slices())
    return await document(found.told())


ROUTES: Final = (
    Route("POST", "api/amqpd/policies/{vhost}/preview", Role.POLICYMAKER, partial(preview, False), quiet=True),
    Route(
        "POST", "api/amqpd/operator-policies/{vhost}/preview", Role.ADMINISTRATOR, partial(preview, True), quiet=True
    ),
)
