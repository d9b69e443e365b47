"""Limits: how many connections and queues a vhost may have, how many connections and channels a user.

Under each name a whole number; a negative one is no limit, 0 allows none. What exceeds a limit that is set later stays:
limits are asked when something comes (`limits.py`, `queues.py`).

A vhost's limits are a runtime parameter of it, `vhost-limits` by component and `limits` by name, as RabbitMQ keeps
them; a user's are a row of their own, which goes with the user.

Who may come in: connections and channels against the limits of their vhost and user.

A front end asks before it lets somebody in, and tells who has come and gone. Connections are counted as the set of
those that are there, so that nobody is counted twice or leaves twice. A connection counts from connection.open until
it closes, a channel until either side closes it; what only shakes hands counts nowhere.

Cost: two look-ups a connection or channel, whatever their number.

rabbit: texts, codes, and that the vhost is asked before the user.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, Final

from amqpd.broker.vhost.limit_set import CHANNELS, CONNECTIONS, NO_LIMITS, QUEUES, Limits
from amqpd.broker.vhost.pending import DeclarationPending, Done, ObjectName, PendingDeclaration, ignore_result
from amqpd.broker.vhost.policy_table import term
from amqpd.broker.vhost.vhost import Namespace, VHost, VhostServices
from amqpd.errors import NotAllowed
from amqpd.storage.metadata.store import Delete, ParameterRow, Put, UserLimitsRow

log = logging.getLogger(__name__)

OF_VHOSTS: Final = (CONNECTIONS, QUEUES)
OF_USERS: Final = (CONNECTIONS, CHANNELS)

COMPONENT: Final = "vhost-limits"
PARAMETER: Final = "limits"


class InvalidLimits(ValueError):
    """The text is RabbitMQ's."""


def checked(value: object, known: Iterable[str], what: str) -> dict[str, int]:
    """The limits in this JSON value. rabbit: an empty list is an empty object. Raises: InvalidLimits."""
    if value == []:
        return {}
    if not isinstance(value, Mapping):
        raise InvalidLimits(f"{what} not a list {term(value)}")
    for name in known:
        given = value.get(name, 0)
        if not isinstance(given, int) or isinstance(given, bool):
            raise InvalidLimits(f"{name} should be a number, actually was {term(given)}")
    strange = [f'{{<<"{name}">>,{term(given)}}}' for name, given in value.items() if name not in known]
    if strange:
        raise InvalidLimits(f"Unrecognised terms [{','.join(strange)}] in {what}")
    return dict(value)


# -- of vhosts --------------------------------------------------------------------------------------------------------


def values(vhost: VHost) -> dict[str, Any]:
    """As a parameter: by its name, of which there is one at most."""
    return {} if vhost.limits is NO_LIMITS else {PARAMETER: vhost.limits.value}


def declare(names: Namespace, name: str, value: object, done: Done = ignore_result) -> bool:
    """Whether it has had none; they are in force once done(None) is called. Raises: InvalidLimits, OnItsWay."""
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
    """Of one that has some; they hold until the removal is committed. Raises: OnItsWay."""
    row = ParameterRow(vhost.name, COMPONENT, PARAMETER, json.dumps(vhost.limits.value))
    vhost.make(PendingDeclaration(_name(vhost), Delete(row), Put(row), partial(_put, vhost, NO_LIMITS)), done)


def load(vhost: VHost, row: ParameterRow) -> None:
    """What an earlier life had."""
    try:
        vhost.limits = Limits(checked(json.loads(row.value), OF_VHOSTS, PARAMETER))
    except ValueError as error:  # another version, or another program, wrote it
        log.error("limits of vhost '%s' cannot be used: it has none: %s", row.vhost, error)


def _name(vhost: VHost) -> ObjectName:
    return ObjectName(vhost.name, COMPONENT, PARAMETER)


def _put(vhost: VHost, limits: Limits) -> None:
    """Its row is committed."""
    if vhost.deleted:
        raise DeclarationPending(vhost.catalogue.declared, _name(vhost))
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
    """Of all users of a broker. Who sets some holds `InternalBackend.changing`: so the user is there until then."""

    def __init__(self, catalogue: VhostServices) -> None:
        self._catalogue = catalogue
        self._by_user: dict[str, Limits] = {}

    def load(self, rows: Iterable[UserLimitsRow]) -> None:
        """What an earlier life had."""
        for row in rows:
            try:
                value = checked(json.loads(row.limits), OF_USERS, "user-limits")
            except ValueError as error:  # another version, or another program, wrote it
                log.error("limits of user '%s' cannot be used: there are none: %s", row.user, error)
            else:
                self._set(row.user, value)

    def all(self) -> list[tuple[str, dict[str, int]]]:
        """Users with limits, by name."""
        return [(user, limits.value) for user, limits in sorted(self._by_user.items())]

    def get(self, user: str) -> dict[str, int]:
        """Empty: none is set."""
        return self.of(user).value

    def of(self, user: str) -> Limits:
        return self._by_user.get(user, NO_LIMITS)

    @staticmethod
    def row(user: str, value: object) -> UserLimitsRow:
        """For a transaction of somebody else's, who calls `keep` after its commit. Raises: InvalidLimits."""
        return UserLimitsRow(user, json.dumps(dict(sorted(checked(value, OF_USERS, "user-limits").items()))))

    def declare(self, user: str, value: object, done: Done = ignore_result) -> None:
        """These and no others; in force once done(None) is called. Raises: InvalidLimits, OnItsWay."""
        row = self.row(user, value)
        limits: dict[str, int] = json.loads(row.limits)
        before = UserLimitsRow(user, json.dumps(self.get(user)))
        change, undo = (Put(each) if each.limits != "{}" else Delete(each) for each in (row, before))
        coming = PendingDeclaration(ObjectName("", "user limits", user), change, undo, partial(self.keep, user, limits))
        self._catalogue.declared.commit_and_apply(coming, done)

    def keep(self, user: str, value: Mapping[str, int]) -> None:
        """They are committed."""
        about = {"name": PARAMETER, "username": user}
        self._catalogue.events.emit(f"user.limits.{'set' if value else 'cleared'}", {**about, **value})
        self._set(user, value)
        log.info("limits of user '%s' are now %s", user, json.dumps(value), extra={"user": user})

    def follow(self, change: Put | Delete) -> None:
        """A row that another node of a cluster has committed; nothing where it is so already, or is of no limits."""
        row = change.row
        if not isinstance(row, UserLimitsRow):
            return
        value = {} if isinstance(change, Delete) else checked(json.loads(row.limits), OF_USERS, "user-limits")
        if value != self.get(row.user):
            self.keep(row.user, value)

    def _set(self, user: str, value: Mapping[str, int]) -> None:
        if value:
            self._by_user[user] = Limits(value)
        else:
            self.forget(user)

    def forget(self, user: str) -> None:
        """There are none any more, or no such user."""
        self._by_user.pop(user, None)


class ConnectionLimiter:
    """One per broker."""

    def __init__(self, limits: UserLimits) -> None:
        self._limits = limits
        self._by_user: dict[str, set[object]] = {}
        self._channels: dict[str, int] = {}

    def check(self, user: str, vhost: VHost, method: int = 0) -> None:
        """Of one more connection. method: what it asks by. Raises: NotAllowed."""
        if not vhost.limits.allow(CONNECTIONS, len(vhost.connected)):
            limit = vhost.limits.value[CONNECTIONS]
            raise NotAllowed(
                f"access to vhost '{vhost.name}' refused for user '{user}': connection limit ({limit}) is reached",
                method,
            )
        limits = self._limits.of(user)
        if not limits.allow(CONNECTIONS, self.connection_count(user)):
            raise NotAllowed(
                f"connection refused for user '{user}': user connection limit ({limits.value[CONNECTIONS]}) is reached",
                method,
            )

    def connection_count(self, user: str) -> int:
        return len(self._by_user.get(user, ()))

    def entered(self, session: object, user: str, vhost: VHost) -> None:
        """It is open."""
        vhost.connected.add(session)
        self._by_user.setdefault(user, set()).add(session)

    def left(self, session: object, user: str, vhost: VHost) -> None:
        """It ends; may be told twice."""
        vhost.connected.discard(session)
        theirs = self._by_user.get(user)
        if theirs is not None:
            theirs.discard(session)
            if not theirs:
                del self._by_user[user]

    def open_channel(self, user: str) -> None:
        """Counts one more. Raises: NotAllowed, and counts nothing."""
        count = self._channels.get(user, 0)
        limits = self._limits.of(user)
        if not limits.allow(CHANNELS, count):
            raise NotAllowed(
                f"number of channels opened for user '{user}' has reached the maximum allowed user limit of "
                f"({limits.value[CHANNELS]})"
            )
        self._channels[user] = count + 1

    def close_channel(self, user: str) -> None:
        """Of one that was counted, once."""
        count = self._channels[user] - 1
        if count > 0:
            self._channels[user] = count
        else:
            del self._channels[user]
