"""Limits: connections and queues of a vhost; connections, channels and byte rates of a user.

A limit is a whole number; a negative one means no limit, 0 allows none. A limit applies to new connections, channels
and queues; existing ones above it stay. The byte rates are for Kafka's clients (kafka_server/quotas.py), and never 0.

A vhost's limits are its runtime parameter `limits` of component `vhost-limits`, as in RabbitMQ. A user's limits are a
row that is deleted with the user.

`ConnectionLimiter` counts. A connection counts from connection.open to its close, a channel until either side closes
it. A client that has not sent connection.open does not count. Connections are a set, so that none is counted or
removed twice.

RabbitMQ: texts, codes, and the order of checks (vhost before user).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from amqpd.broker.vhost.pending import Done, ObjectName, PendingDeclaration, ignore_result
from amqpd.broker.vhost.policy_table import term
from amqpd.errors import NotAllowed
from amqpd.storage.metadata.rows import Delete, ParameterRow, Put, UserLimitsRow

if TYPE_CHECKING:
    from amqpd.broker.vhost.vhost import Namespace, VHost, VhostServices

log = logging.getLogger(__name__)

CONNECTIONS: Final = "max-connections"
CHANNELS: Final = "max-channels"
QUEUES: Final = "max-queues"
# Quotas of Kafka's clients, with Kafka's names: bytes a second.
PRODUCER_BYTE_RATE: Final = "producer_byte_rate"
CONSUMER_BYTE_RATE: Final = "consumer_byte_rate"

OF_VHOSTS: Final = (CONNECTIONS, QUEUES)
BYTE_RATES: Final = (PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE)
OF_USERS: Final = (CONNECTIONS, CHANNELS, *BYTE_RATES)

COMPONENT: Final = "vhost-limits"
PARAMETER: Final = "limits"


class Limits:
    """An immutable set of limits. `value` keeps the order in which they were set."""

    def __init__(self, value: Mapping[str, int]) -> None:
        self.value = dict(value)

    def allow(self, name: str, count: int) -> bool:
        """Return whether one more is allowed if there are `count` already."""
        limit = self.value.get(name, -1)
        return limit < 0 or count < limit


NO_LIMITS: Final = Limits({})
"""No limit is set."""


class InvalidLimits(ValueError):
    """Raised with RabbitMQ's text."""


def checked(value: object, known: Iterable[str], what: str) -> dict[str, int]:
    """Return the limits in a JSON value. rabbit: an empty list is an empty object. Raises: InvalidLimits.

    Args:
        known: names that are allowed.
        what: name of the value for error texts.
    """
    if value == []:
        return {}
    if not isinstance(value, Mapping):
        raise InvalidLimits(f"{what} not a list {term(value)}")
    for name in known:
        given = value.get(name, 0)
        if not isinstance(given, int) or isinstance(given, bool):
            raise InvalidLimits(f"{name} should be a number, actually was {term(given)}")
        if name in BYTE_RATES and value.get(name) == 0:
            raise InvalidLimits(f"{name} should be greater than 0, or negative for no limit")
    unknown = [f'{{<<"{name}">>,{term(given)}}}' for name, given in value.items() if name not in known]
    if unknown:
        raise InvalidLimits(f"Unrecognised terms [{','.join(unknown)}] in {what}")
    return dict(value)


# -- of vhosts --------------------------------------------------------------------------------------------------------


def values(vhost: VHost) -> dict[str, Any]:
    """Return the limits as parameters: {} or one parameter named `limits`."""
    return {} if vhost.limits is NO_LIMITS else {PARAMETER: vhost.limits.value}


def declare(names: Namespace, name: str, value: object, done: Done = ignore_result) -> bool:
    """Set a vhost's limits. Return whether it had none. Raises: InvalidLimits, DeclarationPending."""
    if name != PARAMETER:
        raise InvalidLimits(f"Validation failed\n\nlimits of a vhost are the parameter {PARAMETER}, not {name}\n")
    try:
        limits = Limits(checked(value, OF_VHOSTS, PARAMETER))
    except InvalidLimits as error:
        raise InvalidLimits(f"Validation failed\n\n{error}\n") from None
    vhost = names.vhost
    row = ParameterRow(vhost.name, COMPONENT, PARAMETER, json.dumps(limits.value))
    before = vhost.limits
    undo = Delete(row) if before is NO_LIMITS else Put(row._replace(value=json.dumps(before.value)))
    names.make(PendingDeclaration(_name(vhost), Put(row), undo, partial(_put, vhost, limits), limits), done)
    return before is NO_LIMITS


def clear(vhost: VHost, _name_of_it: str, done: Done = ignore_result) -> None:
    """Remove a vhost's limits. They apply until the commit. Raises: DeclarationPending."""
    row = ParameterRow(vhost.name, COMPONENT, PARAMETER, json.dumps(vhost.limits.value))
    vhost.make(PendingDeclaration(_name(vhost), Delete(row), Put(row), partial(_put, vhost, NO_LIMITS)), done)


def load(vhost: VHost, row: ParameterRow) -> None:
    """Load a vhost's limits at a start. Ignore an invalid row with an error in the log."""
    try:
        vhost.limits = Limits(checked(json.loads(row.value), OF_VHOSTS, PARAMETER))
    except ValueError as error:  # another version, or another program, wrote it
        log.error("limits of vhost '%s' are invalid and ignored: %s", row.vhost, error)


def _name(vhost: VHost) -> ObjectName:
    return ObjectName(vhost.name, COMPONENT, PARAMETER)


def _put(vhost: VHost, limits: Limits) -> None:
    vhost.limits = limits
    events = vhost.catalogue.events
    about = {"vhost": vhost.name, "component": COMPONENT, "name": PARAMETER}
    if limits is NO_LIMITS:
        events.emit("parameter.cleared", about)
        events.emit("vhost.limits.cleared", {"name": PARAMETER}, recorded=False)
        events.record("vhost.limits.cleared", {"vhost": vhost.name})
    else:
        events.emit("parameter.set", {**about, "value": limits.value})
        events.emit("vhost.limits.set", {"name": PARAMETER, **limits.value}, recorded=False)
        events.record("vhost.limits.set", {"vhost": vhost.name, **limits.value})
    log.info("limits of vhost '%s' are now %s", vhost.name, json.dumps(limits.value), extra={"vhost": vhost.name})


# -- of users ---------------------------------------------------------------------------------------------------------


class UserLimits:
    """Limits of all users of one broker.

    A caller that sets limits holds `InternalBackend.change_lock`, so that the user is not deleted meanwhile.
    """

    def __init__(self, catalogue: VhostServices) -> None:
        self._catalogue = catalogue
        self._by_user: dict[str, Limits] = {}

    def load(self, rows: Iterable[UserLimitsRow]) -> None:
        for row in rows:
            try:
                value = checked(json.loads(row.limits), OF_USERS, "user-limits")
            except ValueError as error:  # another version, or another program, wrote it
                log.error("limits of user '%s' are invalid and ignored: %s", row.user, error)
            else:
                self._set(row.user, value)

    def all(self) -> list[tuple[str, dict[str, int]]]:
        """Return the users with limits, sorted by name."""
        return [(user, limits.value) for user, limits in sorted(self._by_user.items())]

    def get(self, user: str) -> dict[str, int]:
        """Return a user's limits; {} if none is set."""
        return self.of(user).value

    def of(self, user: str) -> Limits:
        return self._by_user.get(user, NO_LIMITS)

    @staticmethod
    def row(user: str, value: object) -> UserLimitsRow:
        """Return the row for a batch. The caller calls `apply_committed` after its commit. Raises: InvalidLimits."""
        return UserLimitsRow(user, json.dumps(dict(sorted(checked(value, OF_USERS, "user-limits").items()))))

    def declare(self, user: str, value: object, done: Done = ignore_result) -> None:
        """Replace a user's limits. Raises: InvalidLimits, DeclarationPending."""
        row = self.row(user, value)
        limits: dict[str, int] = json.loads(row.limits)
        before = UserLimitsRow(user, json.dumps(self.get(user)))
        change, undo = (Put(each) if each.limits != "{}" else Delete(each) for each in (row, before))
        coming = PendingDeclaration(
            ObjectName("", "user limits", user), change, undo, partial(self.apply_committed, user, limits)
        )
        self._catalogue.declared.commit_and_apply(coming, done)

    def apply_committed(self, user: str, value: Mapping[str, int]) -> None:
        """Apply committed limits."""
        about = {"name": PARAMETER, "username": user}
        self._catalogue.events.emit(f"user.limits.{'set' if value else 'cleared'}", {**about, **value})
        self._set(user, value)
        log.info("limits of user '%s' are now %s", user, json.dumps(value), extra={"user": user})

    def apply_replicated(self, change: Put | Delete) -> None:
        """Apply a row that another node of the cluster committed. Ignore rows of other tables and unchanged ones."""
        row = change.row
        if not isinstance(row, UserLimitsRow):
            return
        value = {} if isinstance(change, Delete) else checked(json.loads(row.limits), OF_USERS, "user-limits")
        if value != self.get(row.user):
            self.apply_committed(row.user, value)

    def _set(self, user: str, value: Mapping[str, int]) -> None:
        if value:
            self._by_user[user] = Limits(value)
        else:
            self.forget(user)

    def forget(self, user: str) -> None:
        self._by_user.pop(user, None)


class ConnectionLimiter:
    """Counts of connections and channels of one broker. Cost: two look-ups per connection or channel."""

    def __init__(self, limits: UserLimits) -> None:
        self._limits = limits
        self._by_user: dict[str, set[object]] = {}
        self._channels: dict[str, int] = {}

    def check(self, user: str, vhost: VHost, method: int = 0) -> None:
        """Check the limits for one more connection. Raises: NotAllowed.

        Args:
            method: the AMQP method that opens it, for the error.
        """
        if not vhost.limits.allow(CONNECTIONS, len(vhost.connected)):
            limit = vhost.limits.value[CONNECTIONS]
            raise NotAllowed(
                f"access to vhost '{vhost.name}' refused for user '{user}': connection limit ({limit}) is reached",
                method,
            )
        limits = self._limits.of(user)
        if not limits.allow(CONNECTIONS, len(self._by_user.get(user, ()))):
            raise NotAllowed(
                f"connection refused for user '{user}': user connection limit ({limits.value[CONNECTIONS]}) is reached",
                method,
            )

    def on_opened(self, session: object, user: str, vhost: VHost) -> None:
        vhost.connected.add(session)
        self._by_user.setdefault(user, set()).add(session)

    def on_closed(self, session: object, user: str, vhost: VHost) -> None:
        """Remove a closed connection. A second call has no effect."""
        vhost.connected.discard(session)
        sessions = self._by_user.get(user)
        if sessions is not None:
            sessions.discard(session)
            if not sessions:
                del self._by_user[user]

    def open_channel(self, user: str) -> None:
        """Count one more channel. Raises: NotAllowed; then nothing is counted."""
        count = self._channels.get(user, 0)
        limits = self._limits.of(user)
        if not limits.allow(CHANNELS, count):
            raise NotAllowed(
                f"number of channels opened for user '{user}' has reached the maximum allowed user limit of "
                f"({limits.value[CHANNELS]})"
            )
        self._channels[user] = count + 1

    def close_channel(self, user: str) -> None:
        """Remove a channel that was counted. Call this once per channel."""
        count = self._channels[user] - 1
        if count > 0:
            self._channels[user] = count
        else:
            del self._channels[user]
