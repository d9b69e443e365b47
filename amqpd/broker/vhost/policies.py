"""Commands that set and clear policies and operator policies.

`declare` checks the policy and commits its row. Then it changes the vhost's policy table, and answers when all queues
and exchanges follow it. `clear` works the same way. A failed commit changes nothing.

Queues and exchanges are visited in slices (`SlicedWalk`), so the event loop is not blocked. A visit uses the table of
that moment, and so does a new queue. Two concurrent changes therefore end in the state of the last one.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from amqpd.broker.vhost.pending import Done, ObjectName, PendingDeclaration, ignore_result
from amqpd.broker.vhost.policy_table import InvalidPolicy, Policy, check, policy_of
from amqpd.broker.vhost.vhost import Namespace, VHost
from amqpd.storage.metadata.rows import Delete, PolicyRow, Put

FIELDS: Final = ("pattern", "definition", "priority", "apply-to")

log = logging.getLogger(__name__)


def declare(
    names: Namespace, name: str, value: Mapping[str, Any], operator: bool = False, done: Done = ignore_result
) -> bool:
    """Set a policy, replacing one of the same name. Return whether it is new.

    Args:
        value: `pattern`, `definition`, `priority` and `apply-to` (default `all`), as decoded JSON.
        done: called with None when all queues and exchanges follow the policy.

    Raises: InvalidPolicy, DeclarationPending.
    """
    vhost = names.vhost
    policy = checked(vhost.name, name, value, operator)
    if vhost.catalogue.storage.replicates:
        from amqpd.broker.vhost.cluster_checks import policy_faults

        if faults := policy_faults(value["definition"]):
            raise InvalidPolicy(faults)
    row = policy.row
    before = vhost.policies.get(name, operator)
    undo = Delete(row) if before is None else Put(before.row)
    names.make(
        PendingDeclaration(_name(row), Put(row), undo, partial(_put, vhost, policy)),
        partial(_done_after_walk, vhost, done),
    )
    return before is None


def checked(vhost: str, name: str, value: Mapping[str, Any], operator: bool = False) -> Policy:
    """Check a policy and return it. `value` is as in `declare`. Raises: InvalidPolicy."""
    check(name, value, operator)
    return policy_of(
        PolicyRow(
            vhost,
            name,
            value["pattern"],
            value.get("apply-to", "all"),
            json.dumps(value["definition"], sort_keys=True),
            int(value["priority"]),
            operator,
        )
    )


def clear(vhost: VHost, policy: Policy, done: Done = ignore_result) -> None:
    """Clear a policy. Raises: DeclarationPending.

    Args:
        done: called with None when no queue or exchange follows the policy any more.
    """
    row = policy.row
    change = PendingDeclaration(_name(row), Delete(row), Put(row), partial(_remove, vhost, policy))
    vhost.make(change, partial(_done_after_walk, vhost, done))


def _name(row: PolicyRow) -> ObjectName:
    return ObjectName(row.vhost, _kind(row), row.name)


def _kind(row: PolicyRow) -> str:
    return "operator policy" if row.operator else "policy"


def _put(vhost: VHost, policy: Policy) -> None:
    row = policy.row
    vhost.policies.put(policy)
    vhost.apply_policies_to_all()
    events = vhost.catalogue.events
    if events.has_listeners:
        value = policy.value
        if row.operator:
            events.emit(
                "parameter.set", {"vhost": vhost.name, "component": "operator_policy", "name": row.name, "value": value}
            )
        # rabbit: the event of an operator policy is also named policy.set
        events.emit("policy.set", {"vhost": vhost.name, "name": row.name, **value})
    log.info(
        "%s '%s' was set for %s matching '%s' in vhost '%s': %s",
        _kind(row),
        row.name,
        "queues and exchanges" if row.apply_to == "all" else row.apply_to.replace("_", " "),
        row.pattern,
        vhost.name,
        row.definition,
        extra={"vhost": vhost.name},
    )


def _remove(vhost: VHost, policy: Policy) -> None:
    row = policy.row
    vhost.policies.remove(row.name, row.operator)
    vhost.apply_policies_to_all()
    about = {"vhost": vhost.name, "name": row.name}
    if row.operator:
        vhost.catalogue.events.emit("parameter.cleared", {**about, "component": "operator_policy"})
    vhost.catalogue.events.emit("operator.policy.cleared" if row.operator else "policy.cleared", about)
    log.info("%s '%s' was cleared in vhost '%s'", _kind(row), row.name, vhost.name, extra={"vhost": vhost.name})


def _done_after_walk(vhost: VHost, done: Done, error: BaseException | None) -> None:
    if error is not None:
        done(error)
    else:
        vhost.policy_walk.when_done(partial(done, None))
