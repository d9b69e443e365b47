"""The audit log: an append-only stream, `amq.audit`, of who did what.

Front ends say who works and from where (events.ACTOR, ORIGIN), `Events` says what has happened, and here it becomes a
record (record.py) in a stream like any other: consumers, the admin API and Spark read it. Age and bytes bound it as
they bound a stream; there is no other way for a record to go.

**When.** A record is appended in the turn of the loop in which its change came into force, before the answer of that
change is sent, and is written and synced with the next commit. The admin API waits for that before it answers
(`when_safe`), an AMQP connection does not: `kill -9` leaves what was written, and a power cut may take records of the
last commit, some ms, whose changes may be there. Where a turn brings more than DIRECT_MAX records (a vhost with all its
queues is deleted), the others follow in slices.

**Failure.** The broker does not depend on it. A record that cannot be appended is counted; the log says so, and so does
the health check, and when the stream takes records again the first of them, `audit.lost`, says how many are missing.

One record of the audit log: what of an event goes into it, and the message that it becomes.

The body is a JSON object, the headers are those fields of it that readers select by (`event = 'queue.deleted' AND name
= 'orders'`); the routing key and the property `type` are the event, `timestamp` and `time` say when. Whatever is empty
is left out.

| field | |
|---|---|
| event | `queue.deleted`, ... : the keys of RULES, mostly those of RabbitMQ's event exchange |
| time | ISO 8601, UTC, to the millisecond |
| user | who did it; `rmq-cli` is the operator (amqpctl), `rmq-internal` the broker by itself |
| front_end, peer, connection | `amqp`, `http` or `amqpctl`; address and port; the connection's name |
| vhost, name | where, and of what: the queue, exchange, user, policy, ... |
| result, reason | `ok` or `refused`, and why |
| count | how often: of what is repeated (audit.py) |
| details | the rest that RULES names |

RULES is a list of what may be recorded, not of what may not: no password, hash, parameter's value or message gets into
a record by being forgotten here.

What happens again and again is written once and then counted.

The first of its kind is written at once. Those that follow within the window are one record at its end, the last of
them, with their count; while they go on there is one record a window. So a hundred thousand wrong passwords of one
address are a record at once and one a minute, and a client that logs in for each message is one an hour.

Bounded: SOURCES_MAX kinds are told apart; further ones are counted together.
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
from amqpd.broker.events import INTERNAL, ORIGIN, EventOrigin
from amqpd.broker.message import Message, MessageRoute, make_message
from amqpd.broker.queue.factory import make_queue
from amqpd.broker.queue.log_opener import when_open
from amqpd.broker.system_queues import AUDIT, AUDIT_DIRECTORY, AUDIT_QUEUE_ID
from amqpd.errors import ResourceError
from amqpd.protocol.field_table import Int64, Timestamp, encode_table
from amqpd.protocol.properties import Properties, encode_properties, scan_properties

if TYPE_CHECKING:
    from amqpd.broker.flow.loop_turn import LoopTurn
    from amqpd.broker.queue.queue import Queue
    from amqpd.broker.queue.services import QueueServices
    from amqpd.config.schema import AuditSettings
    from amqpd.storage.storage import Storage


NAME_MAX: Final = 255
TEXT_MAX: Final = 512
DETAILS_SIZE_MAX: Final = 4096
"""Bytes of JSON: arguments and definitions that are larger are told by their size."""

OK: Final = "ok"
REFUSED: Final = "refused"


class AuditRule(NamedTuple):
    """name: the event's field that says of what it is. details: those that are kept."""

    name: str
    details: tuple[str, ...] = ()


_PERMISSION: Final = AuditRule("user", ("configure", "write", "read"))
_TOPIC_PERMISSION: Final = AuditRule("user", ("exchange", "write", "read"))
_BINDING: Final = AuditRule("destination_name", ("source_name", "destination_kind", "routing_key", "arguments"))
_VHOST: Final = AuditRule("name", ("description", "tags", "default_queue_type"))
_LIMITS: Final = ("max-connections", "max-queues", "max-channels")
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
"""Components of parameters whose changes have events of their own."""


class EventSource(NamedTuple):
    """From where it was done. peer: address and port, as text; empty: within the broker, or its unix socket."""

    front_end: str = "broker"
    peer: str = ""
    connection: str = ""


class AuditRecord(NamedTuple):
    """about: fields of the event, of which its rule takes some; `vhost` and `reason` always. at_ms: since 1970."""

    event: str
    at_ms: int
    user: str
    where: EventSource
    about: Mapping[str, object]
    result: str = OK
    times: int = 1


def fields_of(record: AuditRecord) -> dict[str, object]:
    """What its body says."""
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
    told = {name: value for name, value in fields.items() if value != ""}
    if details:
        size = len(json.dumps(details, default=_plain))
        told["details"] = details if size <= DETAILS_SIZE_MAX else {"omitted_bytes": size}
    return told


def message_of(record: AuditRecord) -> Message:
    """The message that is appended. Cost: 40 us."""
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
    body = json.dumps(fields, default=_plain).encode()
    info = scan_properties(properties, 0, len(properties))
    return make_message(MessageRoute("", record.event), properties, body, True, info)


def _text(value: object, most: int) -> str:
    """A name came from a client: it may be long, and no UTF-8."""
    text = value if isinstance(value, str) else str(value)
    return text[:most].encode("utf-8", "replace").decode()[:most]


def _plain(value: object) -> object:
    """What a field table has beyond JSON."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


SOURCES_MAX: Final = 10_000
SWEEP_MAX: Final = 200
USERS_MAX: Final = 10


class _Window:
    """since: monotonic seconds. users: names that were tried in it, the first USERS_MAX of them."""

    def __init__(self, since: float, last: AuditRecord) -> None:
        self.since = since
        self.last = last
        self.count = 0
        self.users: dict[str, None] = {}


class EventThrottle:
    """write: appends a record. later: the loop's call_later; a timer runs while a window is open only."""

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
        self._open: dict[Hashable, _Window] = {}  # in the order of their beginnings
        self._armed = False

    def __len__(self) -> int:
        return len(self._open)

    def add(self, kind: Hashable, record: AuditRecord) -> None:
        """It happened. kind: what counts as the same. Cost: 1 us where it is a repetition."""
        window = self._open.get(kind)
        if window is None and len(self._open) >= SOURCES_MAX:
            kind = None  # all the others
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
        """Ends the windows that are over, SWEEP_MAX of them."""
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
                self._tell(window)
                self._open[kind] = _Window(now, window.last)  # what goes on is told again a window later
        if self._open:
            self._arm(self._window_s - (now - next(iter(self._open.values())).since))

    def finish(self) -> None:
        """The broker stops: what is counted is written."""
        for window in self._open.values():
            if window.count:
                self._tell(window)
        self._open.clear()

    def _tell(self, window: _Window) -> None:
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
"""Records of HTTP requests that publish or take messages."""
SEGMENT_SIZE_BYTES_MAX: Final = 16 * 1024 * 1024
SEGMENT_SIZE_BYTES_MIN: Final = 64 * 1024
SEGMENTS: Final = 16
"""How many files share the bytes it may have: files go as a whole."""


class AuditedRequest:
    """One request to the admin API, as ORIGIN. name: `http`, or `amqpctl` for the unix socket. told_count: records that
    it has brought so far.
    """

    def __init__(self, name: str, peer: tuple[str, int]) -> None:
        self.name = name
        self.peer = peer
        self.told_count = 0


def open_stream(storage: Storage, host: QueueServices, settings: AuditSettings) -> Queue:
    """The stream; nothing is read, and nothing written before the first record."""
    share = settings.size_max_bytes // SEGMENTS
    arguments: dict[str, object] = {
        "x-queue-type": "stream",
        "x-max-age": f"{int(settings.age_max_s)}s",
        "x-max-length-bytes": settings.size_max_bytes,
        "x-stream-max-segment-size-bytes": max(SEGMENT_SIZE_BYTES_MIN, min(share, SEGMENT_SIZE_BYTES_MAX)),
    }
    table = encode_table(arguments)
    store = storage.open_own(AUDIT_DIRECTORY, AUDIT_QUEUE_ID, AUDIT, host.vhost_name, table)
    queue = make_queue(host, AUDIT, True, False, None, arguments, store)
    queue.id = AUDIT_QUEUE_ID
    host.windows.add(queue.order.memory)
    return queue


class Audit:
    """One per broker. queue: where the records go. lost_count: records that could not be appended, since the last one
    that could.
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
        self._asked = False
        # Records that have come so far; who asks when those up to this number are safe, in that order.
        self._count = 0
        self._asking: deque[tuple[int, Callable[[bool], None]]] = deque()
        # Records that this turn of the loop has appended.
        self._turn_number = -1
        self._direct_count = 0

    # -- what happens ------------------------------------------------------------------------------------------------

    def record(self, key: str, about: Mapping[str, object], actor: str) -> None:
        """What `Events` tells. Cost: 60 us where it is recorded."""
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
        """A connection's, as its event tells it."""
        host, port = str(about.get("peer_host", "")), about.get("peer_port", 0)
        where = EventSource("amqp", f"{host}:{port}", str(about.get("connection_name", "")))
        name, error = str(about.get("name", "")), str(about.get("error", ""))
        kept = {"name": name, "reason": error, **{key: about[key] for key in KEPT_OF_LOGIN if key in about}}
        self._login(AuditRecord(key, at_ms, name, where, kept, REFUSED if error else OK), host)

    def login(self, name: str, peer: str, error: str = "", certificate: Mapping[str, object] | None = None) -> None:
        """At the admin API. error: why not; "" for a success. certificate: that of a TLS client, as events tell it."""
        key = LOGIN_REFUSED if error else LOGIN
        at_ms = time.time_ns() // 1_000_000
        about = {"name": name, "reason": error, **(certificate or {})}
        self._login(AuditRecord(key, at_ms, name, EventSource("http", peer), about, REFUSED if error else OK), peer)

    def _login(self, record: AuditRecord, host: str) -> None:
        """One source is an address where logins fail, whatever names it tries; a user's address where they succeed."""
        place = (record.where.front_end, network(host))
        if record.result == OK:
            self._logins.add((*place, record.user), record)
        else:
            self._refusals.add((*place, record.event), record)

    def refused(self, user: str, command: str, text: str, vhost: str = "") -> None:
        """A user may not do what he asked for. command: `queue.delete`, `PUT /api/users/u`."""
        where = _where(ORIGIN.get())
        at_ms = time.time_ns() // 1_000_000
        about = {"vhost": vhost, "name": command, "reason": text}
        record = AuditRecord(ACCESS_REFUSED, at_ms, user, where, about, REFUSED)
        self._refusals.add((where.front_end, where.peer.rpartition(":")[0], user, command), record)

    def message_request(self, user: str, request: str) -> None:
        """Count a request of the admin API that published or took messages. request: `POST /api/exchanges/...`."""
        where = _where(ORIGIN.get())
        record = AuditRecord(REQUEST, time.time_ns() // 1_000_000, user, where, {"name": request})
        self._requests.add((where.front_end, where.peer.rpartition(":")[0], user, request), record)

    # -- how it gets into the stream ---------------------------------------------------------------------------------

    def _write(self, record: AuditRecord) -> None:
        if len(self._waiting) >= WAITING_MAX:
            self._count_lost(1)
            return
        self._count += 1
        self._waiting.append(record)
        if self._asked:
            return
        if self._turn.number != self._turn_number:
            self._turn_number, self._direct_count = self._turn.number, 0
        self._direct_count += 1
        if self._direct_count > DIRECT_MAX:
            self._ask()
        else:
            self._work()

    def _ask(self) -> None:
        self._asked = True
        self._call_soon(self._go_on)

    def _go_on(self) -> None:
        self._asked = False
        self._work()

    def _work(self) -> None:
        """One slice of those that wait."""
        queue, waiting = self.queue, self._waiting
        try:
            queue.prepare()
        except LogNotOpen as opening:
            self._asked = True
            when_open(opening.destinations, self._go_on)
            return
        except ResourceError as error:
            log.error("audit log: %s", error.reply_text)
            self._count_lost(len(waiting))
            waiting.clear()
            self._answer()
            return
        until = time.perf_counter() + SLICE_S
        while waiting:
            self._append(waiting.popleft())
            if waiting and time.perf_counter() >= until:
                self._ask()
                break
        self._answer()
        self._turn.schedule()

    def when_safe(self, done: Callable[[bool], None]) -> None:
        """`done(True)` when what has come so far is synced, `done(False)` when it cannot be; in here where it is known.
        A record that follows in a slice is waited for.
        """
        self._asking.append((self._count, done))
        self._answer()

    def _answer(self) -> None:
        """Who asks for nothing that still waits has his answer of the log."""
        there = self._count - len(self._waiting)
        store = self.queue.store
        while self._asking and self._asking[0][0] <= there:
            done = self._asking.popleft()[1]
            if store is None:
                done(False)
            else:
                store.when_safe(store.next_offset - 1, done)

    def _append(self, record: AuditRecord) -> None:
        if self.lost_count and not self._failed():
            lost = AuditRecord(LOST, record.at_ms, INTERNAL, EventSource(), {"name": str(self.lost_count)})
            if self.queue.enqueue(message_of(lost)):
                log.warning("audit log: records are taken again; %d are lost", self.lost_count)
                self.lost_count = 0
        if self._failed() or not self.queue.enqueue(message_of(record)):
            self._count_lost(1)

    def _failed(self) -> bool:
        return self.queue.store is not None and self.queue.store.failed

    def _count_lost(self, count: int) -> None:
        if not self.lost_count and count:
            log.error("audit log: it takes no records, and they are lost from now on; the broker goes on without them")
        self.lost_count += count

    def written_not(self, ranges: list[tuple[int, int]]) -> None:
        """A write has failed: these offsets of the stream are not there."""
        self._count_lost(sum(last - first + 1 for first, last in ranges))
        self.queue.on_write_failed(ranges)

    def trouble(self) -> str:
        """What the health check says; empty: nothing is amiss."""
        if self._failed():
            return "the audit log accepts nothing more"
        return f"{self.lost_count} records of the audit log are lost" if self.lost_count else ""

    def stop(self) -> None:
        """The broker stops, its logs are open still: what is counted or waits is appended."""
        self._refusals.finish()
        self._logins.finish()
        self._requests.finish()
        while self._waiting and self.queue.opening is None:
            self._append(self._waiting.popleft())
        self._answer()


def _where(origin: EventOrigin | None) -> EventSource:
    if origin is None:
        return EventSource()
    host, port = origin.peer
    peer = f"{host}:{port}" if host else ""
    return (
        EventSource(origin.name, peer) if isinstance(origin, AuditedRequest) else EventSource("amqp", peer, origin.name)
    )
