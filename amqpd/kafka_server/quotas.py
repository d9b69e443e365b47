"""Byte rates of users as throttle time, and the requests DescribeClientQuotas and AlterClientQuotas (KIP-546).

A quota is a limit of a user (broker/vhost/limits.py): `producer_byte_rate` counts bytes of Produce requests,
`consumer_byte_rate` bytes of batches in answers of Fetch and ShareFetch. All connections of a user share it.

A user has a level: the time at which all bytes so far would have been sent at the rate, at least now less BURST_MS.
Each answer raises it. What the level is ahead of now is the throttle time of the answer, at most THROTTLE_MS_MAX, and
the connection handles no request for so long, as in Kafka.

A Fetch or ShareFetch gets at most what the rate allows in a second, and nothing while the level is ahead. One whose
connection has waited its throttle time gets records also if other connections have raised the level meanwhile, and
less the further it is ahead, at least one batch. So each connection of a user gets its part (DECISIONS.md).
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from amqpd.auth.internal_backend import NoSuchUser
from amqpd.broker.events import ACTOR, ORIGIN
from amqpd.broker.vhost.limits import CONSUMER_BYTE_RATE, NO_LIMITS, PRODUCER_BYTE_RATE
from amqpd.broker.vhost.pending import wait_done
from amqpd.kafka_server import errors
from amqpd.kafka_server.connection import Call, typed_api
from amqpd.kafka_server.topics import check_count
from amqpd.storage.metadata.store import MetadataError

if TYPE_CHECKING:
    from amqpd.broker.flow.timers import Timers
    from amqpd.broker.vhost.limits import UserLimits

BURST_MS: Final = 1000
"""A user that was below its rate may send what the rate allows in this time at once."""
THROTTLE_MS_MAX: Final = 20_000
"""Less than the time-outs of clients for a request, and than the locks of share groups: 30 s by default."""
UNLIMITED: Final = 1 << 53
ALTERED_MAX: Final = 100
"""Most users in a request that changes quotas."""
SHOWN_MAX: Final = 10_000
RATE_MAX: Final = 1 << 53
"""The highest rate; quotas of Kafka's requests are floating-point numbers."""

KEYS: Final = (PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE)
NOT_ADMINISTRATOR: Final = "only users with the tag administrator may see or change quotas"
_LEVELS_MIN: Final = 1000
"""So many levels are kept before unused ones are removed; later twice as many as were in use then."""

_USER: Final = "user"
_TYPES: Final = (_USER, "client-id", "ip")
# Match types of a filter: exact name, default; 2 is any name.
_EXACT: Final = 0
_DEFAULT: Final = 1


class ClientQuotas:
    """The levels of all users with quotas. Cost: one look-up for a user without limits."""

    def __init__(self, limits: UserLimits, timers: Timers) -> None:
        self._limits = limits
        self._timers = timers
        # (user, key) -> ms of the clock.
        self._levels: dict[tuple[str, str], float] = {}
        self._levels_max = _LEVELS_MIN

    def rate(self, user: str, key: str) -> int:
        """Return the quota in bytes a second, -1 without one."""
        limits = self._limits.of(user)
        if limits is NO_LIMITS:
            return -1
        rate = limits.value.get(key, -1)
        return rate if rate > 0 else -1

    def throttle_ms(self, user: str, key: str, size_bytes: int = 0) -> int:
        """Count bytes, and return the throttle time in ms; 0 if the user is within the quota or has none."""
        rate = self.rate(user, key)
        if rate < 0:
            return 0
        now_ms = int(self._timers.now_ms())
        level = max(self._levels.get((user, key), 0.0), now_ms - BURST_MS) + size_bytes * 1000 / rate
        if size_bytes:
            self._levels[user, key] = level = min(level, now_ms + THROTTLE_MS_MAX)
            if len(self._levels) > self._levels_max:
                self._levels = {each: at for each, at in self._levels.items() if at > now_ms - BURST_MS}
                self._levels_max = max(_LEVELS_MIN, 2 * len(self._levels))
        return max(int(level - now_ms), 0)

    def fetch_bytes(self, call: Call) -> int:
        """Return how many bytes of records a request may get, 0 if it must wait. Each wait counts once."""
        user, connection = call.session.user.name, call.connection
        rate = self.rate(user, CONSUMER_BYTE_RATE)
        if rate < 0:
            return UNLIMITED
        has_waited, connection.has_waited = connection.has_waited, False
        ahead_ms = self.throttle_ms(user, CONSUMER_BYTE_RATE)
        if ahead_ms > 0 and not has_waited:
            return 0
        return max(rate * (THROTTLE_MS_MAX - ahead_ms) // THROTTLE_MS_MAX, 1)


def count_bytes(call: Call, key: str, size_bytes: int) -> int:
    """Count bytes of a request's answer, throttle its connection, and return the throttle time in ms."""
    connection = call.connection
    throttle_ms = connection.server.quotas.throttle_ms(call.session.user.name, key, size_bytes)
    if throttle_ms > 0:
        connection.throttle(throttle_ms)
    return throttle_ms


# -- requests ----------------------------------------------------------------------------------------------------------


def _describe(call: Call) -> None:
    if "administrator" not in call.session.user.tags:
        call.reply(
            {"error_code": errors.CLUSTER_AUTHORIZATION_FAILED, "error_message": NOT_ADMINISTRATOR, "entries": None}
        )
        return
    components = call.request.components or ()
    check_count(len(components))
    types = [each.entity_type for each in components]
    unknown = [each for each in types if each not in _TYPES]
    if unknown or len(set(types)) < len(types):
        text = f"unknown entity type {unknown[0][:40]!r}" if unknown else "an entity type is in the filter twice"
        call.reply({"error_code": errors.INVALID_REQUEST, "error_message": text, "entries": None})
        return
    found: list[dict[str, Any]] = []
    for user, limits in call.session.broker.user_limits.all():
        values = [{"key": key, "value": float(limits[key])} for key in KEYS if limits.get(key, -1) > 0]
        if values and _is_wanted(components, call.request.strict, user):
            found.append({"entity": [{"entity_type": _USER, "entity_name": user}], "values": values})
    if len(found) > SHOWN_MAX:
        text = f"more than {SHOWN_MAX} users have quotas: name one of them"
        call.reply({"error_code": errors.INVALID_REQUEST, "error_message": text, "entries": None})
        return
    call.reply({"error_code": errors.NONE, "error_message": None, "entries": found})


def _is_wanted(components: Any, strict: bool, user: str) -> bool:
    """Return whether a filter has the quotas of this user. A user has no client id and no address."""
    for each in components:
        if each.entity_type != _USER or each.match_type == _DEFAULT:
            return False
        if each.match_type == _EXACT and each.match != user:
            return False
    return bool(components) or not strict


def _alter(call: Call) -> None:
    entries = call.request.entries or ()
    check_count(len(entries), ALTERED_MAX)
    check_count(sum(len(each.ops) + len(each.entity) for each in entries))
    if "administrator" not in call.session.user.tags:
        call.reply(
            {"entries": [_result(each, errors.CLUSTER_AUTHORIZATION_FAILED, NOT_ADMINISTRATOR) for each in entries]}
        )
        return
    call.connection.start_task(_alter_all(call, entries))  # changes run one after another, each with a commit


def _result(entry: Any, code: int, text: str | None) -> dict[str, Any]:
    entity = [{"entity_type": each.entity_type, "entity_name": each.entity_name} for each in entry.entity]
    return {"error_code": code, "error_message": text, "entity": entity}


async def _alter_all(call: Call, entries: Any) -> None:
    ACTOR.set(call.session.user.name)
    ORIGIN.set(call.session)
    only_validate = call.request.validate_only
    counts = Counter(_entity_of(each) for each in entries)
    results = []
    for each in entries:
        why = "an entity is in the request more than once" if counts[_entity_of(each)] > 1 else _fault(each)
        code, text = (errors.INVALID_REQUEST, why) if why else await _alter_one(call, each, only_validate)
        results.append(_result(each, code, text or None))
    if not call.connection.closed:
        call.reply({"entries": results})


def _entity_of(entry: Any) -> tuple[tuple[str, str | None], ...]:
    return tuple((each.entity_type, each.entity_name) for each in entry.entity)


def _fault(entry: Any) -> str:
    """Return why an entry cannot be kept, or ""."""
    if [each.entity_type for each in entry.entity] != [_USER]:
        return "only users have quotas here, not client ids or addresses"
    if entry.entity[0].entity_name is None:
        return "there is no default quota for all users; name a user"
    keys = [op.key for op in entry.ops]
    if len(set(keys)) < len(keys):
        return "a quota is in an entry twice"
    for op in entry.ops:
        if op.key not in KEYS:
            return f"{op.key[:40]} is not supported; {' and '.join(KEYS)} are"
        if not op.remove and not (1 <= op.value <= RATE_MAX and op.value == int(op.value)):
            return f"{op.key} must be a whole number from 1 to {RATE_MAX}"
    return ""


async def _alter_one(call: Call, entry: Any, only_validate: bool) -> tuple[int, str]:
    """Change the quotas of one user, all or none. Return an error code and its text."""
    broker, name = call.session.broker, entry.entity[0].entity_name
    async with broker.auth.change_lock:
        try:
            broker.auth.user(name)
        except NoSuchUser:
            return errors.RESOURCE_NOT_FOUND, "there is no such user; add it with amqpctl add_user"
        before = broker.user_limits.get(name)
        removed = {op.key for op in entry.ops if op.remove}
        after = {key: limit for key, limit in before.items() if key not in removed}
        after |= {op.key: int(op.value) for op in entry.ops if not op.remove}
        if after == before or only_validate:
            return errors.NONE, ""
        try:
            await wait_done(partial(broker.user_limits.declare, name, after))
        except MetadataError as error:
            return errors.STORAGE_ERROR, f"metadata could not be written: {error}"
    return errors.NONE, ""


APIS: Final = (
    typed_api(48, "DescribeClientQuotas", 0, 1, 1, _describe),
    typed_api(49, "AlterClientQuotas", 0, 1, 1, _alter),
)
