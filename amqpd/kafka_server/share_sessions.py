"""ShareFetch and ShareAcknowledge, and the share sessions that they belong to.

A session is what a member of a share group has at this broker: its partitions, and the records that it has acquired. It
belongs to the connection that began it. The epoch of each request must be the next one:

    0                 begin a session; an old one of the member ends
    the next number   continue; the request names new partitions, those with acknowledgements, and forgotten ones
    -1                acknowledge, then end the session

    no such session                          122 SHARE_SESSION_NOT_FOUND
    another epoch, or 0 in ShareAcknowledge  123 INVALID_SHARE_SESSION_EPOCH
    SESSIONS_MAX of a connection             133 SHARE_SESSION_LIMIT_REACHED
    acknowledgements with epoch 0            42 INVALID_REQUEST
    a range without offsets, an unknown      42 for the topic, of which nothing is acknowledged
    type, or RENEW in a request that does
    not announce it
    an offset that is not acquired           121 INVALID_RECORD_STATE for the topic, of which nothing is acknowledged;
                                             in a stream one below the group's start offset is ignored
    no topic, no permission, a failed log    100, 29, 56 for the topic
    a queue in exclusive use                 29 TOPIC_AUTHORIZATION_FAILED, with a text

What a session has acquired is released when it ends: also when its connection closes, or when its group is deleted. The
session of a member that has left the group or expired ends LEFT_MS later. librdkafka leaves by another connection than
that of its last acknowledgements.

A ShareFetch waits until there is something for it or its time is over; the records that arrive in a turn of the event
loop are answered in that turn. Only the first unanswered request of a connection acquires records, so that a
connection has at most one response in memory.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from amqpd.broker import consume
from amqpd.broker.flow.timers import CallTimer, Timer
from amqpd.broker.vhost.limits import CONSUMER_BYTE_RATE
from amqpd.errors import AccessRefused
from amqpd.kafka_server import errors, topics
from amqpd.kafka_server.connection import Api, Call
from amqpd.kafka_server.messages import NAME_MAX
from amqpd.kafka_server.pace import Steps
from amqpd.kafka_server.quotas import count_bytes
from amqpd.kafka_server.share_queue import FetchCredit, ShareQueueConsumer, ShareSource
from amqpd.kafka_server.share_wire import (
    SHARE_ACKNOWLEDGE,
    SHARE_FETCH,
    TOPICS_MAX,
    SharePartitionAnswer,
    ShareRequest,
    are_possible,
    decode_acknowledge,
    decode_fetch,
    encode_error,
    encode_steps,
)

if TYPE_CHECKING:
    from uuid import UUID

    from amqpd.broker.broker import Broker
    from amqpd.broker.consumer import QueueBase
    from amqpd.broker.queue.queue import Queue
    from amqpd.kafka_server.connection import KafkaClientConnection
    from amqpd.kafka_server.share_stream import ShareStreams

log = logging.getLogger(__name__)

SESSIONS_MAX: Final = 10
"""Sessions of one connection."""
RESPONSE_BYTES_MAX: Final = 16 << 20
WAIT_MS_MAX: Final = 300_000
FINAL: Final = -1
EPOCH_MAX: Final = 0x7FFF_FFFF
LEFT_MS: Final = 2000
"""Time for the last acknowledgements of a member that has left its group."""

SessionKey = tuple[str, str, str]
"""Vhost id, group, member id."""


class SessionPartition:
    """A partition of a session.

    Attributes:
        source: None until the log is open, or after an error.
        error, text: why there is no source.
        is_new: no response has had it yet.
    """

    def __init__(self, place: tuple[UUID, int]) -> None:
        self.place = place
        self.name = ""
        self.source: ShareSource | None = None
        self.error = errors.NONE
        self.text = ""
        self.is_new = True
        self.is_closed = False

    def close(self) -> None:
        self.is_closed = True
        if self.source is not None:
            self.source.close()
            self.source = None

    def fail(self, error: int) -> None:
        self.close()
        self.error = error
        self.text = ""


class ShareSession:
    """A session.

    Attributes:
        next_epoch: of the next request.
        fetch: the ShareFetch without an answer.
        left_timer: ends the session of a member that has left.
    """

    def __init__(self, key: SessionKey, connection: KafkaClientConnection, end: Callable[[SessionKey], None]) -> None:
        self.key = key
        self.connection = connection
        self.left_timer = CallTimer(partial(end, key))
        self.next_epoch = 1
        self.partitions: dict[tuple[UUID, int], SessionPartition] = {}
        self.fetch: _ShareFetch | None = None

    def close(self) -> None:
        """Release all records."""
        if self.fetch is not None:
            self.fetch.cancel()
        for partition in self.partitions.values():
            partition.close()
        self.partitions = {}

    def rotate(self) -> None:
        """Put the first partition last, so that none is always served first."""
        if len(self.partitions) > 1:
            first = next(iter(self.partitions))
            self.partitions[first] = self.partitions.pop(first)


class ShareSessions:
    """All sessions."""

    def __init__(self, broker: Broker, streams: ShareStreams) -> None:
        self.broker = broker
        self.streams = streams
        self.lock_ms = broker.settings.kafka.share_lock_ms
        self._sessions: dict[SessionKey, ShareSession] = {}
        self._of_connection: dict[KafkaClientConnection, dict[SessionKey, ShareSession]] = {}

    def begin(self, call: Call, key: SessionKey) -> ShareSession | int:
        """Begin a session, and end an old one of the member. Return an error code if there are too many."""
        self.end(key)
        connection = call.connection
        own = self._of_connection.get(connection)
        if own is None:
            own = self._of_connection[connection] = {}
            connection.on_close.append(partial(self._connection_closed, connection))
        if len(own) >= SESSIONS_MAX:
            return errors.SHARE_SESSION_LIMIT_REACHED
        session = own[key] = self._sessions[key] = ShareSession(key, connection, self.end)
        return session

    def find(self, call: Call, key: SessionKey, epoch: int) -> ShareSession | int:
        """Return the session if this is its next epoch, and expect the one after it; otherwise an error code."""
        session = self._sessions.get(key)
        if session is None or session.connection is not call.connection:
            return errors.SHARE_SESSION_NOT_FOUND
        if epoch == FINAL:
            return session
        if epoch != session.next_epoch:
            return errors.INVALID_SHARE_SESSION_EPOCH
        session.next_epoch = 1 if epoch == EPOCH_MAX else epoch + 1
        return session

    def is_open(self, session: ShareSession) -> bool:
        """Return whether the session has not ended, and the member has no other one."""
        return self._sessions.get(session.key) is session

    def end(self, key: SessionKey) -> None:
        """End the session of a member, if it has one."""
        session = self._sessions.pop(key, None)
        if session is not None:
            self._of_connection.get(session.connection, {}).pop(key, None)
            self.broker.timers.cancel(session.left_timer)
            session.close()

    def end_group(self, vhost_id: str, group: str) -> None:
        """End the sessions of a group that is being deleted. Its members have left; a session lives longer."""
        for key in [key for key in self._sessions if key[:2] == (vhost_id, group)]:
            self.end(key)

    def member_left(self, key: SessionKey) -> None:
        """Answer the fetch of a member that has left its group, and end its session after LEFT_MS."""
        session = self._sessions.get(key)
        if session is not None:
            timers = self.broker.timers
            timers.arm(session.left_timer, timers.now_ms() + LEFT_MS)
            if session.fetch is not None:
                session.fetch.answer_soon()

    def _connection_closed(self, connection: KafkaClientConnection) -> None:
        for key in self._of_connection.pop(connection, {}):
            self.end(key)

    def on_offsets_lost(self, queue: QueueBase, ranges: list[tuple[int, int]]) -> None:
        """Handle a failed write, see `BrokerListener`."""
        for session in self._sessions.values():
            for partition in session.partitions.values():
                if partition.source is not None:
                    partition.source.on_offsets_lost(queue, ranges)

    # -- partitions

    def add_partition(self, call: Call, session: ShareSession, place: tuple[UUID, int]) -> None:
        """Add a partition to a session; its records come when its log is open."""
        partition = session.partitions[place] = SessionPartition(place)
        found = topics.find_partition(call.session, *place, "read")
        if isinstance(found, int):
            partition.error = found
            return
        partition.name = found.topic.name
        topics.open_queue(found.queue, partial(self._opened, call, session, partition, found))

    def _opened(
        self,
        call: Call,
        session: ShareSession,
        partition: SessionPartition,
        found: topics.TopicPartition,
        is_open: bool,
    ) -> None:
        if partition.is_closed or session.connection.closed:
            return
        queue = found.queue
        if queue.is_deleted():
            partition.error = errors.UNKNOWN_TOPIC_ID
        elif not is_open:
            partition.error = errors.STORAGE_ERROR
        elif not found.is_work_queue:
            self._add_stream(call, session, partition, found)
        else:
            self._add_consumer(call, session, partition, queue)
        if session.fetch is not None:
            session.fetch.partition_changed(partition)

    def _add_stream(
        self, call: Call, session: ShareSession, partition: SessionPartition, found: topics.TopicPartition
    ) -> None:
        if session.connection.server.coordinator.offsets.load():
            _, group, member_id = session.key
            partition.source = self.streams.join(call.session.vhost, group, found, member_id)
        else:
            partition.error = errors.NOT_LEADER_OR_FOLLOWER  # the states are being read: clients try again

    def _add_consumer(self, call: Call, session: ShareSession, partition: SessionPartition, queue: Queue) -> None:
        _, group, member_id = session.key
        try:
            consume.check_exclusive(queue, False)
        except AccessRefused as error:
            partition.error, partition.text = errors.TOPIC_AUTHORIZATION_FAILED, error.text
        else:
            tag = f"kafka-share {group} {member_id}"
            partition.source = ShareQueueConsumer(call.session, queue, tag, self.lock_ms)


class _Acknowledgements:
    """The acknowledgements of a request, until all have their results.

    Attributes:
        answers: one for each partition that the request acknowledges.
        done: called when all have their results.
    """

    def __init__(self, done: Callable[[], None]) -> None:
        self.answers: dict[tuple[UUID, int], SharePartitionAnswer] = {}
        self.done = done
        self._open_count = 1

    def begin(self, session: ShareSession, request: ShareRequest) -> Steps[None]:
        """Acknowledge, a step for each partition."""
        for asked in request.topics:
            for partition in asked.partitions:
                if not partition.acks:
                    continue
                yield
                answer = self.answers[asked.id, partition.number] = SharePartitionAnswer(asked.id, partition.number)
                own = session.partitions.get((asked.id, partition.number))
                if not are_possible(partition.acks, request.renews):
                    answer.ack_error = errors.INVALID_REQUEST
                elif own is None or own.source is None:
                    answer.ack_error = (
                        errors.UNKNOWN_TOPIC_OR_PARTITION if own is None else own.error or errors.STORAGE_ERROR
                    )
                else:
                    self._open_count += 1
                    own.source.acknowledge(partition.acks, partial(self._acknowledged, answer))
        self._end_one()

    def _acknowledged(self, answer: SharePartitionAnswer, error: int) -> None:
        answer.ack_error = error
        self._end_one()

    def _end_one(self) -> None:
        self._open_count -= 1
        if self._open_count == 0:
            self.done()

    @property
    def are_done(self) -> bool:
        return self._open_count == 0


class _ShareFetch(Timer):
    """A ShareFetch request until its answer. The timer is that of `max_wait_ms`."""

    def __init__(self, sessions: ShareSessions, call: Call, session: ShareSession, request: ShareRequest) -> None:
        super().__init__()
        self._sessions = sessions
        self._call = call
        self._session = session
        may_acquire = request.max_records > 0 and request.max_bytes > 0 and call.connection.is_next(call)
        quota_bytes = call.connection.server.quotas.fetch_bytes(call) if may_acquire else 0
        may_acquire = quota_bytes > 0
        records = request.max_records if may_acquire else 0
        size_bytes = min(request.max_bytes, RESPONSE_BYTES_MAX, quota_bytes)
        self._credit = FetchCredit(records, request.is_strict, size_bytes, self.wake)
        self._size_bytes = self._credit.size_bytes
        self._min_bytes = request.min_bytes
        self._is_due = not may_acquire or request.max_wait_ms <= 0
        self._is_done = self._is_waking = self._has_begun = False
        self._request = request
        self._may_acquire = may_acquire
        session.fetch = self
        self._acks = _Acknowledgements(self.wake)

    def begin(self) -> Steps[None]:
        """Acknowledge, then acquire records."""
        sessions, session, request = self._sessions, self._session, self._request
        yield from self._acks.begin(session, request)
        yield from self._update_partitions(request)
        if session.fetch is not self:  # its session has ended
            return
        broker = sessions.broker
        if not self._is_due:
            wait_ms = min(request.max_wait_ms, WAIT_MS_MAX)
            broker.timers.arm(self, broker.timers.now_ms() + wait_ms)
        session.rotate()
        if self._may_acquire:
            for partition in list(session.partitions.values()):
                self.partition_changed(partition)
                yield
                if session.fetch is not self:
                    return
        self._has_begun = True
        self.wake()

    def _update_partitions(self, request: ShareRequest) -> Steps[None]:
        """Remove forgotten partitions and those that the user may not read any more, and add new ones."""
        call, session = self._call, self._session
        for partition in list(session.partitions.values()):
            yield
            if session.fetch is not self:  # its session has ended
                return
            if partition.place in request.forgotten:
                partition.close()
                del session.partitions[partition.place]
            elif partition.source is not None and not topics.is_topic_permitted(call.session, partition.name, "read"):
                partition.fail(errors.TOPIC_AUTHORIZATION_FAILED)
            elif partition.error != errors.NONE:  # try again; clients keep it in their session
                self._sessions.add_partition(call, session, partition.place)
        for topic in request.topics:
            for asked in topic.partitions:
                yield
                if session.fetch is not self:
                    return
                place = (topic.id, asked.number)
                if place not in session.partitions and place not in request.forgotten:
                    if len(session.partitions) >= TOPICS_MAX:
                        return
                    self._sessions.add_partition(call, session, place)

    def partition_changed(self, partition: SessionPartition) -> None:
        """Acquire records of a partition whose log is open."""
        if partition.source is not None:
            partition.source.allow(self._credit)
        self.wake()

    def wake(self) -> None:
        """Look at the end of the turn whether the request can be answered."""
        if not self._is_waking and not self._is_done:
            self._is_waking = True
            self._sessions.broker.turn.flush_later(self)

    def fire(self) -> None:
        self.answer_soon()

    def answer_soon(self) -> None:
        """Answer at the end of the turn, also without records."""
        self._is_due = True
        self.wake()

    def flush(self) -> None:
        """Answer if there is something, or the time is over. Called after the logs of the turn were written."""
        self._is_waking = False
        if self._is_done or not self._has_begun or not self._acks.are_done:
            return
        acquired_bytes = self._size_bytes - self._credit.size_bytes
        is_enough = acquired_bytes >= max(self._min_bytes, 1) or self._credit.is_used_up()
        if self._is_due or is_enough or any(self._has_error(each) for each in self._session.partitions.values()):
            try:
                self._answer()
            except Exception:
                # A caller is the turn, which must go on.
                log.exception("a bug in amqpd, please report it", extra=self._call.connection.log_fields())
                self._call.connection.close("")

    @staticmethod
    def _has_error(each: SessionPartition) -> bool:
        return each.error != errors.NONE or (each.source is not None and each.source.error != errors.NONE)

    def _answer(self) -> None:
        answers = self._acks.answers
        for each in self._session.partitions.values():
            answer = answers.get(each.place) or SharePartitionAnswer(*each.place)
            source = each.source
            if source is not None:
                source.allow(None)
                answer.acquired, answer.records = source.take()
                if source.error != errors.NONE:
                    each.fail(source.error)
            answer.error, answer.text = each.error, each.text
            if answer.records or answer.error or each.is_new:
                answers[each.place] = answer
            each.is_new = False
        self._end()
        found = list(answers.values())
        size_bytes = sum(len(batch) for answer in found for batch in answer.records)
        throttle_ms = count_bytes(self._call, CONSUMER_BYTE_RATE, size_bytes)
        _reply(self._call, found, self._sessions.lock_ms, throttle_ms)
        self._call.connection.flush()

    def cancel(self) -> None:
        """Release the request without an answer of its own: its session ends."""
        if not self._is_done:
            self._end()
            self._call.reply_bytes(encode_error(self._call, errors.SHARE_SESSION_NOT_FOUND, self._sessions.lock_ms))

    def _end(self) -> None:
        self._is_done = True
        self._session.fetch = None
        self._sessions.broker.timers.cancel(self)
        for each in self._session.partitions.values():
            if each.source is not None:
                each.source.allow(None)
        # Both hold a method of this object: without this, a reference cycle would keep request and connection.
        self._credit.wake = self._acks.done = _do_nothing


def _do_nothing() -> None:
    """An answered request need not wake."""


# -- requests


def _reply(call: Call, answers: list[SharePartitionAnswer], lock_ms: int, throttle_ms: int = 0) -> None:
    """Answer with these partitions."""

    def steps() -> Steps[None]:
        call.reply_bytes(*(yield from encode_steps(call, answers, lock_ms, throttle_ms=throttle_ms)))

    call.connection.server.pace.run(call.connection, steps())


def _key(call: Call, request: ShareRequest) -> SessionKey:
    return call.session.vhost.id, request.group, request.member_id


def _refusal(call: Call, request: ShareRequest) -> int:
    """Return why a request is refused as a whole, 0 if it is not."""
    if not 0 < len(request.group) <= NAME_MAX:
        return errors.INVALID_GROUP_ID
    if not 0 < len(request.member_id) <= NAME_MAX:
        return errors.INVALID_REQUEST
    if not topics.is_permitted(call.session, request.group, "read"):
        return errors.GROUP_AUTHORIZATION_FAILED
    has_acks = any(partition.acks for topic in request.topics for partition in topic.partitions)
    if request.epoch == 0 and call.api.key == SHARE_FETCH:
        return errors.INVALID_REQUEST if has_acks else errors.NONE
    return errors.INVALID_SHARE_SESSION_EPOCH if request.epoch == 0 else errors.NONE


def _share_fetch(call: Call) -> Steps[None]:
    request = yield from decode_fetch(call)
    call.frame = b""  # a request that waits does not keep it
    sessions = call.connection.server.share_sessions
    error = _refusal(call, request)
    if error != errors.NONE:
        call.reply_bytes(encode_error(call, error, sessions.lock_ms))
        return
    key = _key(call, request)
    session = sessions.begin(call, key) if request.epoch == 0 else sessions.find(call, key, request.epoch)
    if isinstance(session, int):
        call.reply_bytes(encode_error(call, session, sessions.lock_ms))
        return
    if session.fetch is not None:  # a client sends the next request after the answer
        session.fetch.cancel()
    if request.epoch == FINAL:
        yield from _end_after_acks(call, sessions, session, request)
        return
    yield from _ShareFetch(sessions, call, session, request).begin()


def _share_acknowledge(call: Call) -> Steps[None]:
    request = yield from decode_acknowledge(call)
    call.frame = b""
    sessions = call.connection.server.share_sessions
    error = _refusal(call, request)
    session = error if error != errors.NONE else sessions.find(call, _key(call, request), request.epoch)
    if isinstance(session, int):
        call.reply_bytes(encode_error(call, session, sessions.lock_ms))
        return
    yield from _end_after_acks(call, sessions, session, request)


def _end_after_acks(call: Call, sessions: ShareSessions, session: ShareSession, request: ShareRequest) -> Steps[None]:
    """Acknowledge, end the session if the request says so, and answer."""

    def done() -> None:
        if not call.connection.closed:
            _reply(call, list(acks.answers.values()), sessions.lock_ms)

    acks = _Acknowledgements(done)
    yield from acks.begin(session, request)
    if request.epoch == FINAL and sessions.is_open(session):
        sessions.end(session.key)


APIS: Final = (
    Api(SHARE_FETCH, "ShareFetch", 1, 2, 0, _share_fetch),
    Api(SHARE_ACKNOWLEDGE, "ShareAcknowledge", 1, 2, 0, _share_acknowledge),
)
