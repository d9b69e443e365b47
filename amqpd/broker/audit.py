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
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from amqpd.auth.login_throttle import network
from amqpd.broker.record import ACCESS_REFUSED, LOGIN, LOGIN_REFUSED, LOST, OK, REFUSED, REQUEST, RULES, TOLD_APART, Record, Where, message_of
from amqpd.broker.repeats import Repeats
from amqpd.broker.destination import NotOpenYet
from amqpd.broker.events import INTERNAL, ORIGIN, Origin
from amqpd.broker.system_queues import AUDIT, AUDIT_DIRECTORY, AUDIT_QUEUE_ID
from amqpd.broker.queue.factory import make_queue
from amqpd.broker.queue.log_opener import when_open
from amqpd.errors import ResourceError
from amqpd.protocol.field_table import encode_table

if TYPE_CHECKING:
    from amqpd.broker.flow.loop_turn import Turn
    from amqpd.broker.queue.services import QueueHost
    from amqpd.broker.queue.queue import Queue
    from amqpd.config.schema import AuditSettings
    from amqpd.storage.storage import Storage

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


class Request:
    """One request to the admin API, as ORIGIN. name: `http`, or `amqpctl` for the unix socket. told_count: records that
    it has brought so far.
    """

    def __init__(self, name: str, peer: tuple[str, int]) -> None:
        self.name = name
        self.peer = peer
        self.told_count = 0


def open_stream(storage: Storage, host: QueueHost, settings: AuditSettings) -> Queue:
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
    host.windows.add(queue.order)
    return queue


class Audit:
    """One per broker. queue: where the records go. lost_count: records that could not be appended, since the last one
    that could.
    """

    def __init__(
        self,
        queue: Queue,
        turn: Turn,
        call_soon: Callable[[Callable[[], None]], object],
        call_later: Callable[[float, Callable[[], None]], object],
    ) -> None:
        self.queue = queue
        self.lost_count = 0
        self._turn = turn
        self._call_soon = call_soon
        self._refusals = Repeats(self._write, call_later, REFUSALS_S)
        self._logins = Repeats(self._write, call_later, LOGINS_S)
        self._requests = Repeats(self._write, call_later, REQUESTS_S)
        self._waiting: deque[Record] = deque()
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
            self._write(Record(key, at_ms, INTERNAL, Where(), about))
        else:
            if isinstance(origin, Request):
                origin.told_count += 1
            self._write(Record(key, at_ms, actor, _where(origin), about))

    def _login_of(self, key: str, about: Mapping[str, object], at_ms: int) -> None:
        """A connection's, as its event tells it."""
        host, port = str(about.get("peer_host", "")), about.get("peer_port", 0)
        where = Where("amqp", f"{host}:{port}", str(about.get("connection_name", "")))
        name, error = str(about.get("name", "")), str(about.get("error", ""))
        kept = {"name": name, "reason": error, **{key: about[key] for key in KEPT_OF_LOGIN if key in about}}
        self._login(Record(key, at_ms, name, where, kept, REFUSED if error else OK), host)

    def login(
        self, name: str, peer: str, error: str = "", certificate: Mapping[str, object] | None = None
    ) -> None:
        """At the admin API. error: why not; "" for a success. certificate: that of a TLS client, as events tell it."""
        key = LOGIN_REFUSED if error else LOGIN
        at_ms = time.time_ns() // 1_000_000
        about = {"name": name, "reason": error, **(certificate or {})}
        self._login(Record(key, at_ms, name, Where("http", peer), about, REFUSED if error else OK), peer)

    def _login(self, record: Record, host: str) -> None:
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
        record = Record(ACCESS_REFUSED, at_ms, user, where, about, REFUSED)
        self._refusals.add((where.front_end, where.peer.rpartition(":")[0], user, command), record)

    def message_request(self, user: str, request: str) -> None:
        """Count a request of the admin API that published or took messages. request: `POST /api/exchanges/...`."""
        where = _where(ORIGIN.get())
        record = Record(REQUEST, time.time_ns() // 1_000_000, user, where, {"name": request})
        self._requests.add((where.front_end, where.peer.rpartition(":")[0], user, request), record)

    # -- how it gets into the stream ---------------------------------------------------------------------------------

    def _write(self, record: Record) -> None:
        if len(self._waiting) >= WAITING_MAX:
            self._lose(1)
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
        except NotOpenYet as opening:
            self._asked = True
            when_open(opening.destinations, self._go_on)
            return
        except ResourceError as error:
            log.error("audit log: %s", error.reply_text)
            self._lose(len(waiting))
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
        self._turn.want()

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

    def _append(self, record: Record) -> None:
        if self.lost_count and not self._failed():
            lost = Record(LOST, record.at_ms, INTERNAL, Where(), {"name": str(self.lost_count)})
            if self.queue.offer(message_of(lost)):
                log.warning("audit log: records are taken again; %d are lost", self.lost_count)
                self.lost_count = 0
        if self._failed() or not self.queue.offer(message_of(record)):
            self._lose(1)

    def _failed(self) -> bool:
        return self.queue.store is not None and self.queue.store.failed

    def _lose(self, count: int) -> None:
        if not self.lost_count and count:
            log.error("audit log: it takes no records, and they are lost from now on; the broker goes on without them")
        self.lost_count += count

    def written_not(self, ranges: list[tuple[int, int]]) -> None:
        """A write has failed: these offsets of the stream are not there."""
        self._lose(sum(last - first + 1 for first, last in ranges))
        self.queue.unwritten(ranges)

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


def _where(origin: Origin | None) -> Where:
    if origin is None:
        return Where()
    host, port = origin.peer
    peer = f"{host}:{port}" if host else ""
    return Where(origin.name, peer) if isinstance(origin, Request) else Where("amqp", peer, origin.name)
