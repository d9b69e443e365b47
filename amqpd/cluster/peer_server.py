"""Which slots other nodes serve, as they say themselves: asked while Kafka does not tell.

A node that is cut off from Kafka may have been replaced, and would hear of it from Kafka alone: its clients stood still
until it gave up what it could not store, `cluster.delivery_timeout_s` later. So, while a slot's lease has lapsed
(lease.py), or the group has not answered for the session time-out, it asks the nodes it knows, each ASK_S:

    a slot of ours is served elsewhere      it has ended, as where Kafka says so: 320, and clients come back
    any slot is                             its clients are relayed there
    no node answers, nor does Kafka         all connections are closed, and none is opened: 320, try another node
    they answer, and serve none of it       Kafka is away from all, or a takeover is on its way: all goes on as it is

A node says only what it serves itself, with a lease that has not lapsed: behind its barrier, so that what we would
still write Kafka refuses. Who is wrong about it costs clients a connection, and nobody a message.

An inner connection of kind SERVED carries the answer, u32 length and JSON: {"slots": {slot: the owner's note}}.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from amqpd.cluster import preamble as words
from amqpd.cluster.state import ClusterState, Owner
from amqpd.cluster.forward import Frames
from amqpd.cluster.peer_link import NotReached, Refused, welcome
from amqpd.cluster.row_codec import Newer
from amqpd.cluster.ownership import OwnedSlot

if TYPE_CHECKING:
    from amqpd.cluster.peer_link import Connector
    from amqpd.cluster.preamble import Preamble
    from amqpd.cluster.view import Node, View

logger = logging.getLogger(__name__)

ASK_S: Final = 1.0
ANSWER_S: Final = 2.0
ROUNDS: Final = 2
"""In which nobody has answered, before clients are sent away."""
CUT_OFF: Final = "this node reaches neither Kafka nor another node of the cluster: connect to another node"


class Hearsay:
    """Of one node. owned: the slots it serves. answers: whether Kafka does. on_cut_off: told why clients are sent
    away, "" when they are let in again.
    """

    def __init__(
        self,
        connector: Connector,
        view: View,
        state: ClusterState,
        owned: Callable[[], Mapping[int, OwnedSlot]],
        answers: Callable[[], bool],
        session_timeout_s: float,
        on_cut_off: Callable[[str], None],
    ) -> None:
        self._connector = connector
        self._view = view
        self._state = state
        self._owned = owned
        self._answers = answers
        self._timeout_s = session_timeout_s
        self._on_cut_off = on_cut_off
        self._asking: asyncio.Task[None] | None = None
        self._unanswered = 0  # rounds
        self._silent: set[str] = set()  # names of nodes that did not answer when they were asked last
        self.cut_off = ""

    def start(self) -> None:
        """Looks each ASK_S whether there is anything to ask."""
        self._asking = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Nothing is asked any more."""
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.gather(self._asking, return_exceptions=True)

    # -- asking --------------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(ASK_S)
            try:
                await self.look()
            except Exception:
                logger.exception("other nodes were not asked: a bug of the broker")

    async def look(self) -> None:
        """Asks, if there is anything to ask. Cost: a TLS handshake a node."""
        said = False
        others = [node for node in self._view.nodes() if node.name != self._view.me]
        wanted = not self._answers() or any(owned.halted for owned in self._owned().values())
        if wanted and others:
            said = any(await asyncio.gather(*(self._ask(node) for node in others)))
        alone = bool(others) and not said and not self._answers()
        self._unanswered = self._unanswered + 1 if alone else 0
        why = CUT_OFF if self._unanswered >= ROUNDS else ""
        if why != self.cut_off:
            self.cut_off = why
            logger.warning("clients are sent away: %s", why) if why else logger.warning("clients are let in again")
            self._on_cut_off(why)

    async def _ask(self, node: Node) -> bool:
        """Whether it has answered."""
        answered: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()

        def came(message: bytes | None) -> None:
            if not answered.done():
                answered.set_result(message)

        frames = Frames(came)
        try:
            async with asyncio.timeout(ANSWER_S):
                await self._connector.open(node, self._connector.preamble(words.SERVED), frames)
                message = await answered
        except (NotReached, Refused, TimeoutError) as error:
            if node.name not in self._silent:
                self._silent.add(node.name)
                logger.info("node %s is asked what it serves: %s", node.name, str(error) or "no answer")
            return False
        finally:
            frames.end()
        if message is None:
            return False
        self._silent.discard(node.name)
        try:
            found = {int(slot): Owner.of(note) for slot, note in json.loads(message)["slots"].items()}
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, Newer) as error:
            logger.error("node %s says what is not understood: %r", node.name, error)
            return False
        for slot, owner in found.items():
            if (owner.node, owner.fingerprint) == (node.name, node.fingerprint) and 0 <= slot < self._state.slots:
                self._hear(slot, owner)
        return True

    def _hear(self, slot: int, owner: Owner) -> None:
        known = self._state.owner_of(slot)
        if known is not None and (owner == known or owner.was_before(known)):
            return
        ours = self._owned().get(slot)
        if ours is not None:
            if not ours.halted or (ours.held.producer_id == owner.producer_id and owner.epoch <= ours.epoch):
                return
            ours.logs.fenced(f"node {owner.node} says that it serves it, by epoch {owner.epoch}")
        self._state.hear(slot, owner)

    # -- answering -----------------------------------------------------------------------------------------------------

    def served(self) -> dict[int, Owner]:
        """What this node may say that it serves: it has told Kafka, and Kafka has answered since, not long ago."""
        now = asyncio.get_running_loop().time()
        found: dict[int, Owner] = {}
        for slot, owned in self._owned().items():
            owner = self._state.owner_of(slot)
            if owner is None or owned.ended or now - owned.producer.answered_s > self._timeout_s:
                continue
            if (owner.producer_id, owner.epoch) == (owned.held.producer_id, owned.epoch):
                found[slot] = owner
        return found

    async def take(self, _preamble: Preamble, transport: asyncio.Transport) -> None:
        """An inner connection of kind SERVED; who asks ends it."""
        frames = Frames(lambda _: frames.end())
        welcome(transport, frames)
        said: dict[str, Any] = {str(slot): owner._asdict() for slot, owner in self.served().items()}
        frames.say({"slots": said})
