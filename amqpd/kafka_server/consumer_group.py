"""The state machine of one consumer group, for the consumer protocol (KIP-848).

The broker assigns partitions. There are three kinds of epochs:

    group epoch    rises with each change of members, subscriptions or topics
    target epoch   the group epoch for which the assignor computed the *target assignment*
    member epoch   the target epoch to which the member has come

Each member comes to its target by its heartbeats: it first gives back what it must not keep, then it gets what is free.
A partition has one owner at most, from the answer that assigns it until the member confirms that it has given it back,
leaves or is removed. A member is removed when it sends no heartbeat for SESSION_TIMEOUT_MS, or does not give back
partitions within its rebalance timeout. A *static* member has an instance id. When it leaves for a short time (epoch
-2), it keeps its target until its session ends, and the next member with that instance id gets it.

A target is computed by a heartbeat that finds a change, at once in small groups. Large groups wait between two of them
(COST_PER_MS), so that computing takes a tenth of the time at most; a member that joins meanwhile has no partitions yet.
A heartbeat that finds no change costs 4 us, in groups of any size.

The module has no IO and no clock: each method takes the time in monotonic milliseconds. `due_ms` is a lower bound of
the next time at which `on_time` has work.
"""

from __future__ import annotations

from collections import Counter
from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple

from amqpd.kafka_server import errors
from amqpd.kafka_server.assignors import (
    ASSIGNORS,
    DEFAULT,
    NO_PARTITIONS,
    Partition,
    Partitions,
    Topics,
)
from amqpd.kafka_server.groups import GROUP_BYTES_MAX, MEMBERS_MAX, NEVER

if TYPE_CHECKING:
    from amqpd.auth.internal_backend import User
    from amqpd.kafka_server.group_topics import GroupTopics

SESSION_TIMEOUT_MS: Final = 45_000
HEARTBEAT_MS: Final = 1_000
MEMBER_HEARTBEAT_MS: Final = 5
"""The heartbeat interval is at least this, times the members: 200 heartbeats a second."""
REBALANCE_TIMEOUT_MS_MAX: Final = 24 * 3_600_000
PATTERNS_MAX: Final = 16
"""Different regular expressions in one group. Each keeps the topics that match."""
COST_PER_MS: Final = 50
"""Topics, partitions and members that one millisecond between two target assignments allows, at 1 to 2 us each."""
EPOCH_MAX: Final = (1 << 31) - 2
NAME_BYTES: Final = 100
"""Memory of a subscribed name, besides its characters."""
PARTITION_BYTES: Final = 300
"""Memory of a partition in a target assignment, with the one that the member has."""

JOIN: Final = 0
LEAVE: Final = -1
LEAVE_STATIC: Final = -2
"""The epochs of a heartbeat that are requests."""


class MemberState(Enum):
    """The way of a member to its target.

    Attributes:
        STABLE: the member has its target.
        UNREVOKED: the member must give back partitions, and has not confirmed it yet.
        UNRELEASED: the member waits for partitions that other members have not given back.
    """

    STABLE = "Stable"
    UNREVOKED = "UnrevokedPartitions"
    UNRELEASED = "UnreleasedPartitions"


class GroupPhase(Enum):
    """State of the group; the values are Kafka's names."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"
    DEAD = "Dead"


class Subscription(NamedTuple):
    """The topics that a member wants.

    Attributes:
        pattern: a regular expression of RE2, "" for none.
        user: only topics that this user may read match the pattern. None without a pattern.
    """

    names: frozenset[str]
    pattern: str = ""
    user: User | None = None

    @property
    def size_bytes(self) -> int:
        return sum(map(len, self.names)) + NAME_BYTES * (len(self.names) + 1) + len(self.pattern)


class MemberHeartbeat(NamedTuple):
    """A ConsumerGroupHeartbeat. None: not changed since the last one.

    Attributes:
        member_id: chosen by the client; "" in version 0 for one that joins.
        epoch: of the member, or JOIN, LEAVE, LEAVE_STATIC.
        rebalance_timeout_ms: -1 if not changed.
        owned: the partitions that the member has.
    """

    group_id: str
    member_id: str
    epoch: int
    instance_id: str | None
    rack_id: str | None
    rebalance_timeout_ms: int
    names: frozenset[str] | None
    pattern: str | None
    assignor: str | None
    owned: Partitions | None
    client_id: str
    host: str
    user: User


class HeartbeatAnswer(NamedTuple):
    """The answer to a heartbeat.

    Attributes:
        assignment: the partitions that the member may have; None: not changed.
    """

    error: int
    message: str | None = None
    member_id: str | None = None
    epoch: int = 0
    interval_ms: int = 0
    assignment: Partitions | None = None


class ReconcilingMember:
    """One member.

    Attributes:
        epoch: see the module; JOIN until the first answer, LEAVE_STATIC while a static member is away.
        previous_epoch: accepted, too, from a member that has not got the last answer.
        assignor: its wish, "" for none.
        assigned: the partitions that it may have.
        revoking: partitions that it must give back.
        due_ms: end of its session.
        revoke_due_ms: when `revoking` must be given back.
    """

    def __init__(self, request: MemberHeartbeat) -> None:
        self.id = request.member_id
        self.instance_id = request.instance_id
        self.rack_id: str | None = None
        self.client_id = request.client_id
        self.host = request.host
        self.subscription = _NO_TOPICS
        self.assignor = ""
        self.rebalance_timeout_ms = SESSION_TIMEOUT_MS
        self.state = MemberState.STABLE
        self.epoch = JOIN
        self.previous_epoch = JOIN
        self.assigned = NO_PARTITIONS
        self.revoking = NO_PARTITIONS
        self.due_ms = NEVER
        self.revoke_due_ms = NEVER


_NO_TOPICS: Final = Subscription(frozenset())


class ConsumerProtocolGroup:
    """One group of the consumer protocol.

    Attributes:
        epoch, target_epoch: see the module.
        members: by id.
        targets: the target assignment, by member id.
        assignor: of the target assignment.
        idle_since_ms: when the last member left or offsets were last committed; expiry counts from here.
        subscription_bytes: of the different subscriptions.
    """

    def __init__(self, name: str, now_ms: int) -> None:
        self.name = name
        self.epoch = 0
        self.target_epoch = 0
        self.members: dict[str, ReconcilingMember] = {}
        self.targets: dict[str, Partitions] = {}
        self.assignor = DEFAULT
        self.due_ms = NEVER
        self.idle_since_ms = now_ms
        self.subscription_bytes = 0
        self._target_partitions = 0
        self._is_dead = False
        self._static: dict[str, str] = {}  # instance id -> member id
        self._owners: dict[Partition, str] = {}
        # Members with equal subscriptions share one object, and its topics as of `_topics_version`.
        self._shared: dict[Subscription, Subscription] = {}
        self._uses: Counter[Subscription] = Counter()
        self._resolved: dict[Subscription, Topics] = {}
        self._topics_version = -1
        self._update_due_ms = 0

    # -- requests

    def heartbeat(self, request: MemberHeartbeat, topics: GroupTopics, now_ms: int) -> HeartbeatAnswer:
        """Handle a heartbeat: a member joins, stays or leaves.

        Cost: see the module; for a member that has not come to its target some us per partition of it.
        """
        if self.epoch >= EPOCH_MAX:
            self.remove_members(now_ms)
        wanted = self._wanted(request)
        error, message = self._error(request, wanted)
        if error:
            return HeartbeatAnswer(error, message)
        if request.epoch < 0:
            return self._leave(request, now_ms)
        member = self._join(request) if request.epoch == JOIN else self.members[request.member_id]
        is_repeated = request.epoch in (JOIN, member.previous_epoch)
        self._update_member(member, request, wanted)
        self._update_target(topics, now_ms)
        before = member.assigned
        self._reconcile(member, request.owned, now_ms)
        member.due_ms = now_ms + SESSION_TIMEOUT_MS
        self._note_due(member.due_ms)
        is_full = request.owned is not None and request.rebalance_timeout_ms >= 0
        is_told = is_repeated or is_full or member.assigned != before
        return HeartbeatAnswer(
            errors.NONE, None, member.id, member.epoch, self.interval_ms, member.assigned if is_told else None
        )

    @property
    def interval_ms(self) -> int:
        """Return how often members should send heartbeats."""
        return max(HEARTBEAT_MS, MEMBER_HEARTBEAT_MS * len(self.members))

    def commit_error(self, member_id: str, epoch: int, now_ms: int) -> int:
        """Return the error code for a commit of offsets. Others than members may commit while there are none."""
        if epoch < 0 and not self.members:
            self.idle_since_ms = now_ms
            return errors.NONE
        return self.fetch_error(member_id, epoch)

    def fetch_error(self, member_id: str | None, epoch: int) -> int:
        """Return the error code for a fetch of offsets. Clients that are no members name no member."""
        if member_id is None and epoch < 0:
            return errors.NONE
        member = self.members.get(member_id or "")
        if member is None:
            return errors.UNKNOWN_MEMBER_ID
        return errors.NONE if member.epoch == epoch > JOIN else errors.STALE_MEMBER_EPOCH

    def is_subscribed(self, topic_id: bytes) -> bool:
        """Return whether a member has subscribed to the topic."""
        return any(topic_id in topics for topics in self._resolved.values())

    def kill(self) -> None:
        """Delete the group."""
        self.remove_members(self.idle_since_ms)
        self._is_dead = True
        self.due_ms = NEVER

    def remove_members(self, now_ms: int) -> None:
        """Remove all members, who may join again. The epochs begin again, too."""
        for member in list(self.members.values()):
            self._remove(member)
        self.epoch = self.target_epoch = 0
        self.idle_since_ms = now_ms

    def on_time(self, now_ms: int) -> None:
        """Remove the members whose session or time for giving back partitions has ended."""
        for member in list(self.members.values()):
            if member.due_ms <= now_ms or member.revoke_due_ms <= now_ms:
                self._remove(member)
                self.idle_since_ms = now_ms
        self.due_ms = min((min(each.due_ms, each.revoke_due_ms) for each in self.members.values()), default=NEVER)

    @property
    def size_bytes(self) -> int:
        """Return the memory of subscriptions and partitions."""
        return self.subscription_bytes + PARTITION_BYTES * self._target_partitions

    @property
    def is_unused(self) -> bool:
        """True if the group has no members."""
        return not self.members

    @property
    def phase(self) -> GroupPhase:
        """Return the state of the group. Cost: it looks at all members."""
        if self._is_dead:
            return GroupPhase.DEAD
        if not self.members:
            return GroupPhase.EMPTY
        if self.epoch > self.target_epoch:
            return GroupPhase.ASSIGNING
        for member in self.members.values():
            is_there = member.epoch in (self.target_epoch, LEAVE_STATIC)
            if not is_there or member.state is not MemberState.STABLE:
                return GroupPhase.RECONCILING
        return GroupPhase.STABLE

    # -- checks

    def _wanted(self, request: MemberHeartbeat) -> Subscription | None:
        """Return the member's subscription after the heartbeat; None if it is not changed."""
        member = self.members.get(request.member_id)
        old = _NO_TOPICS if member is None or request.epoch == JOIN else member.subscription
        names = old.names if request.names is None else request.names
        pattern = old.pattern if request.pattern is None else request.pattern
        if names is old.names and pattern is old.pattern and request.epoch != JOIN:
            return None
        return Subscription(names, pattern, request.user if pattern else None)

    def _error(self, request: MemberHeartbeat, wanted: Subscription | None) -> tuple[int, str]:
        """Return why the heartbeat is refused."""
        if request.assignor and request.assignor not in ASSIGNORS:
            return errors.UNSUPPORTED_ASSIGNOR, f"the assignors are {', '.join(ASSIGNORS)}"
        error, message = self._join_error(request) if request.epoch == JOIN else self._member_error(request)
        if error or wanted is None or wanted in self._shared:
            return error, message
        if self.subscription_bytes + wanted.size_bytes > GROUP_BYTES_MAX:
            return errors.POLICY_VIOLATION, f"the subscriptions of a group can have {GROUP_BYTES_MAX} bytes"
        if wanted.pattern and sum(bool(each.pattern) for each in self._shared) >= PATTERNS_MAX:
            return errors.POLICY_VIOLATION, f"a group can have {PATTERNS_MAX} different regular expressions"
        return errors.NONE, ""

    def _join_error(self, request: MemberHeartbeat) -> tuple[int, str]:
        if request.owned or request.owned is None or request.rebalance_timeout_ms < 0:
            return errors.INVALID_REQUEST, "a member that joins has a rebalance timeout and an empty list of partitions"
        if request.names is None and request.pattern is None:
            return errors.INVALID_REQUEST, "a member that joins subscribes to topics"
        instance_id = request.instance_id
        member = self.members.get(request.member_id)
        current = self.members.get(self._static.get(instance_id, "")) if instance_id is not None else None
        if current is not None and current is not member and current.epoch != LEAVE_STATIC:
            return errors.UNRELEASED_INSTANCE_ID, "another member has this instance id"
        if member is not None and member.instance_id != instance_id:
            return errors.FENCED_INSTANCE_ID, "the member has another instance id"
        if member is None and current is None and len(self.members) >= MEMBERS_MAX:
            return errors.GROUP_MAX_SIZE_REACHED, f"a group can have {MEMBERS_MAX} members"
        return errors.NONE, ""

    def _member_error(self, request: MemberHeartbeat) -> tuple[int, str]:
        """Return why the sender is not a member with this epoch."""
        if request.instance_id is not None:
            current = self._static.get(request.instance_id)
            if current is None:
                return errors.UNKNOWN_MEMBER_ID, "no member has this instance id"
            if current != request.member_id:
                return errors.FENCED_INSTANCE_ID, "another member has this instance id"
        member = self.members.get(request.member_id)
        if member is None:
            return errors.UNKNOWN_MEMBER_ID, "not a member of the group"
        if request.epoch == LEAVE_STATIC and member.instance_id is None:
            return errors.INVALID_REQUEST, "a member without an instance id leaves with epoch -1"
        if request.epoch in (LEAVE, LEAVE_STATIC, member.epoch):
            return errors.NONE, ""
        was_lost = request.epoch == member.previous_epoch < member.epoch  # the answer with the epoch
        if was_lost and request.owned is not None and request.owned <= member.assigned:
            return errors.NONE, ""
        return errors.FENCED_MEMBER_EPOCH, f"the member's epoch is {member.epoch}: join again, without partitions"

    # -- members

    def _join(self, request: MemberHeartbeat) -> ReconcilingMember:
        """Return the new member, or the one that joins again. It has no partitions, but may have a target."""
        old_id = self._static.get(request.instance_id, "") if request.instance_id is not None else request.member_id
        member = self.members.get(old_id)
        if member is None:
            member = ReconcilingMember(request)
            self.members[member.id] = member
            if member.instance_id is not None:
                self._static[member.instance_id] = member.id
            return member
        self._assign(member, MemberState.STABLE, JOIN, NO_PARTITIONS)
        if member.id != request.member_id:
            del self.members[member.id]
            target = self.targets.pop(member.id, NO_PARTITIONS)
            member.id = request.member_id
            self.members[member.id] = member
            self.targets[member.id] = target
            self._static[request.instance_id or ""] = member.id
        return member

    def _leave(self, request: MemberHeartbeat, now_ms: int) -> HeartbeatAnswer:
        member = self.members[request.member_id]
        if request.epoch == LEAVE_STATIC:
            self._assign(member, MemberState.STABLE, LEAVE_STATIC, NO_PARTITIONS)
        else:
            self._remove(member)
            self.idle_since_ms = now_ms
        return HeartbeatAnswer(errors.NONE, None, member.id, request.epoch)

    def _remove(self, member: ReconcilingMember) -> None:
        self._assign(member, MemberState.STABLE, LEAVE, NO_PARTITIONS)
        del self.members[member.id]
        self._target_partitions -= len(self.targets.pop(member.id, NO_PARTITIONS))
        self._subscribe(member, _NO_TOPICS)
        if member.instance_id is not None:
            del self._static[member.instance_id]
        self.epoch += 1

    def _update_member(self, member: ReconcilingMember, request: MemberHeartbeat, wanted: Subscription | None) -> None:
        """Apply what the heartbeat changes."""
        if request.rack_id is not None:
            member.rack_id = request.rack_id
        if request.rebalance_timeout_ms >= 0:
            member.rebalance_timeout_ms = min(request.rebalance_timeout_ms, REBALANCE_TIMEOUT_MS_MAX)
        member.client_id = request.client_id
        member.host = request.host
        is_new = member.subscription is _NO_TOPICS
        has_wish = request.assignor is not None and request.assignor != member.assignor
        if has_wish:
            member.assignor = request.assignor or ""
        has_subscribed = wanted is not None and (is_new or wanted != member.subscription)
        if wanted is not None and has_subscribed:
            self._subscribe(member, wanted)
        if has_wish or has_subscribed:
            self.epoch += 1

    def _subscribe(self, member: ReconcilingMember, wanted: Subscription) -> None:
        """Change a subscription and count the members of both. A member has _NO_TOPICS before and after its time."""
        old = member.subscription
        if wanted is not _NO_TOPICS:
            if wanted not in self._shared:
                self._shared[wanted] = wanted
                self.subscription_bytes += wanted.size_bytes
            self._uses[wanted] += 1
            wanted = self._shared[wanted]
        member.subscription = wanted
        if old is _NO_TOPICS:
            return
        self._uses[old] -= 1
        if not self._uses[old]:
            del self._uses[old], self._shared[old]
            self._resolved.pop(old, None)
            self.subscription_bytes -= old.size_bytes

    # -- the target assignment

    def _update_target(self, topics: GroupTopics, now_ms: int) -> None:
        """Compute the target assignment if something has changed and the last one was long enough ago."""
        if topics.version == self._topics_version and self.target_epoch == self.epoch:
            return
        if now_ms < self._update_due_ms and self.targets:
            return
        self._resolve(topics)
        partitions = 0
        if self.target_epoch != self.epoch:
            self._compute_target()
            partitions = self._target_partitions
        looked_at = sum(topics.count if each.pattern else len(each.names) for each in self._shared)
        self._update_due_ms = now_ms + (len(self.members) + looked_at + partitions) // COST_PER_MS

    def _resolve(self, topics: GroupTopics) -> None:
        """Look for the topics of all subscriptions. If they have changed, the group epoch rises."""
        is_same = topics.version == self._topics_version
        self._topics_version = topics.version
        resolved: dict[Subscription, Topics] = {}
        for each in self._shared:
            old = self._resolved.get(each)
            if old is not None and is_same:
                resolved[each] = old
                continue
            resolved[each] = topics.resolve(each)
            if old is not None and old != resolved[each]:
                self.epoch = max(self.epoch, self.target_epoch + 1)
        self._resolved = resolved

    def _compute_target(self) -> None:
        wishes = Counter(each.assignor for each in self.members.values() if each.assignor)
        self.assignor = max(sorted(wishes), key=lambda name: wishes[name], default=DEFAULT)
        ordered = sorted(self.members.values(), key=lambda each: each.instance_id or each.id)
        nothing: Topics = {}
        members = {each.id: self._resolved.get(each.subscription, nothing) for each in ordered}
        self.targets = ASSIGNORS[self.assignor](members, self.targets)
        self._target_partitions = sum(map(len, self.targets.values()))
        self.target_epoch = self.epoch

    # -- reconciliation

    def _reconcile(self, member: ReconcilingMember, owned: Partitions | None, now_ms: int) -> None:
        """Bring a member nearer to its target, as far as it and the others have given back partitions."""
        epoch = member.epoch
        if member.state is MemberState.STABLE and epoch == self.target_epoch:
            return
        if member.state is MemberState.UNREVOKED:
            if owned is None or owned & member.revoking:
                return
            epoch += 1
        target = self.targets.get(member.id, NO_PARTITIONS)
        kept = member.assigned & target
        revoking = member.assigned - kept
        if revoking and (owned is None or owned & revoking):
            self._assign(member, MemberState.UNREVOKED, epoch, kept, revoking)
            member.revoke_due_ms = now_ms + member.rebalance_timeout_ms
            self._note_due(member.revoke_due_ms)
            return
        owners = self._owners
        free = frozenset(each for each in target - kept if owners.get(each, member.id) == member.id)
        assigned = kept | free
        state = MemberState.STABLE if len(assigned) == len(target) else MemberState.UNRELEASED
        self._assign(member, state, self.target_epoch, assigned)

    def _assign(
        self,
        member: ReconcilingMember,
        state: MemberState,
        epoch: int,
        assigned: Partitions,
        revoking: Partitions = NO_PARTITIONS,
    ) -> None:
        """Set state, epoch and partitions of a member."""
        for each in (member.assigned | member.revoking) - assigned - revoking:
            del self._owners[each]
        for each in assigned - member.assigned:
            self._owners[each] = member.id
        member.state = state
        if epoch != member.epoch:
            member.previous_epoch = member.epoch
            member.epoch = epoch
        member.assigned = assigned
        member.revoking = revoking
        if not revoking:
            member.revoke_due_ms = NEVER

    def _note_due(self, due_ms: int) -> None:
        self.due_ms = min(self.due_ms, due_ms)
