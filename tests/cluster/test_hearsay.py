"""What other nodes say that they serve, while Kafka does not answer: real inner ports, and no Kafka."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from amqpd.cluster import peer_link
from amqpd.cluster.peer_link import NodeCertificate, PeerConnector, PeerListener, accept_peer, identity
from amqpd.cluster.peer_server import CUT_OFF, Frames, PeerStatusMonitor
from amqpd.cluster.state import ClusterState, Owner
from amqpd.cluster.view import NodeState, View
from amqpd.kafka.config import KafkaAccess
from amqpd.kafka.requests import ProducerId

SECRET = b"the old pond, a frog jumps in"
SESSION_S = 6.0


class Table(View):
    def __init__(self, me: str, found: list[NodeState]) -> None:
        super().__init__()
        self.node_name = me
        self._found = found

    def nodes(self) -> list[NodeState]:
        return self._found


class Slot:
    """As `OwnedSlot`, as far as it is asked. silent_s: how long ago Kafka has answered."""

    def __init__(self, epoch: int, *, silent_s: float = 0.0) -> None:
        self.held = ProducerId(0, 1000, epoch)
        self.epoch = epoch
        self.is_suspended = silent_s > SESSION_S
        self.end_reason = ""
        self.producer = SimpleNamespace(answered_s=asyncio.get_running_loop().time() - silent_s)
        self.logs = SimpleNamespace(fenced=self._fenced)

    def _fenced(self, why: str) -> None:
        self.end_reason = why


class One:
    """A node, as the others see it."""

    def __init__(self, name: str, shown: NodeCertificate, nodes: list[NodeState]) -> None:
        self.name = name
        self.state = ClusterState(KafkaAccess(("127.0.0.1:1",)), "meta", 4)
        self.owned: dict[int, Any] = {}
        self.answers = True
        self.told: list[str] = []
        self.asked = 0
        self.connector = PeerConnector(name, SECRET)
        self.hearsay = PeerStatusMonitor(
            self.connector,
            Table(name, nodes),
            self.state,
            lambda: self.owned,
            lambda: self.answers,
            SESSION_S,
            self.told.append,
        )
        self.kinds: dict[str, Callable[[Any, asyncio.Transport], Awaitable[None]]] = {peer_link.SERVED: self._take}
        self.door = PeerListener(shown, SECRET, self.kinds)
        self.door.listen("127.0.0.1", 0)
        self.fingerprint = shown.fingerprint
        nodes.append(NodeState(name, "127.0.0.1", self.door.port, self.fingerprint))

    async def _take(self, preamble: Any, transport: asyncio.Transport) -> None:
        self.asked += 1
        await self.hearsay.accept(preamble, transport)

    def owns(self, slot: int, epoch: int, *, silent_s: float = 0.0) -> Slot:
        """It has taken it, and its note is known here."""
        self.owned[slot] = Slot(epoch, silent_s=silent_s)
        self.state.owners[slot] = self.note(epoch)
        return self.owned[slot]  # type: ignore[no-any-return]

    def note(self, epoch: int) -> Owner:
        return Owner(self.name, f"127.0.0.1:{self.door.port}", self.fingerprint, 1000, epoch, 0)


@pytest.fixture
async def nodes(tmp_path: Path) -> Any:
    """Nodes a, b and c, who know each other."""
    found: list[NodeState] = []
    ones = []
    for name in "abc":
        (tmp_path / name).mkdir()
        ones.append(One(name, identity(tmp_path / name), found))
    yield ones
    for one in ones:
        one.door.close()


async def test_a_slot_that_another_serves_has_ended_and_its_clients_go_there(nodes: list[One]) -> None:
    a, b, _ = nodes
    a.answers = False
    ours = a.owns(1, 3, silent_s=7)
    b.owns(1, 4)
    b.owns(2, 1)
    await a.hearsay.poll()
    assert ours.end_reason == "node b serves it with epoch 4"
    assert a.state.owner_of(1) == b.note(4)
    assert a.state.owner_of(2) == b.note(1)
    assert a.told == []


async def test_nobody_is_asked_while_kafka_answers(nodes: list[One]) -> None:
    a, b, c = nodes
    ours = a.owns(1, 3)
    b.owns(1, 4)
    await a.hearsay.poll()
    assert (b.asked, c.asked, ours.end_reason) == (0, 0, "")


async def test_a_lease_that_has_not_lapsed_is_kept(nodes: list[One]) -> None:
    """The group does not answer just now; what the slot writes, Kafka takes."""
    a, b, _ = nodes
    a.answers = False
    ours = a.owns(1, 3, silent_s=1)
    b.owns(1, 4)
    await a.hearsay.poll()
    assert b.asked == 1
    assert ours.end_reason == ""
    assert a.state.owner_of(1) == a.note(3)


async def test_one_whose_own_lease_has_lapsed_says_nothing(nodes: list[One]) -> None:
    """Kafka is away from all: nobody has taken anything, and nothing ends."""
    a, b, _ = nodes
    a.answers = b.answers = False
    ours = a.owns(1, 3, silent_s=7)
    b.owns(1, 4, silent_s=7)
    await a.hearsay.poll()
    assert b.asked == 1
    assert (ours.end_reason, a.told) == ("", [])


@pytest.mark.parametrize("epoch", [2, 3])
async def test_who_served_it_before_is_not_believed(nodes: list[One], epoch: int) -> None:
    """It has stood still, and does not know yet."""
    a, b, _ = nodes
    a.answers = False
    ours = a.owns(1, 3, silent_s=7)
    b.owns(1, epoch)
    await a.hearsay.poll()
    assert ours.end_reason == ""
    assert a.state.owner_of(1) == a.note(3)


async def test_what_is_not_announced_is_not_said(nodes: list[One]) -> None:
    """A later epoch that its own note does not have yet, and what has ended."""
    _, b, _ = nodes
    b.owns(1, 4).epoch = 5
    b.owns(2, 4).end_reason = "another has it"
    b.owns(3, 4)
    assert b.hearsay.served_slots() == {3: b.note(4)}


async def test_nobody_answers_neither_kafka_nor_a_node(nodes: list[One]) -> None:
    a, b, c = nodes
    a.answers = False
    b.door.close()
    c.door.close()
    await a.hearsay.poll()
    assert a.told == []
    await a.hearsay.poll()
    await a.hearsay.poll()
    assert a.told == [CUT_OFF]
    a.answers = True
    await a.hearsay.poll()
    assert a.told == [CUT_OFF, ""]


async def test_a_node_that_answers_again(nodes: list[One]) -> None:
    a, b, c = nodes
    a.answers = False
    b.door.close()
    c.door.close()
    await a.hearsay.poll()
    await a.hearsay.poll()
    assert a.hearsay.cut_off == CUT_OFF
    c.door.listen("127.0.0.1", c.door.port)
    await a.hearsay.poll()
    assert a.told == [CUT_OFF, ""]


async def test_the_only_node_has_nobody_better(nodes: list[One]) -> None:
    a = nodes[0]
    a.answers = False
    a.hearsay._view.nodes()[1:] = []
    await a.hearsay.poll()
    await a.hearsay.poll()
    assert a.told == []


@pytest.mark.parametrize(
    "said", [b"", b"[]", b"{}", b'{"slots": {"x": {}}}', b'{"slots": {"1": {"node": "b"}}}', b'{"slots": {"1": null}}']
)
async def test_what_is_not_understood_is_no_answer(nodes: list[One], said: bytes) -> None:
    a, b, c = nodes
    a.answers = False
    c.door.close()
    ours = a.owns(1, 3, silent_s=7)

    async def take(_preamble: object, transport: asyncio.Transport) -> None:
        accept_peer(transport, Frames(lambda _: None))
        transport.write(len(said).to_bytes(4, "big") + said)

    b.kinds[peer_link.SERVED] = take
    await a.hearsay.poll()
    await a.hearsay.poll()
    assert (ours.end_reason, a.told) == ("", [CUT_OFF])


async def test_a_node_is_believed_of_itself_alone(nodes: list[One]) -> None:
    a, b, c = nodes
    a.answers = False
    ours = a.owns(1, 3, silent_s=7)
    b.owns(1, 4)
    b.state.owners[1] = c.note(4)
    await a.hearsay.poll()
    assert ours.end_reason == ""


async def test_a_record_that_comes_late_does_not_undo_what_was_heard(nodes: list[One]) -> None:
    """Kafka is back, and `meta` is read on from where it ended."""
    a, b, c = nodes
    from amqpd.cluster.row_codec import encode_note

    a.state.apply_announcement(1, c.note(6))
    a.state._apply_owner(1, encode_note(b.note(5).note(1))[1])
    assert a.state.owner_of(1) == c.note(6)
    a.state._apply_owner(1, encode_note(b.note(7).note(1))[1])
    assert a.state.owner_of(1) == b.note(7)
