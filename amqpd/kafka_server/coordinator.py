"""The coordinator of consumer groups: FindCoordinator, JoinGroup, SyncGroup, Heartbeat, LeaveGroup.

groups.py and consumer_group.py decide, this module has the clock, the timers and the connections. A group belongs to a
vhost: two vhosts may have groups of one name. Members are in memory only, so after a restart of the broker they join
again. A closed connection does not remove its member, its session timeout does; only the answer that waits is dropped.

A group without members and offsets is forgotten. A sweep removes the offsets of a group that has had neither members
nor commits for OFFSETS_KEPT_MS, counted again from each start of the broker. It also removes those of deleted vhosts
and topics, which are void at once. Until the offsets of a deleted group are removed, requests about it get 15, and
nothing can be committed.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, TypeVar

from amqpd.broker.flow.timers import CallTimer, Timer
from amqpd.kafka_server import consumer_group_requests, errors, group_admin, group_offsets, topics
from amqpd.kafka_server.committed_offsets import CommittedOffset, CommittedOffsets, NewOffset, OffsetKey
from amqpd.kafka_server.compacted_log import LogHost
from amqpd.kafka_server.connection import Call, typed_api
from amqpd.kafka_server.consumer_group import ConsumerProtocolGroup
from amqpd.kafka_server.groups import ConsumerGroup, JoinAnswer, JoinRequest, SyncAnswer, SyncRequest
from amqpd.kafka_server.messages import NAME_MAX, NODE_ID
from amqpd.kafka_server.pace import Pace, Steps
from amqpd.kafka_server.topics import Permission, is_permitted, record_refusal
from amqpd.kafka_server.transaction_coordinator import TransactionCoordinator

if TYPE_CHECKING:
    from amqpd.broker.broker import Broker
    from amqpd.broker.queue.queue import Queue
    from amqpd.broker.session import Session
    from amqpd.broker.vhost.vhost import VHost

PROTOCOLS_MAX: Final = 100
SESSION_TIMEOUT_MS_MIN: Final = 6_000
SESSION_TIMEOUT_MS_MAX: Final = 30 * 60_000
GROUPS_MAX: Final = 10_000
"""With members, in a vhost."""
METADATA_BYTES_MAX: Final = 64 << 20
"""Metadata and assignments of the members of all groups of the broker."""
OFFSETS_KEPT_MS: Final = 7 * 24 * 3_600_000
SWEEP_MS: Final = 3_600_000
SWEEP_STEPS: Final = 200
"""Groups and offsets that one turn of the event loop looks at."""
ANSWERS_AT_ONCE: Final = 50
"""In groups with more members, each answer of a rebalance is made when there is time for it."""
GROUP_KEY: Final = 0
TRANSACTION_KEY: Final = 1


G = TypeVar("G", ConsumerGroup, ConsumerProtocolGroup)


class GroupEntry(Timer):
    """A group. The timer is that of what is due next in it.

    Attributes:
        size_bytes, is_used: as counted in the coordinator's totals.
    """

    def __init__(self, vhost_id: str, group: ConsumerGroup, on_time: Callable[[GroupEntry], None]) -> None:
        super().__init__()
        self.vhost_id = vhost_id
        self.group: ConsumerGroup | ConsumerProtocolGroup = group
        self.size_bytes = 0
        self.is_used = False
        self._on_time = on_time

    def fire(self) -> None:
        self._on_time(self)

    def group_of(self, kind: type[G], now_ms: int) -> G | None:
        """Return the group as one of this protocol; None if it has members of the other one."""
        if not isinstance(self.group, kind):
            if not self.group.is_unused:
                return None
            self.group = kind(self.group.name, now_ms)
        return self.group

    def commit_error(self, member_id: str, instance_id: str | None, generation: int, now_ms: int) -> int:
        """Return the error code for a commit of offsets. generation: or epoch of the member."""
        if isinstance(self.group, ConsumerProtocolGroup):
            return self.group.commit_error(member_id, generation, now_ms)
        return self.group.commit_error(member_id, instance_id, generation, now_ms)


class GroupCoordinator:
    """The groups of all vhosts.

    Attributes:
        offsets: committed offsets.
        on_sweep: functions that return steps of each sweep.
        transactions: the coordinator of transactions, whose offsets are pending here.
    """

    def __init__(self, broker: Broker, pace: Pace) -> None:
        self.broker = broker
        self.pace = pace
        self._now_ms = broker.timers.now_ms
        self.offsets = CommittedOffsets(
            LogHost(broker.storage, broker.turn, broker.loop.call_soon, pace.later, self._now_ms),
            self._on_loaded,
            self._existing,
        )
        self.transactions = TransactionCoordinator(broker, self.offsets, pace, self._sweep_now)
        self._entries: dict[str, dict[str, GroupEntry]] = {}  # vhost id -> name -> group
        self._deleting: set[tuple[str, str]] = set()  # vhost id and name of groups whose offsets are being removed
        self._used: Counter[str] = Counter()  # vhost id -> groups with members
        self._size_bytes = 0
        self._sweep_timer = CallTimer(self._sweep)
        self.on_sweep: list[Callable[[], Iterator[None]]] = [self.transactions.swept]
        self._sweep_steps: Iterator[None] = iter(())

    def start(self) -> None:
        """Begin to read the committed offsets and the transactions. The first request does it, too."""
        self.offsets.load()
        self.transactions.start()

    def _on_loaded(self) -> None:
        self._sweep_now()
        self.transactions.on_loaded()

    def stop(self) -> None:
        """End all timers: the broker stops."""
        self.offsets.stop()
        self.transactions.stop()
        timers = self.broker.timers
        timers.cancel(self._sweep_timer)
        for entries in self._entries.values():
            for entry in entries.values():
                timers.cancel(entry)

    def vhost_deleted(self) -> None:
        """Remove the groups of a deleted vhost, and its offsets and transactional ids soon."""
        for vhost_id in self._entries.keys() - {vhost.id for vhost in self.broker.vhosts.values()}:
            self._used.pop(vhost_id, None)
            for entry in self._entries.pop(vhost_id).values():
                entry.group.kill()
                self._size_bytes -= entry.size_bytes
                self.broker.timers.cancel(entry)
        if self.offsets.is_loaded:
            self._sweep_now()

    # -- groups

    def now_ms(self) -> int:
        return self._now_ms()

    def error_for(self, name: str, session: Session, kind: Permission = "read") -> int:
        """Return the error code of every request about this group, 0 for none.

        Args:
            kind: the permission that the user needs for the group's name.
        """
        if not 0 < len(name) <= NAME_MAX:
            return errors.INVALID_GROUP_ID
        if not is_permitted(session, name, kind):
            record_refusal(session, "group", f"group '{name}'")
            return errors.GROUP_AUTHORIZATION_FAILED
        if self.is_deleting(session.vhost, name):
            return errors.COORDINATOR_NOT_AVAILABLE
        return self.load_error()

    def load_error(self) -> int:
        """Return 14 while the offsets are read, 15 if that failed, 0 afterwards."""
        if self.offsets.load():
            return errors.NONE
        return errors.COORDINATOR_NOT_AVAILABLE if self.offsets.has_failed else errors.COORDINATOR_LOAD_IN_PROGRESS

    def find(self, vhost: VHost, name: str) -> GroupEntry | None:
        """Return the group if it has members or offsets."""
        entry = self._entries.get(vhost.id, {}).get(name)
        if entry is None and self.offsets.has_group(vhost.id, name):
            entry = self._add(vhost.id, name)
        return entry

    def find_or_add(self, vhost: VHost, name: str) -> GroupEntry:
        """Return the group, a new one if needed."""
        return self.find(vhost, name) or self._add(vhost.id, name)

    def for_member(self, vhost: VHost, name: str) -> GroupEntry | None:
        """Return the group for a member that joins; None if GROUPS_MAX other groups of the vhost have members."""
        entry = self.find(vhost, name)
        if (entry is None or not entry.is_used) and self._used[vhost.id] >= GROUPS_MAX:
            return None
        return entry or self._add(vhost.id, name)

    def _add(self, vhost_id: str, name: str) -> GroupEntry:
        entry = GroupEntry(vhost_id, ConsumerGroup(name, self.now_ms()), self._on_time)
        self._entries.setdefault(vhost_id, {})[name] = entry
        return entry

    def entries(self, vhost: VHost) -> Iterator[GroupEntry]:
        """Yield the groups of a vhost, also while they change."""
        for name in list({**self.offsets.groups(vhost.id), **self._entries.get(vhost.id, {})}):
            entry = self.find(vhost, name)
            if entry is not None:
                yield entry

    def changed(self, entry: GroupEntry) -> None:
        """Count, arm or forget a group after a change. Every method that changes one calls it."""
        entries = self._entries.get(entry.vhost_id, {})
        group = entry.group
        if entries.get(group.name) is not entry:
            return
        self._size_bytes += group.size_bytes - entry.size_bytes
        entry.size_bytes = group.size_bytes
        if entry.is_used == group.is_unused:
            entry.is_used = not entry.is_used
            self._used[entry.vhost_id] += 1 if entry.is_used else -1
        if group.is_unused:
            self.broker.timers.cancel(entry)
            if not self.offsets.of_group(entry.vhost_id, group.name):
                del entries[group.name]
                if not entries:
                    del self._entries[entry.vhost_id]
            return
        self.broker.timers.arm_sooner(entry, group.due_ms)

    def delete(self, entry: GroupEntry, done: Callable[[bool], None]) -> None:
        """Delete a group without members, and its offsets.

        `done(True)` is called when that is synced; `done(False)` if some offsets could not be removed.
        """
        place = (entry.vhost_id, entry.group.name)
        self._deleting.add(place)
        entry.group.kill()
        self.changed(entry)
        self._entries.get(entry.vhost_id, {}).pop(entry.group.name, None)
        self.offsets.remove_group(*place, partial(self._deleted, place, done))

    def _deleted(self, place: tuple[str, str], done: Callable[[bool], None], safe: bool) -> None:
        self._deleting.discard(place)
        found = self._entries.get(place[0], {}).get(place[1])
        if found is not None:  # an administrator has looked at the group meanwhile
            self.changed(found)
        done(safe)

    def is_deleting(self, vhost: VHost, name: str) -> bool:
        """Return whether the offsets of a deleted group are being removed."""
        return (vhost.id, name) in self._deleting

    def has_room(self, size_bytes: int) -> bool:
        """Return whether members may bring so many bytes more."""
        return self._size_bytes + size_bytes <= METADATA_BYTES_MAX

    def _on_time(self, entry: GroupEntry) -> None:
        now_ms = self.now_ms()
        if entry.group.due_ms <= now_ms:
            entry.group.on_time(now_ms)
        self.changed(entry)

    # -- expiry

    def _sweep_now(self) -> None:
        self._sweep_steps = self._swept()
        self.broker.timers.arm(self._sweep_timer, self.now_ms())

    def _sweep(self) -> None:
        """Do some steps, and continue in the next turn. The next sweep begins after SWEEP_MS."""
        is_done = len(list(islice(self._sweep_steps, SWEEP_STEPS))) < SWEEP_STEPS
        if is_done:
            self._sweep_steps = self._swept()
        self.broker.timers.arm(self._sweep_timer, self.now_ms() + (SWEEP_MS if is_done else 0))

    def _swept(self) -> Iterator[None]:
        """Look at all groups and offsets, one in each step."""
        for steps in self.on_sweep:
            yield from steps()
        offsets = self.offsets
        vhosts = {vhost.id: vhost for vhost in self.broker.vhosts.values()}
        for vhost_id in list({**dict.fromkeys(offsets.vhost_ids()), **self._entries}):
            vhost = vhosts.get(vhost_id)
            for name in list({**offsets.groups(vhost_id), **self._entries.get(vhost_id, {})}):
                yield
                entry = None if vhost is None else self.find(vhost, name)
                for place in list(offsets.of_group(vhost_id, name)):
                    yield
                    key = OffsetKey(vhost_id, name, *place)
                    if vhost is None or entry is None or self._is_over(vhost, entry, key):
                        offsets.remove_later([key])
                if entry is not None:
                    self.changed(entry)

    def _is_over(self, vhost: VHost, entry: GroupEntry, key: OffsetKey) -> bool:
        """Return whether an offset has expired, or its partition was deleted."""
        value = self.committed(vhost, key)
        if value is None:
            return True
        group = entry.group
        if not group.is_unused or self.now_ms() - group.idle_since_ms < OFFSETS_KEPT_MS:
            return False
        # The commit of a transaction does not change idle_since_ms.
        return value.commit_ms <= self.broker.timers.agreed_ms() - OFFSETS_KEPT_MS

    def committed(self, vhost: VHost, key: OffsetKey) -> CommittedOffset | None:
        """Return a committed offset; None if there is none, or if its partition was deleted."""
        value = self.offsets.of_group(key.vhost_id, key.group).get((key.topic, key.partition))
        queue = None if value is None else topics.partition_queue(vhost, key.topic, key.partition)
        return value if value is not None and _is_of(value, queue) else None

    def is_pending(self, vhost: VHost, key: OffsetKey) -> bool:
        """Return whether an open transaction has an offset of a partition that was not deleted."""
        queue = topics.partition_queue(vhost, key.topic, key.partition)
        return queue is not None and self.offsets.is_pending(key, bytes.fromhex(queue.id))

    def _existing(self, offsets: Sequence[NewOffset]) -> list[NewOffset]:
        """Return those of some offsets of a vhost whose partitions were not deleted. Cost: some 0.5 us each."""
        vhost = topics.vhost_of_id(self.broker.vhosts, offsets[0][0].vhost_id) if offsets else None
        if vhost is None:
            return []
        found: dict[str, topics.PartitionedTopic | None] = {}
        existing: list[NewOffset] = []
        for key, value in offsets:
            if key.topic not in found:
                found[key.topic] = topics.topic_of_name(vhost, key.topic)
            topic = found[key.topic]
            queues = () if topic is None else topic.partitions
            if key.partition < len(queues) and _is_of(value, queues[key.partition]):
                existing.append((key, value))
        return existing


def _is_of(value: CommittedOffset, queue: Queue | None) -> bool:
    """Return whether an offset was committed to this stream or queue."""
    return queue is not None and bytes.fromhex(queue.id) == value.stream_id


class _Waiter:
    """An answer that waits, until its connection is closed. answer: sends it."""

    def __init__(
        self, call: Call, entry: GroupEntry, group: ConsumerGroup, member_id: str, answer: Callable[[Call, Any], None]
    ) -> None:
        self._call = call
        self._coordinator = call.connection.server.coordinator
        self._entry = entry
        self._group = group
        self._member_id = member_id
        self._answer = answer
        call.connection.on_close.append(self._closed)

    def done(self, answer: JoinAnswer | SyncAnswer) -> None:
        connection = self._call.connection
        if not connection.closed:
            connection.on_close.remove(self._closed)
        if len(self._group.members) > ANSWERS_AT_ONCE:
            self._coordinator.pace.later(partial(self._answer, self._call, answer))
        else:
            self._answer(self._call, answer)

    def _closed(self) -> None:
        self._group.drop_waiting(self._member_id, self.done, self._coordinator.now_ms())
        self._coordinator.changed(self._entry)


# -- FindCoordinator


def _find_coordinator(call: Call) -> None:
    request = call.request
    error = errors.NONE if request.key_type in (GROUP_KEY, TRANSACTION_KEY) else errors.INVALID_REQUEST
    message = None if error == errors.NONE else "only groups and transactions have a coordinator here"
    host, port = topics.broker_address(call.connection) if error == errors.NONE else ("", -1)
    found = {
        "node_id": NODE_ID if error == errors.NONE else -1,
        "host": host,
        "port": port,
        "error_code": error,
        "error_message": message,
    }
    if call.version < 4:
        call.reply(found)
        return
    topics.check_count(len(request.coordinator_keys))
    call.reply({"coordinators": [{"key": key, **found} for key in request.coordinator_keys]})


# -- JoinGroup, SyncGroup


def _join_group(call: Call) -> None:
    request = call.request
    coordinator = call.connection.server.coordinator
    version = call.version
    instance_id = request.group_instance_id
    joining = JoinRequest(
        request.member_id,
        instance_id,
        call.connection.client_id,
        call.connection.peer[0],
        request.session_timeout_ms,
        request.rebalance_timeout_ms,
        request.protocol_type,
        tuple((each.name, bytes(each.metadata)) for each in request.protocols[: PROTOCOLS_MAX + 1]),
        needs_member_id=version >= 4,
        can_skip_assignment=version >= 9,
    )
    error = coordinator.error_for(request.group_id, call.session) or _join_error(coordinator, joining)
    if error:
        _answer_join(call, JoinAnswer(error, request.member_id))
        return
    vhost = call.session.vhost
    find = coordinator.find if request.member_id else coordinator.for_member
    entry = find(vhost, request.group_id)
    if entry is None:
        error = errors.UNKNOWN_MEMBER_ID if request.member_id else errors.POLICY_VIOLATION
        _answer_join(call, JoinAnswer(error, request.member_id))
        return
    group = entry.group_of(ConsumerGroup, coordinator.now_ms())
    if group is None:
        _answer_join(call, JoinAnswer(errors.INCONSISTENT_GROUP_PROTOCOL, request.member_id))
        return
    new_id = f"{instance_id or call.connection.client_id or 'member'}-{secrets.token_hex(16)}"
    waiter = _Waiter(call, entry, group, request.member_id or new_id, _answer_join)
    group.join(joining, new_id, coordinator.now_ms(), waiter.done)
    coordinator.changed(entry)


def _join_error(coordinator: GroupCoordinator, joining: JoinRequest) -> int:
    if not SESSION_TIMEOUT_MS_MIN <= joining.session_timeout_ms <= SESSION_TIMEOUT_MS_MAX:
        return errors.INVALID_SESSION_TIMEOUT
    if joining.instance_id is not None and not 0 < len(joining.instance_id) <= NAME_MAX:
        return errors.INVALID_REQUEST
    if len(joining.protocols) > PROTOCOLS_MAX or len(joining.protocol_type) > NAME_MAX:
        return errors.POLICY_VIOLATION
    return errors.NONE if coordinator.has_room(joining.size_bytes) else errors.POLICY_VIOLATION


def _answer_join(call: Call, answer: JoinAnswer) -> None:
    is_joined = answer.error == errors.NONE
    none = "" if call.version < 7 else None
    members = [
        {"member_id": each.member_id, "group_instance_id": each.instance_id, "metadata": each.metadata}
        for each in answer.members
    ]
    call.reply(
        {
            "error_code": answer.error,
            "generation_id": answer.generation,
            "protocol_type": answer.protocol_type if is_joined else None,
            "protocol_name": answer.protocol if is_joined else none,
            "leader": answer.leader,
            "skip_assignment": answer.skip_assignment,
            "member_id": answer.member_id,
            "members": members,
        }
    )


def _find_group(call: Call) -> tuple[GroupEntry, ConsumerGroup] | int:
    """Return the group of a request of a member, or an error code."""
    coordinator = call.connection.server.coordinator
    error = coordinator.error_for(call.request.group_id, call.session)
    entry = None if error else coordinator.find(call.session.vhost, call.request.group_id)
    group = None if entry is None else entry.group_of(ConsumerGroup, coordinator.now_ms())
    return error or errors.UNKNOWN_MEMBER_ID if entry is None or group is None else (entry, group)


def _sync_group(call: Call) -> None:
    request = call.request
    coordinator = call.connection.server.coordinator
    found = _find_group(call)
    if isinstance(found, int):
        _answer_sync(call, SyncAnswer(found))
        return
    entry, group = found
    topics.check_count(len(request.assignments))
    assignments = {each.member_id: bytes(each.assignment) for each in request.assignments}
    if not coordinator.has_room(sum(len(each) for each in assignments.values())):
        _answer_sync(call, SyncAnswer(errors.POLICY_VIOLATION))
        return
    syncing = SyncRequest(
        request.member_id,
        request.group_instance_id,
        request.generation_id,
        request.protocol_type,
        request.protocol_name,
        assignments,
    )
    waiter = _Waiter(call, entry, group, request.member_id, _answer_sync)
    group.sync(syncing, coordinator.now_ms(), waiter.done)
    coordinator.changed(entry)


def _answer_sync(call: Call, answer: SyncAnswer) -> None:
    is_synced = answer.error == errors.NONE
    call.reply(
        {
            "error_code": answer.error,
            "protocol_type": answer.protocol_type if is_synced else None,
            "protocol_name": answer.protocol if is_synced else None,
            "assignment": answer.assignment,
        }
    )


# -- Heartbeat, LeaveGroup


def _heartbeat(call: Call) -> None:
    request = call.request
    coordinator = call.connection.server.coordinator
    found = _find_group(call)
    if isinstance(found, int):
        # While the offsets are read, there is no error, as in Kafka: clients do not expect one here.
        call.reply({"error_code": errors.NONE if found == errors.COORDINATOR_LOAD_IN_PROGRESS else found})
        return
    entry, group = found
    error = group.heartbeat(request.member_id, request.group_instance_id, request.generation_id, coordinator.now_ms())
    coordinator.changed(entry)
    call.reply({"error_code": error})


def _leave_group(call: Call) -> Steps[None]:
    request = call.request
    coordinator = call.connection.server.coordinator
    error = coordinator.error_for(request.group_id, call.session)
    entry = None if error else coordinator.find(call.session.vhost, request.group_id)
    members = [(request.member_id, None)]
    if call.version >= 3:
        members = [(each.member_id, each.group_instance_id) for each in request.members]
    topics.check_count(len(members))
    group = None if entry is None else entry.group_of(ConsumerGroup, coordinator.now_ms())
    left: list[dict[str, object]] = []
    for member_id, instance_id in members:
        yield
        result = errors.UNKNOWN_MEMBER_ID
        if group is not None:
            result = group.leave(member_id, instance_id, coordinator.now_ms())
        left.append({"member_id": member_id, "group_instance_id": instance_id, "error_code": result})
        if entry is not None:
            coordinator.changed(entry)
    if call.version < 3:
        call.reply({"error_code": error or left[0]["error_code"]})
    else:
        call.reply({"error_code": error, "members": [] if error else left})


APIS: Final = (
    typed_api(10, "FindCoordinator", 0, 5, 3, _find_coordinator),
    typed_api(11, "JoinGroup", 0, 9, 6, _join_group),
    typed_api(14, "SyncGroup", 0, 5, 4, _sync_group),
    typed_api(12, "Heartbeat", 0, 4, 4, _heartbeat),
    typed_api(13, "LeaveGroup", 0, 5, 4, _leave_group),
    *group_offsets.APIS,
    *group_admin.APIS,
    *consumer_group_requests.APIS,
)
