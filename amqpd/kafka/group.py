"""Membership of this node in the cluster's consumer group, and the assignment of slots to nodes.

Membership: the group is `amqpd.<cluster>` over the partitions of `settled`; no records are consumed. At each join a
node sends a `Member` (JSON in the user data of the protocol). The group's leader assigns slots with `assign`, and
the callback `assigned` of `GroupMembership` gets the result. Rebalances are eager, but a node serves its slots
meanwhile; it stops only if the new assignment leaves a slot out.

A node that leaves says so (`leave`), and other nodes get its slots within a second. Kafka removes a killed node
after the session time-out. aiokafka removes a member that is not polled for `max_poll_interval_ms`; `_each_second`
polls. An assignment is only a hint: before a node takes a slot, it asks the group whether it is still a member
(`is_current_generation`).

Assignment: `assign` is a pure function of the members, their slots and the wishes. A wrong assignment only costs
time, because Kafka's epochs keep two nodes from writing to one slot. It moves few slots:

- A slot with connections stays, unless its node drains or a wish moves it (`amqpctl move_vhost`, `rebalance`).
  Other slots move freely, but only as many as an even distribution needs.
- A slot that a node has is never given to another one directly. It is left out, so its node gives it up and asks
  for another rebalance. There the slot is free and is given out.

A node that does not belong to the cluster gets no slot and a reason (`refusals`): its `cluster.secret` differs, or
another node in the group has its name.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

from aiokafka.abc import ConsumerRebalanceListener
from aiokafka.client import AIOKafkaClient, ConnectionGroup
from aiokafka.conn import CloseReason
from aiokafka.consumer.group_coordinator import GroupCoordinator
from aiokafka.consumer.subscription_state import SubscriptionState
from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment, ConsumerProtocolMemberMetadata
from aiokafka.errors import KafkaError, RequestTimedOutError
from aiokafka.protocol.group import JoinGroupRequest, SyncGroupRequest

from amqpd.kafka.config import KafkaAccess, split_address
from amqpd.kafka.connection import SILENT_S
from amqpd.kafka.outages import THE_GROUP

_ODD: Final = (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError)
"""Errors for the data of another program in the group."""


class Member(NamedTuple):
    """A node's description of itself, sent at each join.

    Attributes:
        held: Slots that the node has or is about to take -> epoch; 0 if it has none yet.
        busy: Those of them with client connections.
        draining: The node must get no slots.
        address: `host:port` for other nodes.
        fingerprint: SHA-256 of the certificate there, in hex.
        asked: Number of rebalances that the node has asked for. Receivers ignore it.
        secret: Equal for nodes with the same `cluster.secret` (`peer_link.secret_mark`); "" from older versions.
        run: Id of the process, new at each start; "" from older versions.
    """

    node: str
    held: Mapping[int, int]
    busy: frozenset[int] = frozenset()
    draining: bool = False
    address: str = ""
    fingerprint: str = ""
    asked: int = 0
    secret: str = ""
    run: str = ""


class Peer(NamedTuple):
    """A group member as all nodes know it. The fields are those of `Member`."""

    node: str
    address: str
    fingerprint: str
    draining: bool


def encode_member(member: Member) -> bytes:
    held = {str(slot): epoch for slot, epoch in sorted(member.held.items())}
    return _json({**member._asdict(), "held": held, "busy": sorted(member.busy)})


def decode_member(data: bytes) -> Member:
    """Decode a member. Raises ValueError."""
    try:
        fields = json.loads(data)
        held = {int(slot): int(epoch) for slot, epoch in fields["held"].items()}
        busy = frozenset(map(int, fields["busy"]))
        node, address, fingerprint, draining = _peer(fields)
        secret, run = str(fields.get("secret", "")), str(fields.get("run", ""))
        return Member(node, held, busy, draining, address, fingerprint, secret=secret, run=run)
    except _ODD as error:
        raise ValueError(f"these are no data of a cluster member: {data[:200]!r}") from error


def encode_peers(members: Iterable[Member]) -> bytes:
    """Encode the list of members that the leader sends with an assignment."""
    peers = [Peer(each.node, each.address, each.fingerprint, each.draining)._asdict() for each in members]
    return _json(sorted(peers, key=lambda each: str(each["node"])))


def decode_peers(data: bytes) -> list[Peer]:
    """Decode the list of members. Raises ValueError."""
    try:
        return [_peer(each) for each in json.loads(data)]
    except _ODD as error:
        raise ValueError(f"these are no data of a group leader: {data[:200]!r}") from error


def _peer(fields: Mapping[str, Any]) -> Peer:
    address = str(fields["address"])
    split_address(address)  # raises ValueError
    return Peer(str(fields["node"]), address, str(fields["fingerprint"]), bool(fields["draining"]))


def encode_refusal(why: str) -> bytes:
    """Encode the reason why a node does not belong to the cluster; it is sent instead of the members."""
    return _json({"refused": why})


def decode_refusal(data: bytes) -> str:
    """Return the reason why this node is refused, or "". Raises ValueError for other data."""
    try:
        fields = json.loads(data)
    except RecursionError as error:
        raise ValueError("these are no data of a group leader") from error
    return str(fields.get("refused", "")) if isinstance(fields, dict) else ""


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def refusals(slots: int, members: Mapping[str, Member], leader_run: str) -> dict[str, str]:
    """Return the members that do not belong to the cluster, each with a reason.

    If nodes have different secrets, the group that serves most slots belongs to the cluster. Ties are decided by
    the number of nodes, then by the secret of the group's leader. If two processes have one name, the one that
    serves slots stays.

    Args:
        leader_run: The process that assigns.
    """
    holders = _holders(slots, members)
    serving = dict.fromkeys(members, 0)
    for slot, member in holders.items():
        serving[member] += members[member].held[slot] > 0
    refused = _other_secrets(members, serving, leader_run)
    names: dict[str, dict[str, str]] = {}  # node -> process -> member
    for member, node in sorted(members.items()):
        if member not in refused:
            names.setdefault(node.node, {})[node.run or node.fingerprint] = member
    for name, processes in names.items():
        if len(processes) > 1:
            stays = max(processes.values(), key=lambda each: (serving[each], members[each].run == leader_run))
            for member in processes.values():
                if member != stays:
                    address = members[stays].address
                    why = f"cluster.node {name} is already used by the node at {address}: each node needs its own name"
                    refused[member] = why
    return refused


def _other_secrets(members: Mapping[str, Member], serving: Mapping[str, int], leader_run: str) -> dict[str, str]:
    groups: dict[str, list[str]] = {}
    for member, node in sorted(members.items()):
        if node.secret:
            groups.setdefault(node.secret, []).append(member)
    if len(groups) < 2:
        return {}

    def weight(group: list[str]) -> tuple[int, int, bool]:
        led = any(members[each].run == leader_run for each in group)
        return sum(serving[each] for each in group), len(group), led

    right = max(groups.values(), key=weight)
    nodes = ", ".join(sorted(f"{members[each].node} at {members[each].address}" for each in right))
    why = f"cluster.secret differs from that of the cluster's nodes: {nodes}"
    return {member: why for group in groups.values() if group is not right for member in group}


def assign(slots: int, members: Mapping[str, Member], wishes: Mapping[int, str]) -> dict[str, list[int]]:
    """Assign slots to members. Return member -> slots.

    Args:
        wishes: Slot -> name of a node. Wishes for absent or draining nodes are ignored.

    Cost: slots x members; a millisecond for 64 x 10.
    """
    given: dict[str, list[int]] = {member: [] for member in members}
    able = sorted(member for member, node in members.items() if not node.draining)
    if not able:
        return given
    holders = _holders(slots, members)
    by_node = {members[each].node: each for each in reversed(able)}
    targets = _fixed_slots(slots, members, holders, by_node, wishes)
    _even_out(slots, able, holders, targets)
    for slot, member in sorted(targets.items()):
        if holders.get(slot, member) == member:
            given[member].append(slot)
    return given


def _holders(slots: int, members: Mapping[str, Member]) -> dict[int, str]:
    """Return the holder of each slot. If two members claim a slot, the later epoch wins."""
    found: dict[int, tuple[int, str]] = {}
    for member, node in sorted(members.items()):
        for slot, epoch in node.held.items():
            if 0 <= slot < slots and (slot not in found or found[slot][0] < epoch):
                found[slot] = epoch, member
    return {slot: member for slot, (_, member) in found.items()}


def _fixed_slots(
    slots: int,
    members: Mapping[str, Member],
    holders: Mapping[int, str],
    by_node: Mapping[str, str],
    wishes: Mapping[int, str],
) -> dict[int, str]:
    """Return the slots with a wish, and those that stay because of their connections."""
    targets: dict[int, str] = {}
    for slot in range(slots):
        wished = by_node.get(wishes.get(slot, ""))
        holder = holders.get(slot)
        if wished is not None:
            targets[slot] = wished
        elif holder is not None and not members[holder].draining and slot in members[holder].busy:
            targets[slot] = holder
    return targets


def _even_out(slots: int, able: list[str], holders: Mapping[int, str], targets: dict[int, str]) -> None:
    """Add the other slots to `targets`, so that the nodes have numbers of slots that are as equal as possible."""
    free = [slot for slot in range(slots) if slot not in targets]
    shares = dict.fromkeys(able, 0)
    for member in targets.values():
        shares[member] += 1
    had = dict.fromkeys(able, 0)
    for slot in free:
        if holders.get(slot) in had:
            had[holders[slot]] += 1
    room = dict.fromkeys(able, 0)
    for _ in free:
        # Among members with the fewest slots, prefer the one that would give up most.
        least = min(able, key=lambda each: (shares[each], room[each] - had[each], each))
        shares[least] += 1
        room[least] += 1
    left = []
    for slot in free:
        holder = holders.get(slot)
        if holder is not None and room.get(holder, 0) > 0:
            room[holder] -= 1
            targets[slot] = holder
        else:
            left.append(slot)
    for slot in left:
        member = max(able, key=lambda each: (room[each], each))
        room[member] -= 1
        targets[slot] = member


logger = logging.getLogger(__name__)

NAME: Final = "amqpd-slots"
"""Name of the assignor in the group protocol. Nodes with different assignors cannot be in one group."""
VERSION: Final = 1
MAX_POLL_INTERVAL_S: Final = 60.0
BEGIN_AGAIN_S: Final = 1.0
AVOIDED_S: Final = 30.0
"""Time for which a silent broker is not asked for the group's coordinator."""
JOIN_MARGIN_MS: Final = 2000


class Assignor:
    """The assignor that aiokafka's coordinator calls.

    Args:
        topic: The topic whose partitions are the slots.

    Attributes:
        peers: Members at the last assignment, ordered by name.
        refusal: The reason why the group's leader gives this node no slots, or "".
        rejoin_count: Number of rebalances that this node has asked for.
        joined_count: The value of `rejoin_count` that was sent with the last join.
    """

    name = NAME

    def __init__(
        self,
        topic: str,
        slots: int,
        describe_self: Callable[[], Member],
        wishes: Callable[[], Mapping[int, str]],
    ) -> None:
        self._topic = topic
        self._slots = slots
        self._describe_self = describe_self
        self._wishes = wishes
        self.peers: list[Peer] = []
        self.refusal = ""
        self.rejoin_count = self.joined_count = 0

    def metadata(self, topics: Iterable[str]) -> Any:
        """Return this node's data for a JoinGroup request.

        The data changes with `rejoin_count`: if a member that is not the leader joins with unchanged data, Kafka
        answers with the old generation.
        """
        self.joined_count = self.rejoin_count
        member = self._describe_self()._replace(asked=self.rejoin_count)
        return ConsumerProtocolMemberMetadata(VERSION, list(topics), encode_member(member))

    def assign(self, _cluster: object, members: Mapping[str, Any]) -> dict[str, Any]:
        """Assign the slots, as the group's leader. A member that does not belong to the cluster gets none."""
        nodes: dict[str, Member] = {}
        for member, metadata in members.items():
            try:
                nodes[member] = decode_member(metadata.user_data or b"")
            except ValueError as error:
                logger.error("a member of the group is no node of this cluster: %s", error)
        refused = refusals(self._slots, nodes, self._describe_self().run)
        for member, why in refused.items():
            logger.error("the node at %s gets no slot: %s", nodes[member].address, why)
            del nodes[member]
        given = assign(self._slots, nodes, self._wishes())
        shares = {nodes[member].node: slots for member, slots in given.items()}
        logger.info(
            "slots are assigned: %s", ", ".join(f"{node} {len(slots)}" for node, slots in sorted(shares.items()))
        )
        peers = encode_peers(nodes.values())
        found: dict[str, Any] = {}
        for member in members:
            user_data = encode_refusal(refused[member]) if member in refused else peers
            found[member] = ConsumerProtocolMemberAssignment(VERSION, [(self._topic, given.get(member, []))], user_data)
        return found

    def on_assignment(self, assignment: Any) -> None:
        """Read the leader's user data. The slots go to the rebalance listener."""
        try:
            user_data = assignment.user_data or b"[]"
            self.refusal = decode_refusal(user_data)
            if not self.refusal:
                self.peers = decode_peers(user_data)
        except ValueError as error:
            logger.error("%s", error)


class _Client(AIOKafkaClient):  # type: ignore[misc]  # aiokafka has no types
    """aiokafka client that drops a connection after SILENT_S without an answer.

    aiokafka waits for the whole request time-out, which is longer than a session, and asks the same broker again.
    Only join and sync may take so long: Kafka answers them when the other members have joined.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._silent_until: dict[Any, float] = {}

    async def _get_conn(self, node_id: Any, **options: Any) -> Any:
        try:
            async with asyncio.timeout(SILENT_S):
                return await super()._get_conn(node_id, **options)
        except TimeoutError:
            self._avoid(node_id)
            return None

    async def send(self, node_id: Any, request: Any, *, group: Any = ConnectionGroup.DEFAULT) -> Any:
        waits = isinstance(request, (JoinGroupRequest, SyncGroupRequest))
        try:
            async with asyncio.timeout(None if waits else SILENT_S):
                return await super().send(node_id, request, group=group)
        except TimeoutError as error:
            self._avoid(node_id)
            connection = self._conns.get((node_id, group))
            if connection is not None:
                connection.close(reason=CloseReason.CONNECTION_TIMEOUT)
            raise RequestTimedOutError from error

    def _avoid(self, node_id: Any) -> None:
        self._silent_until[node_id] = asyncio.get_running_loop().time() + AVOIDED_S

    def get_random_node(self) -> Any:
        """Return the id of a broker that has answered recently, if there is one."""
        now = asyncio.get_running_loop().time()
        brokers = (broker.nodeId for broker in self.cluster.brokers())
        answering = [each for each in brokers if self._silent_until.get(each, 0.0) < now]
        chosen = super().get_random_node()
        return chosen if chosen in answering or not answering else answering[0]


class _Coordinator(GroupCoordinator):  # type: ignore[misc]  # aiokafka has no types
    """aiokafka's coordinator; calls `heard` with the send time of each heartbeat that the group has accepted."""

    heard: Callable[[float], None]

    async def _do_heartbeat(self) -> bool:
        sent_s = asyncio.get_running_loop().time()
        known = bool(await super()._do_heartbeat())
        if known:
            self.heard(sent_s)
        return known


class GroupMembership(ConsumerRebalanceListener):  # type: ignore[misc]  # aiokafka has no types
    """This node's membership.

    Args:
        assigned: Called with the generation and the slots at each assignment, on the event loop.

    Attributes:
        problem: The reason why the node is not a member; "" if it is.
    """

    def __init__(
        self,
        access: KafkaAccess,
        group: str,
        assignor: Assignor,
        topic: str,
        assigned: Callable[[int, frozenset[int]], None],
        session_timeout_s: float,
        heartbeat_s: float,
    ) -> None:
        self._access = access
        self._group = group
        self._assignor = assignor
        self._topic = topic
        self._assigned = assigned
        self._session_timeout_ms = int(session_timeout_s * 1000)
        self._heartbeat_ms = int(heartbeat_s * 1000)
        self._client: Any = None
        self._subscription: Any = None
        self._coordinator: Any = None
        self._task: asyncio.Task[None] | None = None
        self.problem = "not joined yet"
        self.heard_s = 0.0
        """Send time (loop clock) of the last heartbeat or join that the group has answered."""

    # -- start and end

    def start(self) -> None:
        """Join the group as soon as Kafka answers."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def leave(self) -> None:
        """Leave the group, so that other nodes get the slots at once. The caller has given them up before."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        await self._close()

    def rejoin(self) -> None:
        """Ask for another rebalance, which begins after this call: this node's data or a wish has changed."""
        self._assignor.rejoin_count += 1
        if self._coordinator is not None:
            self._coordinator.request_rejoin()

    @property
    def generation(self) -> int:
        """Return the generation of the last join; -1 if the node is no member."""
        return -1 if self._coordinator is None else int(self._coordinator.generation)

    async def is_current_generation(self, generation: int) -> bool:
        """Ask the group whether this node is a member in that generation, and no rebalance has begun.

        It does not ask while the node joins. The question would wait behind the join and get an error. Because of
        that error aiokafka would join again, without end.
        """
        coordinator = self._coordinator
        if coordinator is None or coordinator.generation != generation or coordinator._rejoin_needed_fut.done():
            return False
        try:
            heard = await coordinator._do_heartbeat()
        except KafkaError as error:
            self._access.outages.report_failure(THE_GROUP, error)
            return False
        still = coordinator is self._coordinator and coordinator.generation == generation
        return bool(heard) and still and not coordinator._rejoin_needed_fut.done()

    # -- running

    async def _run(self) -> None:
        while True:
            try:
                await self._open()
                await self._each_second()
            except (KafkaError, OSError, ValueError) as error:
                self.problem = f"{type(error).__name__}: {error}"
                self._access.outages.report_failure(THE_GROUP, self.problem)
            except Exception as error:
                self.problem = repr(error)
                logger.exception(
                    "the group %s: a bug in amqpd, please report it; next try in %g s", self._group, BEGIN_AGAIN_S
                )
            await self._close()
            await asyncio.sleep(BEGIN_AGAIN_S)

    async def _open(self) -> None:
        self._client = _Client(
            **self._access.aiokafka_options(),
            # Kafka answers a join when the other members have joined or timed out.
            request_timeout_ms=self._session_timeout_ms + JOIN_MARGIN_MS,
        )
        await self._client.bootstrap()
        self._subscription = SubscriptionState()
        self._subscription.subscribe(topics={self._topic}, listener=self)
        self._client.set_topics({self._topic})
        self._coordinator = _Coordinator(
            self._client,
            self._subscription,
            group_id=self._group,
            session_timeout_ms=self._session_timeout_ms,
            heartbeat_interval_ms=self._heartbeat_ms,
            enable_auto_commit=False,
            assignors=(self._assignor,),
            max_poll_interval_ms=int(MAX_POLL_INTERVAL_S * 1000),
            rebalance_timeout_ms=self._session_timeout_ms,
        )
        self._coordinator.heard = self._note_answer

    def _note_answer(self, sent_s: float) -> None:
        self.heard_s = max(self.heard_s, sent_s)
        self._access.outages.report_success(THE_GROUP)

    async def _each_second(self) -> None:
        """Poll each second. Raises the errors that the coordinator cannot handle itself."""
        while True:
            with self._subscription.fetch_context():
                self._coordinator.check_errors()
            await asyncio.sleep(1.0)

    async def _close(self) -> None:
        coordinator, self._coordinator = self._coordinator, None
        client, self._client = self._client, None
        try:
            if coordinator is not None:
                await coordinator.close()
        except (KafkaError, OSError) as error:
            logger.warning("the group %s was left without notice: %s", self._group, error)
        finally:
            if client is not None:
                await client.close()

    # -- calls by aiokafka

    def on_partitions_revoked(self, revoked: object) -> None:
        """Do nothing: the node serves its slots until an assignment leaves them out."""

    def on_partitions_assigned(self, assigned: Iterable[Any]) -> None:
        if self._coordinator is None:
            return  # it joined while it was closing; its slots are assigned again when it leaves
        self.problem = ""
        self._note_answer(asyncio.get_running_loop().time())
        slots = frozenset(each.partition for each in assigned if each.topic == self._topic)
        self._assigned(self.generation, slots)
        if self._assignor.joined_count != self._assignor.rejoin_count:
            self._coordinator.request_rejoin()  # the request came while this node joined, and aiokafka forgets it then
