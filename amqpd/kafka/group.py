"""Who is there, and which slots this node is to have: Kafka's consumer group protocol, by aiokafka's coordinator.

The group is `amqpd.<cluster>` over the partitions of `settled`; nothing is consumed. Each member says at every joining
what it has (`assignment.Member`, as JSON in the user data), the leader assigns by `assignment.assign`, and everybody is
told through `assigned`. Rebalances are eager, and what is being served goes on being served meanwhile: only an
assignment that leaves a slot out ends that.

A node that leaves says so (`leave`), and the others have its slots within a second; one that is killed is missed after
the session time-out. aiokafka lets a member go that is not polled for `max_poll_interval_ms`: `_each_second` polls.

An assignment is a hint. Before a slot is taken the member makes sure that the group still knows it (`known`).

Which node has which slot: a pure function of who is there, what they have, and what was wished.

The leader of the group asks it at each rebalance (group.py). A wrong answer costs time only: what keeps two nodes
from writing to one slot is Kafka's epochs. So it is made to move little:

- A slot with connections stays where it is, unless its node drains or a wish (`amqpctl move_vhost`, `rebalance`) says
  so. The others move freely, and no more of them than it takes to even the nodes out.
- A slot that somebody has is never given to another: it is left out, its node gives it up and asks for another round,
  in which nobody has it. What nobody has is given out at once.

A node that does not belong to the cluster gets no slot and is told why (`refusals`): its cluster.secret is another, or
its name is that of a node which is in the group already.
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

from amqpd.kafka.config import KafkaAccess
from amqpd.kafka.connection import SILENT_S
from amqpd.kafka.outages import THE_GROUP


class Member(NamedTuple):
    """What a node says of itself as it joins. held: the slots that it has or is about to take -> the epoch, 0 where it
    has none yet. busy: those of them that somebody is connected to. draining: it is to have none. address: of its inner
    port, host:port. fingerprint: of the certificate there, SHA-256 in hex. asked: for how many rounds it has asked;
    nobody reads it. secret: by which nodes with the same cluster.secret know each other (`preamble.secret_mark`).
    run: of its process, another one after each start. Nodes of a version before have neither: "".
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
    """What every node knows of each that is in the group. Fields as above."""

    node: str
    address: str
    fingerprint: str
    draining: bool


def encode_member(member: Member) -> bytes:
    """What a member says of itself."""
    held = {str(slot): epoch for slot, epoch in sorted(member.held.items())}
    return _json({**member._asdict(), "held": held, "busy": sorted(member.busy)})


def decode_member(data: bytes) -> Member:
    """Raises: ValueError where it is none."""
    said = json.loads(data)
    try:
        held = {int(slot): int(epoch) for slot, epoch in said["held"].items()}
        busy = frozenset(map(int, said["busy"]))
        texts = str(said["address"]), str(said["fingerprint"])
        member = Member(str(said["node"]), held, busy, bool(said["draining"]), *texts)
        return member._replace(secret=str(said.get("secret", "")), run=str(said.get("run", "")))
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"no member of a cluster says {data!r}") from error


def encode_peers(members: Iterable[Member]) -> bytes:
    """What the leader tells everybody with an assignment: who is there."""
    peers = [Peer(each.node, each.address, each.fingerprint, each.draining)._asdict() for each in members]
    return _json(sorted(peers, key=lambda each: str(each["node"])))


def decode_peers(data: bytes) -> list[Peer]:
    """Raises: ValueError where it is none."""
    try:
        return [
            Peer(str(each["node"]), str(each["address"]), str(each["fingerprint"]), bool(each["draining"]))
            for each in json.loads(data)
        ]
    except (KeyError, TypeError) as error:
        raise ValueError(f"no leader of a cluster says {data!r}") from error


def encode_refusal(why: str) -> bytes:
    """Return what the leader tells a node that does not belong to the cluster, instead of the peers."""
    return _json({"refused": why})


def decode_refusal(data: bytes) -> str:
    """Return why this node is refused; "" if it is not. Raises: ValueError where it is none of the two."""
    said = json.loads(data)
    return str(said.get("refused", "")) if isinstance(said, dict) else ""


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def refusals(slots: int, members: Mapping[str, Member], leader_run: str) -> dict[str, str]:
    """Return the members that do not belong to the cluster, and the sentence that says why.

    Of nodes with different secrets those belong to it that serve most slots, else those that are most, else those with
    the secret of the group's leader. Of two processes with one name the one that serves slots stays.

    Args:
        leader_run: the process that assigns.
    """
    holders = _holders(slots, members)
    serving = dict.fromkeys(members, 0)
    for slot, member in holders.items():
        serving[member] += members[member].held[slot] > 0
    refused = _other_secrets(members, serving, leader_run)
    names: dict[str, dict[str, str]] = {}  # node -> process -> member
    for member, said in sorted(members.items()):
        if member not in refused:
            names.setdefault(said.node, {})[said.run or said.fingerprint] = member
    for name, processes in names.items():
        if len(processes) > 1:
            stays = max(processes.values(), key=lambda each: (serving[each], members[each].run == leader_run))
            for member in processes.values():
                if member != stays:
                    address = members[stays].address
                    why = f"cluster.node is {name}, as that of the node at {address}: each node needs a name of its own"
                    refused[member] = why
    return refused


def _other_secrets(members: Mapping[str, Member], serving: Mapping[str, int], leader_run: str) -> dict[str, str]:
    groups: dict[str, list[str]] = {}
    for member, said in sorted(members.items()):
        if said.secret:
            groups.setdefault(said.secret, []).append(member)
    if len(groups) < 2:
        return {}

    def weight(group: list[str]) -> tuple[int, int, bool]:
        led = any(members[each].run == leader_run for each in group)
        return sum(serving[each] for each in group), len(group), led

    right = max(groups.values(), key=weight)
    nodes = ", ".join(sorted(f"{members[each].node} at {members[each].address}" for each in right))
    why = f"cluster.secret is another than that of the cluster's nodes: {nodes}"
    return {member: why for group in groups.values() if group is not right for member in group}


def assign(
    slots: int, members: Mapping[str, Member], wishes: Mapping[int, str], balance_busy: bool = False
) -> dict[str, list[int]]:
    """Slots by member. wishes: slot -> name of a node; one that is not there, or drains, is passed over.
    balance_busy: connections do not keep a slot where it is.

    Cost: slots x members; a millisecond for 64 x 10.
    """
    given: dict[str, list[int]] = {member: [] for member in members}
    able = sorted(member for member, said in members.items() if not said.draining)
    if not able:
        return given
    holders = _holders(slots, members)
    by_node = {members[each].node: each for each in reversed(able)}
    targets = _fixed(slots, members, holders, by_node, wishes, balance_busy)
    _even_out(slots, able, holders, targets)
    for slot, member in sorted(targets.items()):
        if holders.get(slot, member) == member:
            given[member].append(slot)
    return given


def _holders(slots: int, members: Mapping[str, Member]) -> dict[int, str]:
    """Who has each slot; of two who say so, the one with the later epoch."""
    found: dict[int, tuple[int, str]] = {}
    for member, said in sorted(members.items()):
        for slot, epoch in said.held.items():
            if 0 <= slot < slots and (slot not in found or found[slot][0] < epoch):
                found[slot] = epoch, member
    return {slot: member for slot, (_, member) in found.items()}


def _fixed(
    slots: int,
    members: Mapping[str, Member],
    holders: Mapping[int, str],
    by_node: Mapping[str, str],
    wishes: Mapping[int, str],
    balance_busy: bool,
) -> dict[int, str]:
    """What is wished, and what stays because somebody is connected to it."""
    targets: dict[int, str] = {}
    for slot in range(slots):
        wished = by_node.get(wishes.get(slot, ""))
        holder = holders.get(slot)
        if wished is not None:
            targets[slot] = wished
        elif holder is not None and not members[holder].draining and slot in members[holder].busy and not balance_busy:
            targets[slot] = holder
    return targets


def _even_out(slots: int, able: list[str], holders: Mapping[int, str], targets: dict[int, str]) -> None:
    """The other slots, so that the nodes have as many as each other as far as `targets` leaves it open."""
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
        # Of those with as few as each other, the one that would have to give up more.
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
"""Of the assignor, in the group protocol: nodes that know different ones do not get into one group."""
VERSION: Final = 1
MAX_POLL_INTERVAL_S: Final = 60.0
BEGIN_AGAIN_S: Final = 1.0
AVOIDED_S: Final = 30.0
"""For how long a broker that did not answer is not asked who keeps the group."""
JOIN_MARGIN_MS: Final = 2000


class Assignor:
    """As aiokafka's coordinator calls it. topic: whose partitions are the slots. peers: who was in the group when it
    assigned last, by name. refusal: why the group's leader gives this node nothing, "" where it belongs to the cluster.
    asked: how many rounds this member has asked for; heard: of those, what the group was told as it joined last.
    """

    name = NAME

    def __init__(
        self,
        topic: str,
        slots: int,
        said: Callable[[], Member],
        wishes: Callable[[], Mapping[int, str]],
        balance_busy: bool,
    ) -> None:
        self._topic = topic
        self._slots = slots
        self._said = said
        self._wishes = wishes
        self._balance_busy = balance_busy
        self.peers: list[Peer] = []
        self.refusal = ""
        self.asked = self.heard = 0

    def metadata(self, topics: Iterable[str]) -> Any:
        """What goes out with a JoinGroup. It is another one for each round that was asked for: Kafka answers a member
        that is not the leader, and says what it said before, with the round that is over.
        """
        self.heard = self.asked
        said = self._said()._replace(asked=self.asked)
        return ConsumerProtocolMemberMetadata(VERSION, list(topics), encode_member(said))

    def assign(self, _cluster: object, members: Mapping[str, Any]) -> dict[str, Any]:
        """Assign the slots, as the group's leader. A member that does not belong to the cluster gets none."""
        nodes: dict[str, Member] = {}
        for member, metadata in members.items():
            try:
                nodes[member] = decode_member(metadata.user_data or b"")
            except ValueError as error:
                logger.error("somebody in the group is no node of this cluster: %s", error)
        refused = refusals(self._slots, nodes, self._said().run)
        for member, why in refused.items():
            logger.error("the node at %s is given no slot: %s", nodes[member].address, why)
            del nodes[member]
        given = assign(self._slots, nodes, self._wishes(), self._balance_busy)
        told = {nodes[member].node: slots for member, slots in given.items()}
        logger.info("slots are assigned: %s", ", ".join(f"{node} {len(slots)}" for node, slots in sorted(told.items())))
        peers = encode_peers(nodes.values())
        found: dict[str, Any] = {}
        for member in members:
            about = encode_refusal(refused[member]) if member in refused else peers
            found[member] = ConsumerProtocolMemberAssignment(VERSION, [(self._topic, given.get(member, []))], about)
        return found

    def on_assignment(self, assignment: Any) -> None:
        """What the leader has told beside the slots, of which the listener hears."""
        try:
            about = assignment.user_data or b"[]"
            self.refusal = decode_refusal(about)
            if not self.refusal:
                self.peers = decode_peers(about)
        except ValueError as error:
            logger.error("%s", error)


class _Client(AIOKafkaClient):  # type: ignore[misc]  # aiokafka has no types
    """Connections that are given up after SILENT_S without an answer.

    aiokafka waits for the whole request time-out, which is longer than a session, and asks the same broker again. Only
    a joining may take so long: Kafka answers it when the other members have joined.
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
        """Return the number of a broker that has answered recently, if there is one."""
        now = asyncio.get_running_loop().time()
        brokers = (broker.nodeId for broker in self.cluster.brokers())
        answering = [each for each in brokers if self._silent_until.get(each, 0.0) < now]
        chosen = super().get_random_node()
        return chosen if chosen in answering or not answering else answering[0]


class _Coordinator(GroupCoordinator):  # type: ignore[misc]  # aiokafka has no types
    """heard: told when a heartbeat was sent that the group has answered, and knows this member by."""

    heard: Callable[[float], None]

    async def _do_heartbeat(self) -> bool:
        sent_s = asyncio.get_running_loop().time()
        known = bool(await super()._do_heartbeat())
        if known:
            self.heard(sent_s)
        return known


class GroupMembership(ConsumerRebalanceListener):  # type: ignore[misc]  # aiokafka has no types
    """This node's membership. assigned: told the generation and its slots at each assignment, on the loop."""

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
        self.problem = "not joined yet"  # "": it is a member
        self.heard_s = 0.0
        """When the last sign of life was sent that the group has answered, by the loop's clock."""

    # -- its life

    def start(self) -> None:
        """Joins, as soon as Kafka answers."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def leave(self) -> None:
        """Says so: the others have its slots at once. Whoever calls has given them up."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        await self._close()

    def rejoin(self) -> None:
        """What it says of itself has changed in a way that is to be heard, or a wish has: another round, which begins
        after this call.
        """
        self._assignor.asked += 1
        if self._coordinator is not None:
            self._coordinator.request_rejoin()

    @property
    def generation(self) -> int:
        """Of the group, as last joined; -1: it is no member."""
        return -1 if self._coordinator is None else int(self._coordinator.generation)

    async def known(self, generation: int) -> bool:
        """Whether the group, asked now, knows this member in that generation, and no other is on its way.

        Nothing is asked while this member joins: the question would wait behind the joining, and be answered with an
        error that has aiokafka join once more, for ever.
        """
        coordinator = self._coordinator
        if coordinator is None or coordinator.generation != generation or coordinator._rejoin_needed_fut.done():
            return False
        try:
            heard = await coordinator._do_heartbeat()
        except KafkaError as error:
            self._access.outages.failed(THE_GROUP, error)
            return False
        still = coordinator is self._coordinator and coordinator.generation == generation
        return bool(heard) and still and not coordinator._rejoin_needed_fut.done()

    # -- at work

    async def _run(self) -> None:
        while True:
            try:
                await self._open()
                await self._each_second()
            except (KafkaError, OSError, ValueError) as error:
                self.problem = f"{type(error).__name__}: {error}"
                self._access.outages.failed(THE_GROUP, self.problem)
            except Exception as error:
                self.problem = repr(error)
                logger.exception("the group %s: a bug of the broker; next try in %g s", self._group, BEGIN_AGAIN_S)
            await self._close()
            await asyncio.sleep(BEGIN_AGAIN_S)

    async def _open(self) -> None:
        self._client = _Client(
            **self._access.aiokafka_options(),
            # A joining is answered when the others have joined as well, or are missed.
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
        self._coordinator.heard = self._heard

    def _heard(self, sent_s: float) -> None:
        self.heard_s = max(self.heard_s, sent_s)
        self._access.outages.answered(THE_GROUP)

    async def _each_second(self) -> None:
        """Polls; raises what the coordinator cannot see to by itself."""
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
            logger.warning("the group %s is left without a word: %s", self._group, error)
        finally:
            if client is not None:
                await client.close()

    # -- what aiokafka tells

    def on_partitions_revoked(self, revoked: object) -> None:
        """A rebalance begins: what is served goes on being served until an assignment leaves it out."""

    def on_partitions_assigned(self, assigned: Iterable[Any]) -> None:
        if self._coordinator is None:
            return  # it joined while it was being closed: what it was given goes to the others as it leaves
        self.problem = ""
        self._heard(asyncio.get_running_loop().time())
        slots = frozenset(each.partition for each in assigned if each.topic == self._topic)
        self._assigned(self.generation, slots)
        if self._assignor.heard != self._assignor.asked:
            self._coordinator.request_rejoin()  # it was asked for while this node joined, which aiokafka forgets
