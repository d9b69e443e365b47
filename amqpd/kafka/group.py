"""Who is there, and which slots this node is to have: Kafka's consumer group protocol, by aiokafka's coordinator.

The group is `amqpd.<cluster>` over the partitions of `settled`; nothing is consumed. Each member says at every joining
what it has (`assignment.Member`, as JSON in the user data), the leader assigns by `assignment.assign`, and everybody is
told through `assigned`. Rebalances are eager, and what is being served goes on being served meanwhile: only an
assignment that leaves a slot out ends that.

A node that leaves says so (`leave`), and the others have its slots within a second; one that is killed is missed after
the session time-out. aiokafka lets a member go that is not polled for `max_poll_interval_ms`: `_each_second` polls.

An assignment is a hint. Before a slot is taken the member makes sure that the group still knows it (`known`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from aiokafka.abc import ConsumerRebalanceListener
from aiokafka.client import AIOKafkaClient, ConnectionGroup
from aiokafka.conn import CloseReason
from aiokafka.consumer.group_coordinator import GroupCoordinator
from aiokafka.consumer.subscription_state import SubscriptionState
from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment, ConsumerProtocolMemberMetadata
from aiokafka.errors import KafkaError, RequestTimedOutError
from aiokafka.protocol.group import JoinGroupRequest, SyncGroupRequest

from amqpd.kafka.config import KafkaAccess
from amqpd.kafka.assignment import Member, Peer, assign, decode_member, decode_peers, decode_refusal, encode_member, encode_peers, encode_refusal, refusals
from amqpd.kafka.connection import SILENT_S
from amqpd.cluster.outages import THE_GROUP

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


class Members(ConsumerRebalanceListener):  # type: ignore[misc]  # aiokafka has no types
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
