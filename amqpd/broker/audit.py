"""The audit log: an append-only stream, `amq.audit`, of changes, logins and refusals.

`Events` reports what happened, front ends set user and origin (events.ACTOR, ORIGIN). A record is a message in a
normal stream, which limits age and bytes. Consumers, the HTTP API and Spark read it.

Durability: a record is appended in the turn of its change, before the reply to that change, and synced with the next
commit. The HTTP API waits for the sync (`Audit.when_safe`), an AMQP connection does not. A power cut can lose the
records of the last commit, some ms, although their changes exist. Above DIRECT_MAX records in a turn, the others
follow in slices.

Failure: the broker continues without it. Lost records are counted, and shown by the log, the health check and an
`audit.lost` record when the stream works again.

A record's body is a JSON object. Its headers are the fields for selectors (`event = 'queue.deleted' AND name =
'orders'`). Routing key and property `type` are the event. Empty fields are left out.

- event: `queue.deleted`, ...: the keys of RULES, mostly those of RabbitMQ's event exchange
- time: ISO 8601, UTC, to the millisecond
- user: the acting user; `rmq-cli` is amqpctl, `rmq-internal` the broker itself
- front_end, peer, connection: `amqp`, `kafka`, `http` or `amqpctl`; address and port; the connection's name
- vhost, name: the vhost and the name of the queue, exchange, user, policy, ...
- result, reason: `ok` or `refused`, and the reason
- count: number of repetitions (`EventThrottle`)
- details: other fields named by RULES

The queue is in no vhost table and in no metadata. Clients with permission read it by name in one vhost. So lists,
exports, limits and deletions do not include it, and it outlives the vhost. Its log is the directory `audit` beside
`vhosts`; versions without an audit log ignore it.

RULES lists what may be recorded. So no password, hash, parameter value or message gets into a record by mistake.
"""

from __future__ import annotations

import json
import logging
import time
from collections import deque
from collections.abc import Callable, Hashable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, NamedTuple

from amqpd.auth.login_throttle import network
from amqpd.broker.consumer import LogNotOpen
from amqpd.broker.events import INTERNAL, KAFKA_PROTOCOL, ORIGIN, EventOrigin
from amqpd.broker.message import Message, MessageRoute, make_message
from amqpd.broker.queue.log_opener import when_open
from amqpd.broker.vhost.declaration import make_queue
from amqpd.errors import ResourceError
from amqpd.protocol.field_table import Int64, Timestamp, encode_table
from amqpd.protocol.properties import Properties, encode_properties, scan_properties

if TYPE_CHECKING:
    from amqpd.broker.flow.loop_turn import LoopTurn
    from amqpd.broker.queue.queue import Queue
    from amqpd.broker.queue.services import QueueServices
    from amqpd.config.schema import AuditSettings
    from amqpd.storage.storage import Storage

AUDIT: Final = "amq.audit"
AUDIT_DIRECTORY: Final = "audit"
AUDIT_QUEUE_ID: Final = "0" * 31 + "1"
"""Used for exports and stored offsets; no random id is equal to it."""


NAME_MAX: Final = 255
TEXT_MAX: Final = 512
DETAILS_SIZE_MAX: Final = 4096
"""Bytes of JSON. Of larger details only the size is recorded."""

OK: Final = "ok"
REFUSED: Final = "refused"


class AuditRule(NamedTuple):
    """The recorded fields of an event.

    Attributes:
        name: the field with the name of the changed object.
        details: other recorded fields.
    """

    name: str
    details: tuple[str, ...] = ()


_PERMISSION: Final = AuditRule("user", ("configure", "write", "read"))
_TOPIC_PERMISSION: Final = AuditRule("user", ("exchange", "write", "read"))
_BINDING: Final = AuditRule("destination_name", ("source_name", "destination_kind", "routing_key", "arguments"))
_VHOST: Final = AuditRule("name", ("description", "tags", "default_queue_type"))
_LIMITS: Final = ("max-connections", "max-queues", "max-channels", "producer_byte_rate", "consumer_byte_rate")
_POLICY: Final = AuditRule("name", ("pattern", "apply-to", "priority", "definition"))
_LOGIN: Final = AuditRule(
    "name", ("auth_mechanism", "users", "peer_cert_subject", "peer_cert_issuer", "peer_cert_validity")
)

LOGIN: Final = "user.authentication.success"
LOGIN_REFUSED: Final = "user.authentication.failure"
ACCESS_REFUSED: Final = "access.refused"
REQUEST: Final = "admin.request"
LOST: Final = "audit.lost"

RULES: Final[dict[str, AuditRule]] = {
    "queue.created": AuditRule("name", ("durable", "auto_delete", "arguments")),
    "queue.deleted": AuditRule("name"),
    "queue.purged": AuditRule("name", ("messages",)),
    "queue.messages": AuditRule(
        "name", ("action", "job", "to_queue", "to_exchange", "routing_key", "where", "limit", "dry_run")
    ),
    "exchange.created": AuditRule("name", ("type", "durable", "auto_delete", "internal", "arguments")),
    "exchange.deleted": AuditRule("name"),
    "binding.created": _BINDING,
    "binding.deleted": _BINDING,
    "vhost.created": _VHOST,
    "vhost.updated": _VHOST,
    "vhost.deleted": AuditRule("name"),
    "vhost.limits.set": AuditRule("vhost", _LIMITS),
    "vhost.limits.cleared": AuditRule("vhost"),
    "user.created": AuditRule("name"),
    "user.deleted": AuditRule("name"),
    "user.password.changed": AuditRule("name"),
    "user.tags.set": AuditRule("name", ("tags",)),
    "user.limits.set": AuditRule("username", _LIMITS),
    "user.limits.cleared": AuditRule("username"),
    "permission.created": _PERMISSION,
    "permission.deleted": _PERMISSION,
    "topic.permission.created": _TOPIC_PERMISSION,
    "topic.permission.deleted": _TOPIC_PERMISSION,
    "policy.set": _POLICY,
    "policy.cleared": AuditRule("name"),
    "operator.policy.cleared": AuditRule("name"),
    "parameter.set": AuditRule("name", ("component",)),
    "parameter.cleared": AuditRule("name", ("component",)),
    "alarm.set": AuditRule("source"),
    "alarm.cleared": AuditRule("source"),
    "connection.force_closed": AuditRule("name", ("user", "why")),
    "definitions.imported": AuditRule("name", ("items",)),
    LOGIN: _LOGIN,
    LOGIN_REFUSED: _LOGIN,
    ACCESS_REFUSED: AuditRule("name"),
    REQUEST: AuditRule("name"),
    LOST: AuditRule("name"),
}
TOLD_APART: Final = frozenset({"vhost-limits", "operator_policy", "policy"})
"""Components of parameters whose changes have their own events."""


class EventSource(NamedTuple):
    """The origin of an event.

    Attributes:
        peer: address and port as text; empty for the broker itself or its unix socket.
    """

    front_end: str = "broker"
    peer: str = ""
    connection: str = ""


class AuditRecord(NamedTuple):
    """One record.

    Attributes:
        about: fields of the event. The rule selects some; `vhost` and `reason` are always recorded.
        at_ms: since 1970.
    """

    event: str
    at_ms: int
    user: str
    where: EventSource
    about: Mapping[str, object]
    result: str = OK
    times: int = 1


def fields_of(record: AuditRecord) -> dict[str, object]:
    """Return the fields of the record's body."""
    rule = RULES[record.event]
    about = record.about
    fields: dict[str, object] = {
        "event": record.event,
        "time": datetime.fromtimestamp(record.at_ms / 1000, UTC).isoformat(timespec="milliseconds")[:-6] + "Z",
        "user": _text(record.user, NAME_MAX),
        "front_end": record.where.front_end,
        "peer": record.where.peer,
        "connection": _text(record.where.connection, TEXT_MAX),
        "vhost": _text(about.get("vhost", ""), NAME_MAX),
        "name": _text(about.get(rule.name, ""), TEXT_MAX),
        "result": record.result,
        "reason": _text(about.get("reason", ""), TEXT_MAX),
        "count": record.times if record.times != 1 else "",
    }
    details = {each: about[each] for each in rule.details if about.get(each) not in (None, {})}
    body_fields = {name: value for name, value in fields.items() if value != ""}
    if details:
        size = len(_encode(details))
        body_fields["details"] = details if size <= DETAILS_SIZE_MAX else {"omitted_bytes": size}
    return body_fields


def message_of(record: AuditRecord) -> Message:
    """Return the message to append. Cost: 40 us."""
    fields = fields_of(record)
    headers: dict[str, object] = {
        name: Int64(value) if isinstance(value, int) else value
        for name, value in fields.items()
        if name not in ("time", "details", "reason")
    }
    properties = encode_properties(
        Properties(
            content_type="application/json",
            headers=headers,
            delivery_mode=2,
            timestamp=Timestamp(record.at_ms // 1000),
            type=record.event,
        )
    )
    body = _encode(fields).encode()
    info = scan_properties(properties, 0, len(properties))
    return make_message(MessageRoute("", record.event), properties, body, True, info)


def _text(value: object, most: int) -> str:
    """Return the value as limited text. Names come from clients: they can be long or invalid UTF-8."""
    text = value if isinstance(value, str) else str(value)
    if text.isascii():
        return text[:most]
    return text[:most].encode("utf-8", "replace").decode()[:most]


def _plain(value: object) -> object:
    """Convert a value that a field table can have but JSON cannot."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


_encode: Final = json.JSONEncoder(default=_plain).encode


SOURCES_MAX: Final = 10_000
SWEEP_MAX: Final = 200
USERS_MAX: Final = 10


class _Window:
    """Repetitions of one event.

    Attributes:
        since: monotonic seconds.
        users: the first USERS_MAX user names in it.
    """

    def __init__(self, since: float, last: AuditRecord) -> None:
        self.since = since
        self.last = last
        self.count = 0
        self.users: dict[str, None] = {}


class EventThrottle:
    """Records a repeated event once at the beginning and once per window.

    The first event of a kind is recorded at once. Its repetitions within the window become one record with their
    count, the last one's. So a hundred thousand wrong passwords from one address are one record now and one per
    minute. Above SOURCES_MAX kinds, further ones are counted together.

    Args:
        write: appends a record.
        later: the loop's call_later. A timer runs only while a window is open.
    """

    def __init__(
        self,
        write: Callable[[AuditRecord], object],
        later: Callable[[float, Callable[[], None]], object],
        window_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._write = write
        self._later = later
        self._window_s = window_s
        self._clock = clock
        self._open: dict[Hashable, _Window] = {}  # in order of their beginning
        self._armed = False

    def __len__(self) -> int:
        return len(self._open)

    def add(self, kind: Hashable, record: AuditRecord) -> None:
        """Count or record an event.

        Args:
            kind: events of the same kind are repetitions.

        Cost: 1 us for a repetition.
        """
        window = self._open.get(kind)
        if window is None and len(self._open) >= SOURCES_MAX:
            kind = None  # all further kinds together
            window = self._open.get(kind)
        if window is None:
            self._write(record)
            self._open[kind] = _Window(self._clock(), record)
            self._arm(self._window_s)
            return
        window.last = record
        window.count += 1
        if len(window.users) < USERS_MAX:
            window.users[record.user] = None

    def _arm(self, delay_s: float) -> None:
        if not self._armed:
            self._armed = True
            self._later(max(delay_s, 0.01), self._sweep)

    def _sweep(self) -> None:
        """End the windows that are over, SWEEP_MAX at most."""
        self._armed = False
        now = self._clock()
        for _ in range(SWEEP_MAX):
            if not self._open:
                return
            kind = next(iter(self._open))
            window = self._open[kind]
            if now - window.since < self._window_s:
                break
            del self._open[kind]
            if window.count:
                self._write_repetitions(window)
                self._open[kind] = _Window(now, window.last)  # continuing repetitions are recorded a window later
        if self._open:
            self._arm(self._window_s - (now - next(iter(self._open.values())).since))

    def finish(self) -> None:
        """Record all counted repetitions: the broker stops."""
        for window in self._open.values():
            if window.count:
                self._write_repetitions(window)
        self._open.clear()

    def _write_repetitions(self, window: _Window) -> None:
        record = window.last
        about = {**record.about, "users": list(window.users)} if len(window.users) > 1 else record.about
        self._write(record._replace(times=window.count, about=about))


log = logging.getLogger(__name__)

KEPT_OF_LOGIN: Final = ("auth_mechanism", "peer_cert_subject", "peer_cert_issuer", "peer_cert_validity")
WAITING_MAX: Final = 100_000
DIRECT_MAX: Final = 64
SLICE_S: Final = 0.003
REFUSALS_S: Final = 60.0
LOGINS_S: Final = 3600.0
REQUESTS_S: Final = 60.0
"""Window of HTTP requests that publish or take messages."""
SEGMENT_SIZE_BYTES_MAX: Final = 16 * 1024 * 1024
SEGMENT_SIZE_BYTES_MIN: Final = 64 * 1024
SEGMENTS: Final = 16
"""Number of files that share the byte limit. Files are deleted as a whole."""


class AuditedRequest:
    """A request to the HTTP API, as ORIGIN.

    Attributes:
        name: `http`, or `amqpctl` for the unix socket.
        told_count: records of this request so far.
    """

    def __init__(self, name: str, peer: tuple[str, int]) -> None:
        self.name = name
        self.peer = peer
        self.front_end = name
        self.told_count = 0


def open_stream(storage: Storage, host: QueueServices, settings: AuditSettings) -> Queue:
    """Return the stream. Nothing is read, and nothing is written before the first record."""
    share = settings.size_max_bytes // SEGMENTS
    arguments: dict[str, object] = {
        "x-queue-type": "stream",
        "x-max-age": f"{int(settings.age_max_s)}s",
        "x-max-length-bytes": settings.size_max_bytes,
        "x-stream-max-segment-size-bytes": max(SEGMENT_SIZE_BYTES_MIN, min(share, SEGMENT_SIZE_BYTES_MAX)),
    }
    table = encode_table(arguments)
    store = storage.open_system_queue(AUDIT_DIRECTORY, AUDIT_QUEUE_ID, AUDIT, host.vhost_name, table)
    queue = make_queue(host, AUDIT, True, False, None, arguments, store)
    queue.id = AUDIT_QUEUE_ID
    host.windows.add(queue.order.memory)
    return queue


class Audit:
    """The audit log of a broker.

    Attributes:
        queue: the stream of records.
        lost_count: records lost since the last one that was appended.
    """

    def __init__(
        self,
        queue: Queue,
        turn: LoopTurn,
        call_soon: Callable[[Callable[[], None]], object],
        call_later: Callable[[float, Callable[[], None]], object],
    ) -> None:
        self.queue = queue
        self.lost_count = 0
        self._turn = turn
        self._call_soon = call_soon
        self._refusals = EventThrottle(self._write, call_later, REFUSALS_S)
        self._logins = EventThrottle(self._write, call_later, LOGINS_S)
        self._requests = EventThrottle(self._write, call_later, REQUESTS_S)
        self._waiting: deque[AuditRecord] = deque()
        self._is_scheduled = False
        # `_count`: records so far. `_safe_waiters`: (record count, callback) of `when_safe` calls, in order.
        self._count = 0
        self._safe_waiters: deque[tuple[int, Callable[[bool], None]]] = deque()
        # Records appended in this turn.
        self._turn_number = -1
        self._direct_count = 0

    # -- recording -----------------------------------------------------------------------------------------------------

    def record(self, key: str, about: Mapping[str, object], actor: str) -> None:
        """Record an event of `Events`. Cost: 60 us if RULES has it."""
        if key not in RULES or about.get("component") in TOLD_APART:
            return
        origin = ORIGIN.get()
        at_ms = time.time_ns() // 1_000_000
        if key in (LOGIN, LOGIN_REFUSED):
            self._login_of(key, about, at_ms)
        elif not actor or actor == INTERNAL:
            self._write(AuditRecord(key, at_ms, INTERNAL, EventSource(), about))
        else:
            if isinstance(origin, AuditedRequest):
                origin.told_count += 1
            self._write(AuditRecord(key, at_ms, actor, _where(origin), about))

    def _login_of(self, key: str, about: Mapping[str, object], at_ms: int) -> None:
        """Record the login event of a connection."""
        host, port = str(about.get("peer_host", "")), about.get("peer_port", 0)
        front_end = "kafka" if about.get("protocol") == KAFKA_PROTOCOL else "amqp"
        where = EventSource(front_end, f"{host}:{port}", str(about.get("connection_name", "")))
        name, error = str(about.get("name", "")), str(about.get("error", ""))
        kept = {"name": name, "reason": error, **{key: about[key] for key in KEPT_OF_LOGIN if key in about}}
        self._login(AuditRecord(key, at_ms, name, where, kept, REFUSED if error else OK), host)

    def login(self, name: str, peer: str, error: str = "", certificate: Mapping[str, object] | None = None) -> None:
        """Record a login at the HTTP API.

        Args:
            error: reason of a refusal; "" for success.
            certificate: the fields of a TLS client's certificate, named as in events.
        """
        key = LOGIN_REFUSED if error else LOGIN
        at_ms = time.time_ns() // 1_000_000
        about = {"name": name, "reason": error, **(certificate or {})}
        self._login(AuditRecord(key, at_ms, name, EventSource("http", peer), about, REFUSED if error else OK), peer)

    def _login(self, record: AuditRecord, host: str) -> None:
        """Record a login. Failures are counted per address, successes per address and user."""
        place = (record.where.front_end, network(host))
        if record.result == OK:
            self._logins.add((*place, record.user), record)
        else:
            self._refusals.add((*place, record.event), record)

    def refused(self, user: str, command: str, text: str, vhost: str = "") -> None:
        """Record that a user lacks a permission. `command` is for example `queue.delete` or `PUT /api/users/u`."""
        where = _where(ORIGIN.get())
        at_ms = time.time_ns() // 1_000_000
        about = {"vhost": vhost, "name": command, "reason": text}
        record = AuditRecord(ACCESS_REFUSED, at_ms, user, where, about, REFUSED)
        self._refusals.add((where.front_end, where.peer.rpartition(":")[0], user, command), record)

    def message_request(self, user: str, request: str) -> None:
        """Count an HTTP request that published or took messages. `request` is for example `POST /api/exchanges/...`."""
        where = _where(ORIGIN.get())
        record = AuditRecord(REQUEST, time.time_ns() // 1_000_000, user, where, {"name": request})
        self._requests.add((where.front_end, where.peer.rpartition(":")[0], user, request), record)

    # -- appending -----------------------------------------------------------------------------------------------------

    def _write(self, record: AuditRecord) -> None:
        if len(self._waiting) >= WAITING_MAX:
            self._count_lost(1)
            return
        self._count += 1
        self._waiting.append(record)
        if self._is_scheduled:
            return
        if self._turn.number != self._turn_number:
            self._turn_number, self._direct_count = self._turn.number, 0
        self._direct_count += 1
        if self._direct_count > DIRECT_MAX:
            self._schedule()
        else:
            self._work()

    def _schedule(self) -> None:
        self._is_scheduled = True
        self._call_soon(self._resume)

    def _resume(self) -> None:
        self._is_scheduled = False
        self._work()

    def _work(self) -> None:
        """Append one slice of the waiting records."""
        queue, waiting = self.queue, self._waiting
        try:
            queue.prepare()
        except LogNotOpen as opening:
            self._is_scheduled = True
            when_open(opening.destinations, self._resume)
            return
        except ResourceError as error:
            log.error("audit log: %s", error.reply_text)
            self._count_lost(len(waiting))
            waiting.clear()
            self._notify_safe()
            return
        until = time.perf_counter() + SLICE_S
        while waiting:
            self._append(waiting.popleft())
            if waiting and time.perf_counter() >= until:
                self._schedule()
                break
        self._notify_safe()
        self._turn.schedule()

    def when_safe(self, done: Callable[[bool], None]) -> None:
        """Call `done(True)` when all records so far are synced, or `done(False)` if that fails. Can call it at once."""
        self._safe_waiters.append((self._count, done))
        self._notify_safe()

    def _notify_safe(self) -> None:
        """Pass on the callbacks whose records are all appended to the log."""
        there = self._count - len(self._waiting)
        while self._safe_waiters and self._safe_waiters[0][0] <= there:
            done = self._safe_waiters.popleft()[1]
            store = self.queue.store
            if store is None:
                done(False)
            else:
                store.when_safe(store.next_offset - 1, done)

    def _append(self, record: AuditRecord) -> None:
        if self.lost_count and not self._failed():
            lost = AuditRecord(LOST, record.at_ms, INTERNAL, EventSource(), {"name": str(self.lost_count)})
            if self.queue.enqueue(message_of(lost)):
                log.warning("audit log: it accepts records again; %d records are lost", self.lost_count)
                self.lost_count = 0
        if self._failed() or not self.queue.enqueue(message_of(record)):
            self._count_lost(1)

    def _failed(self) -> bool:
        store = self.queue.store
        return store is not None and store.failed

    def _count_lost(self, count: int) -> None:
        if not self.lost_count and count:
            log.error("audit log: it accepts no records; they are lost, and the broker continues without them")
        self.lost_count += count

    def count_unwritten(self, ranges: list[tuple[int, int]]) -> None:
        """Count records that a failed write lost, at these offsets of the stream."""
        self._count_lost(sum(last - first + 1 for first, last in ranges))
        self.queue.on_write_failed(ranges)

    def health_problem(self) -> str:
        """Return the text of the health check, or "" if all is well."""
        if self._failed():
            return "the audit log accepts nothing more"
        return f"{self.lost_count} records of the audit log are lost" if self.lost_count else ""

    def stop(self) -> None:
        """Append counted and waiting records: the broker stops, and its logs are still open."""
        self._refusals.finish()
        self._logins.finish()
        self._requests.finish()
        while self._waiting and self.queue.opening is None:
            self._append(self._waiting.popleft())
        self._notify_safe()


def _where(origin: EventOrigin | None) -> EventSource:
    if origin is None:
        return EventSource()
    host, port = origin.peer
    peer = f"{host}:{port}" if host else ""
    return (
        EventSource(origin.name, peer)
        if isinstance(origin, AuditedRequest)
        else EventSource(origin.front_end, peer, origin.name)
    )
