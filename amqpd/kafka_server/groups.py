"""The state machine of one consumer group, for Kafka's classic protocol.

    Empty                no members; it may have committed offsets
    PreparingRebalance   members join; the others have until `phase_due_ms`
    CompletingRebalance  all have the new generation and wait for the assignments that the leader computes
    Stable               all have their assignments
    Dead                 deleted

A member joins, gets the generation, its leader and, if it is the leader, the metadata of all members; then each member
syncs to get its assignment. A change of the members or of their metadata starts the next rebalance.

The module has no IO and no clock. Each method takes the time in monotonic milliseconds. Answers that wait are
callbacks; a method may call several of them. `due_ms` is a lower bound of the next time at which `on_time` has work:
heartbeats only move deadlines ahead, so the owner arms a timer when `due_ms` falls, and `on_time` computes it again.

A member whose JoinGroup or SyncGroup waits does not expire. A *static* member has a group.instance.id: it stays when
it does not rejoin in time, until its session ends, and a new process with its id replaces it and keeps its assignment.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Final, NamedTuple

from amqpd.kafka_server import errors

INITIAL_WAIT_MS: Final = 500
"""How long the first join of an empty group waits for others."""
MEMBERS_MAX: Final = 1000
MEMBER_BYTES_MAX: Final = 256 * 1024
"""Protocol names and metadata of one member, and its assignment."""
GROUP_BYTES_MAX: Final = 8 << 20
NEVER: Final = 1 << 61


class GroupState(Enum):
    """State of a group; the values are Kafka's names."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


class JoinRequest(NamedTuple):
    """A JoinGroup request.

    Attributes:
        member_id: "" for a new member.
        protocols: assignors and their metadata, in the order of preference.
        needs_member_id: a new member gets its id first and joins again with it (version 4 and later).
        can_skip_assignment: the leader understands `JoinAnswer.skip_assignment` (version 9 and later).
    """

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: tuple[tuple[str, bytes], ...]
    needs_member_id: bool = True
    can_skip_assignment: bool = True

    @property
    def size_bytes(self) -> int:
        return sum(len(name) + len(metadata) for name, metadata in self.protocols)


class JoinedMember(NamedTuple):
    """A member as the leader sees it."""

    member_id: str
    instance_id: str | None
    metadata: bytes


class JoinAnswer(NamedTuple):
    """The answer to JoinGroup. `members` only for the leader."""

    error: int
    member_id: str
    generation: int = -1
    protocol_type: str = ""
    protocol: str = ""
    leader: str = ""
    members: tuple[JoinedMember, ...] = ()
    skip_assignment: bool = False


class SyncRequest(NamedTuple):
    """A SyncGroup request. Protocol type and protocol are None in versions before 5."""

    member_id: str
    instance_id: str | None
    generation: int
    protocol_type: str | None
    protocol: str | None
    assignments: Mapping[str, bytes]


class SyncAnswer(NamedTuple):
    """The answer to SyncGroup."""

    error: int
    protocol_type: str = ""
    protocol: str = ""
    assignment: bytes = b""


JoinDone = Callable[[JoinAnswer], None]
SyncDone = Callable[[SyncAnswer], None]


class GroupMember:
    """One member.

    Attributes:
        due_ms: end of its session, unless an answer waits.
        join_done, sync_done: the answer that waits.
        has_synced: it has sent SyncGroup for this generation.
    """

    def __init__(self, member_id: str, request: JoinRequest) -> None:
        self.id = member_id
        self.instance_id = request.instance_id
        self.assignment = b""
        self.due_ms = NEVER
        self.join_done: JoinDone | None = None
        self.sync_done: SyncDone | None = None
        self.has_synced = False
        self.update(request)

    def update(self, request: JoinRequest) -> None:
        self.client_id = request.client_id
        self.host = request.host
        self.session_timeout_ms = request.session_timeout_ms
        timeout_ms = request.rebalance_timeout_ms
        self.rebalance_timeout_ms = timeout_ms if timeout_ms > 0 else request.session_timeout_ms
        self.protocols = request.protocols
        self.protocol_bytes = request.size_bytes

    def metadata(self, protocol: str) -> bytes:
        for name, metadata in self.protocols:
            if name == protocol:
                return metadata
        return b""


class ConsumerGroup:
    """One group.

    Attributes:
        leader: member id, "" without members.
        protocol: the assignor of this generation, "" before the first.
        phase_due_ms: when the current step of a rebalance ends.
        due_ms: see the module.
        idle_since_ms: when the last member left or offsets were last committed; expiry counts from here.
        size_bytes: of metadata and assignments.
    """

    def __init__(self, name: str, now_ms: int) -> None:
        self.name = name
        self.state = GroupState.EMPTY
        self.generation = 0
        self.protocol_type = ""
        self.protocol = ""
        self.leader = ""
        self.members: dict[str, GroupMember] = {}
        self.phase_due_ms = NEVER
        self.due_ms = NEVER
        self.idle_since_ms = now_ms
        self.size_bytes = 0
        self._static: dict[str, str] = {}  # group.instance.id -> member id
        self._pending: dict[str, int] = {}  # ids given to clients that have not joined with them: when they end
        self._joining: set[str] = set()
        self._support: Counter[str] = Counter()  # protocol -> number of members that know it
        self._is_initial = False

    # -- requests

    def join(self, request: JoinRequest, new_id: str, now_ms: int, done: JoinDone) -> None:
        """Let a member join. `done` is called now, or when the rebalance ends.

        Args:
            new_id: the id of the member if it needs one.
        """
        error = self._join_error(request)
        if error:
            done(JoinAnswer(error, request.member_id))
        elif request.member_id:
            self._rejoin(request, now_ms, done)
        elif request.instance_id is not None and request.instance_id in self._static:
            self._replace_static(request, new_id, now_ms, done)
        elif len(self.members) + len(self._pending) >= MEMBERS_MAX:
            done(JoinAnswer(errors.GROUP_MAX_SIZE_REACHED, ""))
        elif request.needs_member_id and request.instance_id is None:
            self._pending[new_id] = now_ms + request.session_timeout_ms
            self._note_due(self._pending[new_id])
            done(JoinAnswer(errors.MEMBER_ID_REQUIRED, new_id))
        else:
            self._add(request, new_id, now_ms, done)

    def sync(self, request: SyncRequest, now_ms: int, done: SyncDone) -> None:
        """Give a member its assignment, now or when the leader has sent it."""
        error = self._member_error(request.member_id, request.instance_id)
        if error == errors.NONE:
            error = self._sync_error(request)
        if error:
            done(SyncAnswer(error))
            return
        member = self.members[request.member_id]
        member.has_synced = True
        if self.state is GroupState.STABLE:
            self._renew(member, now_ms)
            done(SyncAnswer(errors.NONE, self.protocol_type, self.protocol, member.assignment))
            return
        if member.sync_done is not None:
            member.sync_done(SyncAnswer(errors.REBALANCE_IN_PROGRESS))  # the client has sent it again
        member.sync_done = done
        if member.id == self.leader:
            self._assign(request.assignments, now_ms)

    def heartbeat(self, member_id: str, instance_id: str | None, generation: int, now_ms: int) -> int:
        """Renew a session. Return an error code: 27 tells the member to join again."""
        return self._renewal_error(member_id, instance_id, generation, now_ms, GroupState.PREPARING)

    def leave(self, member_id: str, instance_id: str | None, now_ms: int) -> int:
        """Remove a member. Return an error code. A static member may be named by its instance id alone."""
        if self.state is GroupState.DEAD:
            return errors.COORDINATOR_NOT_AVAILABLE
        if member_id in self._pending:
            del self._pending[member_id]
            self._complete_if_all_joined(now_ms)
            return errors.NONE
        if not member_id and instance_id is not None:
            member_id = self._static.get(instance_id, "")
        error = self._member_error(member_id, instance_id)
        if error == errors.NONE:
            self._remove(self.members[member_id])
            self._on_removed(now_ms)
        return error

    def commit_error(self, member_id: str, instance_id: str | None, generation: int, now_ms: int) -> int:
        """Return the error code for a commit of offsets, and renew the session of its member.

        Simple consumers, which are no members, commit with generation -1, and only while the group is empty.
        """
        if self.state is GroupState.DEAD:
            return errors.COORDINATOR_NOT_AVAILABLE
        if generation < 0 and self.state is GroupState.EMPTY:
            self.idle_since_ms = now_ms
            return errors.NONE
        return self._renewal_error(member_id, instance_id, generation, now_ms, GroupState.COMPLETING)

    def drop_waiting(self, member_id: str, done: JoinDone | SyncDone, now_ms: int) -> None:
        """Forget an answer that waits: its connection is closed. The member has a session timeout to come back."""
        member = self.members.get(member_id)
        if member is None:
            return
        if member.join_done == done:
            member.join_done = None
            self._joining.discard(member.id)
        elif member.sync_done == done:
            member.sync_done = None
            member.has_synced = False
        else:
            return
        self._renew(member, now_ms)

    def kill(self) -> None:
        """Delete the group. Members that wait get the answer that they are no members."""
        for member in list(self.members.values()):
            self._remove(member)
        self._pending.clear()
        self.state = GroupState.DEAD
        self.due_ms = NEVER

    def on_time(self, now_ms: int) -> None:
        """Do what is due: end sessions and steps of a rebalance."""
        self._pending = {each: due_ms for each, due_ms in self._pending.items() if due_ms > now_ms}
        expired = [each for each in self.members.values() if each.due_ms <= now_ms and not _waits(each)]
        for member in expired:
            self._remove(member)
        if expired:
            self._on_removed(now_ms)
        else:
            self._complete_if_all_joined(now_ms)
        if self.phase_due_ms <= now_ms:
            self._end_phase(now_ms)
        self.due_ms = min(
            self.phase_due_ms,
            min(self._pending.values(), default=NEVER),
            min((each.due_ms for each in self.members.values() if not _waits(each)), default=NEVER),
        )

    @property
    def is_unused(self) -> bool:
        """True if the group has neither members nor clients about to join."""
        return self.state in (GroupState.EMPTY, GroupState.DEAD) and not self._pending

    # -- joining

    def _join_error(self, request: JoinRequest) -> int:
        if self.state is GroupState.DEAD:
            return errors.COORDINATOR_NOT_AVAILABLE
        if not request.protocol_type or not request.protocols:
            return errors.INCONSISTENT_GROUP_PROTOCOL
        if self.members and (
            request.protocol_type != self.protocol_type
            or not any(self._support[name] == len(self.members) for name, _ in request.protocols)
        ):
            return errors.INCONSISTENT_GROUP_PROTOCOL
        size = request.size_bytes
        if size > MEMBER_BYTES_MAX or self.size_bytes + size > GROUP_BYTES_MAX:
            return errors.POLICY_VIOLATION
        return errors.NONE

    def _rejoin(self, request: JoinRequest, now_ms: int, done: JoinDone) -> None:
        member_id = request.member_id
        if self._pending.pop(member_id, None) is not None:
            self._add(request, member_id, now_ms, done)
            return
        error = self._member_error(member_id, request.instance_id)
        if error:
            done(JoinAnswer(error, member_id))
            return
        member = self.members[member_id]
        is_same = member.protocols == request.protocols
        self._update(member, request)
        if is_same and (
            self.state is GroupState.COMPLETING or (self.state is GroupState.STABLE and member.id != self.leader)
        ):
            self._renew(member, now_ms)
            done(self._answer(member))
            return
        self._wait_for_join(member, done)
        self._rebalance(now_ms)

    def _add(self, request: JoinRequest, member_id: str, now_ms: int, done: JoinDone) -> None:
        member = GroupMember(member_id, request)
        if not self.members:
            self.protocol_type = request.protocol_type
        self.members[member_id] = member
        self._count(member, 1)
        if member.instance_id is not None:
            self._static[member.instance_id] = member_id
        if not self.leader:
            self.leader = member_id
        self._wait_for_join(member, done)
        self._rebalance(now_ms)

    def _replace_static(self, request: JoinRequest, new_id: str, now_ms: int, done: JoinDone) -> None:
        """Replace the process behind a static member; the earlier one is fenced."""
        assert request.instance_id is not None
        old_id = self._static[request.instance_id]
        member = self.members.pop(old_id)
        self._answer_waiting(member, errors.FENCED_INSTANCE_ID)
        member.id = new_id
        self.members[new_id] = member
        self._static[request.instance_id] = new_id
        was_leader = self.leader == old_id
        if was_leader:
            self.leader = new_id
        self._update(member, request)
        if self.state is GroupState.STABLE and self._choose_protocol() == self.protocol:
            self._renew(member, now_ms)
            answer = self._answer(member)
            if was_leader and request.can_skip_assignment:
                answer = answer._replace(skip_assignment=True)
            elif was_leader:  # it must not assign again, so it must not see itself as the leader
                answer = answer._replace(leader=old_id, members=())
            done(answer)
            return
        self._wait_for_join(member, done)
        self._rebalance(now_ms)

    def _update(self, member: GroupMember, request: JoinRequest) -> None:
        self._count(member, -1)
        member.update(request)
        self._count(member, 1)

    def _count(self, member: GroupMember, sign: int) -> None:
        self.size_bytes += sign * (member.protocol_bytes + len(member.assignment))
        for name in {name for name, _ in member.protocols}:
            self._support[name] += sign
            if not self._support[name]:
                del self._support[name]

    def _wait_for_join(self, member: GroupMember, done: JoinDone) -> None:
        if member.join_done is not None:
            member.join_done(JoinAnswer(errors.REBALANCE_IN_PROGRESS, member.id))  # the client has sent it again
        member.join_done = done
        self._joining.add(member.id)

    def _answer(self, member: GroupMember) -> JoinAnswer:
        """Return the current generation, for this member."""
        everyone: tuple[JoinedMember, ...] = ()
        if member.id == self.leader:
            protocol = self.protocol
            everyone = tuple(
                JoinedMember(each.id, each.instance_id, each.metadata(protocol)) for each in self.members.values()
            )
        return JoinAnswer(
            errors.NONE, member.id, self.generation, self.protocol_type, self.protocol, self.leader, everyone
        )

    # -- rebalances

    def _rebalance(self, now_ms: int) -> None:
        """Start a rebalance unless one is being prepared, and end it if all members have joined."""
        if self.state is not GroupState.PREPARING:
            for member in self.members.values():
                if self.state is GroupState.COMPLETING:
                    self._set_assignment(member, b"")
                self._answer_sync(member, SyncAnswer(errors.REBALANCE_IN_PROGRESS), now_ms)
            self._is_initial = self.state is GroupState.EMPTY
            self.state = GroupState.PREPARING
            self._set_phase(now_ms + (INITIAL_WAIT_MS if self._is_initial else self._rebalance_timeout_ms()))
        self._complete_if_all_joined(now_ms)

    def _complete_if_all_joined(self, now_ms: int) -> None:
        if self.state is not GroupState.PREPARING or self._is_initial or self._pending:
            return
        if len(self._joining) == len(self.members):
            self._complete(now_ms)

    def _end_phase(self, now_ms: int) -> None:
        """Handle the end of a step's time."""
        if self.state is GroupState.PREPARING:
            self._is_initial = False
            self._complete(now_ms)
            return
        self.phase_due_ms = NEVER
        late = [each for each in self.members.values() if not each.has_synced]
        for member in late:
            self._remove(member)
        if late:
            self._on_removed(now_ms)

    def _complete(self, now_ms: int) -> None:
        """Begin the next generation with those who joined. Static members stay, even if they did not."""
        for member in list(self.members.values()):
            if member.id not in self._joining and member.instance_id is None:
                self._remove(member)
        if not self.members:
            self._become_empty(now_ms)
            return
        if self.leader not in self._joining:
            leader = next((each for each in self.members if each in self._joining), "")
            if not leader:  # only static members, and none has come back: wait for the end of their sessions
                self._set_phase(now_ms + self._rebalance_timeout_ms())
                return
            self.leader = leader
        self.generation = self.generation + 1 & 0x7FFF_FFFF
        self.protocol = self._choose_protocol()
        self.state = GroupState.COMPLETING
        self._set_phase(now_ms + self._rebalance_timeout_ms())
        self._joining.clear()
        for member in list(self.members.values()):
            member.has_synced = False
            done, member.join_done = member.join_done, None
            if done is not None:
                self._renew(member, now_ms)
                done(self._answer(member))

    def _become_empty(self, now_ms: int) -> None:
        self.state = GroupState.EMPTY
        self.generation = self.generation + 1 & 0x7FFF_FFFF
        self.protocol = ""
        self.phase_due_ms = NEVER
        self.idle_since_ms = now_ms

    def _choose_protocol(self) -> str:
        """Return the protocol with the most votes among those all members know. A member votes for its first."""
        everyone = len(self.members)
        votes: Counter[str] = Counter()
        for member in self.members.values():
            votes[next(name for name, _ in member.protocols if self._support[name] == everyone)] += 1
        return max(votes, key=lambda name: votes[name])

    def _assign(self, assignments: Mapping[str, bytes], now_ms: int) -> None:
        """Give all members the assignments of the leader."""
        self.state = GroupState.STABLE
        for member in list(self.members.values()):
            self._set_assignment(member, assignments.get(member.id, b""))
        for member in list(self.members.values()):
            self._answer_sync(
                member, SyncAnswer(errors.NONE, self.protocol_type, self.protocol, member.assignment), now_ms
            )

    def _set_assignment(self, member: GroupMember, assignment: bytes) -> None:
        self.size_bytes += len(assignment) - len(member.assignment)
        member.assignment = assignment

    # -- members

    def _member_error(self, member_id: str, instance_id: str | None) -> int:
        if self.state is GroupState.DEAD:
            return errors.COORDINATOR_NOT_AVAILABLE
        if instance_id is not None:
            current = self._static.get(instance_id)
            if current is None:
                return errors.UNKNOWN_MEMBER_ID
            if current != member_id:
                return errors.FENCED_INSTANCE_ID
        return errors.NONE if member_id in self.members else errors.UNKNOWN_MEMBER_ID

    def _renewal_error(
        self, member_id: str, instance_id: str | None, generation: int, now_ms: int, refusing: GroupState
    ) -> int:
        """Renew the session of a member of this generation. Return an error code: 27 in the state `refusing`."""
        error = self._member_error(member_id, instance_id)
        if error:
            return error
        if generation != self.generation:
            return errors.ILLEGAL_GENERATION
        self._renew(self.members[member_id], now_ms)
        return errors.REBALANCE_IN_PROGRESS if self.state is refusing else errors.NONE

    def _sync_error(self, request: SyncRequest) -> int:
        if request.generation != self.generation:
            return errors.ILLEGAL_GENERATION
        if self.state is GroupState.PREPARING:
            return errors.REBALANCE_IN_PROGRESS
        if request.protocol_type not in (None, self.protocol_type) or request.protocol not in (None, self.protocol):
            return errors.INCONSISTENT_GROUP_PROTOCOL
        if request.assignments and request.member_id == self.leader:
            sizes = [len(each) for each in request.assignments.values()]
            current = sum(len(each.assignment) for each in self.members.values())
            if max(sizes) > MEMBER_BYTES_MAX or self.size_bytes - current + sum(sizes) > GROUP_BYTES_MAX:
                return errors.POLICY_VIOLATION
        return errors.NONE

    def _remove(self, member: GroupMember) -> None:
        """Remove a member; the caller continues with `_on_removed`."""
        self._answer_waiting(member, errors.UNKNOWN_MEMBER_ID)
        del self.members[member.id]
        self._count(member, -1)
        if member.instance_id is not None:
            del self._static[member.instance_id]
        if self.leader == member.id:
            self.leader = next(iter(self.members), "")

    def _on_removed(self, now_ms: int) -> None:
        if self.state in (GroupState.STABLE, GroupState.COMPLETING):
            self._rebalance(now_ms)
        else:
            self._complete_if_all_joined(now_ms)

    def _answer_waiting(self, member: GroupMember, error: int) -> None:
        self._joining.discard(member.id)
        join_done, member.join_done = member.join_done, None
        if join_done is not None:
            join_done(JoinAnswer(error, member.id))
        sync_done, member.sync_done = member.sync_done, None
        if sync_done is not None:
            sync_done(SyncAnswer(error))

    def _answer_sync(self, member: GroupMember, answer: SyncAnswer, now_ms: int) -> None:
        done, member.sync_done = member.sync_done, None
        if done is not None:
            self._renew(member, now_ms)
            done(answer)

    # -- time

    def _renew(self, member: GroupMember, now_ms: int) -> None:
        member.due_ms = now_ms + member.session_timeout_ms
        self._note_due(member.due_ms)

    def _set_phase(self, due_ms: int) -> None:
        self.phase_due_ms = due_ms
        self._note_due(due_ms)

    def _note_due(self, due_ms: int) -> None:
        self.due_ms = min(self.due_ms, due_ms)

    def _rebalance_timeout_ms(self) -> int:
        return max((each.rebalance_timeout_ms for each in self.members.values()), default=INITIAL_WAIT_MS)


def _waits(member: GroupMember) -> bool:
    return member.join_done is not None or member.sync_done is not None
