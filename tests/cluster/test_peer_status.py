"""PeerStatusMonitor: the slots that other nodes report to serve while Kafka does not answer. Real peer listeners, no
Kafka.
"""

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
from amqpd.cluster.view import ClusterView, NodeState
from amqpd.kafka.config import KafkaAccess
from amqpd.kafka.requests import ProducerId

SECRET = b"the old pond, a frog jumps in"
SESSION_S = 6.0


class Table(ClusterView):
    def __init__(self, me: str, found: list[NodeState]) -> None:
        self.listeners = []
        self.node_name = me
        self._found = found

    def nodes(self) -> list[NodeState]:
        return self._found


class Slot:
    """A stand-in for `OwnedSlot`. silent_s: seconds since Kafka's last answer."""

    def __init__(self, epoch: int, *, silent_s: float = 0.0) -> None:
        self.held = ProducerId(0, 1000, epoch)
        self.epoch = epoch
        self.is_suspended = silent_s > SESSION_S
        self.end_reason = ""
        self.producer = SimpleNamespace(answered_s=asyncio.get_running_loop().time() - silent_s)
        self.logs = SimpleNamespace(fenced=self._fenced)

    def _fenced(self, why: str) -> None:
        self.end_reason = why


class FakeNode:
    """A node with its peer listener."""

    def __init__(self, name: str, certificate: NodeCertificate, nodes: list[NodeState]) -> None:
        self.name = name
        self.state = ClusterState(KafkaAccess(("127.0.0.1:1",)), "meta", 4)
        self.owned: dict[int, Any] = {}
        self.answers = True
        self.problems: list[str] = []
        self.poll_count = 0
        self.connector = PeerConnector(name, SECRET)
        self.monitor = PeerStatusMonitor(
            self.connector,
            Table(name, nodes),
            self.state,
            lambda: self.owned,
            lambda: self.answers,
            SESSION_S,
            self.problems.append,
        )
        self.kinds: dict[str, Callable[[Any, asyncio.Transport], Awaitable[None]]] = {peer_link.SERVED: self._take}
        self.listener = PeerListener(certificate, SECRET, self.kinds)
        self.listener.listen("127.0.0.1", 0)
        self.fingerprint = certificate.fingerprint
        nodes.append(NodeState(name, "127.0.0.1", self.listener.port, self.fingerprint))

    async def _take(self, preamble: Any, transport: asyncio.Transport) -> None:
        self.poll_count += 1
        await self.monitor.accept(preamble, transport)

    def owns(self, slot: int, epoch: int, *, silent_s: float = 0.0) -> Slot:
        """Own the slot; its owner note is known on this node."""
        self.owned[slot] = Slot(epoch, silent_s=silent_s)
        self.state.owners[slot] = self.note(epoch)
        return self.owned[slot]  # type: ignore[no-any-return]

    def note(self, epoch: int) -> Owner:
        return Owner(self.name, f"127.0.0.1:{self.listener.port}", self.fingerprint, 1000, epoch, 0)


@pytest.fixture
async def nodes(tmp_path: Path) -> Any:
    """Nodes a, b and c, which know each other."""
    found: list[NodeState] = []
    fake_nodes = []
    for name in "abc":
        (tmp_path / name).mkdir()
        fake_nodes.append(FakeNode(name, identity(tmp_path / name), found))
    yield fake_nodes
    for node in fake_nodes:
        node.listener.close()


async def test_slot_served_by_a_peer_with_a_later_epoch_ends_here(nodes: list[FakeNode]) -> None:
    a, b, _ = nodes
    a.answers = False
    ours = a.owns(1, 3, silent_s=7)
    b.owns(1, 4)
    b.owns(2, 1)
    await a.monitor.poll()
    assert ours.end_reason == "node b serves it with epoch 4"
    assert a.state.owner_of(1) == b.note(4)
    assert a.state.owner_of(2) == b.note(1)
    assert a.problems == []


async def test_peers_are_not_polled_while_kafka_answers(nodes: list[FakeNode]) -> None:
    a, b, c = nodes
    ours = a.owns(1, 3)
    b.owns(1, 4)
    await a.monitor.poll()
    assert (b.poll_count, c.poll_count, ours.end_reason) == (0, 0, "")


async def test_slot_within_its_lease_is_kept(nodes: list[FakeNode]) -> None:
    """Only the group does not answer; Kafka still accepts what the slot writes."""
    a, b, _ = nodes
    a.answers = False
    ours = a.owns(1, 3, silent_s=1)
    b.owns(1, 4)
    await a.monitor.poll()
    assert b.poll_count == 1
    assert ours.end_reason == ""
    assert a.state.owner_of(1) == a.note(3)


async def test_peer_with_a_lapsed_lease_does_not_claim_its_slots(nodes: list[FakeNode]) -> None:
    """No node reaches Kafka, so none has taken over a slot."""
    a, b, _ = nodes
    a.answers = b.answers = False
    ours = a.owns(1, 3, silent_s=7)
    b.owns(1, 4, silent_s=7)
    await a.monitor.poll()
    assert b.poll_count == 1
    assert (ours.end_reason, a.problems) == ("", [])


@pytest.mark.parametrize("epoch", [2, 3])
async def test_claim_with_an_older_or_equal_epoch_is_ignored(nodes: list[FakeNode], epoch: int) -> None:
    """The peer was stopped for a while and does not know the later epoch."""
    a, b, _ = nodes
    a.answers = False
    ours = a.owns(1, 3, silent_s=7)
    b.owns(1, epoch)
    await a.monitor.poll()
    assert ours.end_reason == ""
    assert a.state.owner_of(1) == a.note(3)


async def test_unannounced_and_ended_slots_are_not_reported(nodes: list[FakeNode]) -> None:
    """Slot 1 has a later epoch than its note; slot 2 has ended."""
    _, b, _ = nodes
    b.owns(1, 4).epoch = 5
    b.owns(2, 4).end_reason = "another has it"
    b.owns(3, 4)
    assert b.monitor.served_slots() == {3: b.note(4)}


async def test_node_is_cut_off_when_neither_kafka_nor_peers_answer(nodes: list[FakeNode]) -> None:
    a, b, c = nodes
    a.answers = False
    b.listener.close()
    c.listener.close()
    await a.monitor.poll()
    assert a.problems == []
    await a.monitor.poll()
    await a.monitor.poll()
    assert a.problems == [CUT_OFF]
    a.answers = True
    await a.monitor.poll()
    assert a.problems == [CUT_OFF, ""]


async def test_answer_of_one_peer_ends_the_cut_off_state(nodes: list[FakeNode]) -> None:
    a, b, c = nodes
    a.answers = False
    b.listener.close()
    c.listener.close()
    await a.monitor.poll()
    await a.monitor.poll()
    assert a.monitor.cut_off == CUT_OFF
    c.listener.listen("127.0.0.1", c.listener.port)
    await a.monitor.poll()
    assert a.problems == [CUT_OFF, ""]


async def test_single_node_is_never_cut_off(nodes: list[FakeNode]) -> None:
    a = nodes[0]
    a.answers = False
    a.monitor._view.nodes()[1:] = []
    await a.monitor.poll()
    await a.monitor.poll()
    assert a.problems == []


@pytest.mark.parametrize(
    "reply", [b"", b"[]", b"{}", b'{"slots": {"x": {}}}', b'{"slots": {"1": {"node": "b"}}}', b'{"slots": {"1": null}}']
)
async def test_malformed_reply_is_no_answer(nodes: list[FakeNode], reply: bytes) -> None:
    a, b, c = nodes
    a.answers = False
    c.listener.close()
    ours = a.owns(1, 3, silent_s=7)

    async def take(_preamble: object, transport: asyncio.Transport) -> None:
        accept_peer(transport, Frames(lambda _: None))
        transport.write(len(reply).to_bytes(4, "big") + reply)

    b.kinds[peer_link.SERVED] = take
    await a.monitor.poll()
    await a.monitor.poll()
    assert (ours.end_reason, a.problems) == ("", [CUT_OFF])


async def test_claim_for_another_node_is_ignored(nodes: list[FakeNode]) -> None:
    a, b, c = nodes
    a.answers = False
    ours = a.owns(1, 3, silent_s=7)
    b.owns(1, 4)
    b.state.owners[1] = c.note(4)
    await a.monitor.poll()
    assert ours.end_reason == ""


async def test_late_meta_record_does_not_undo_a_newer_announcement(nodes: list[FakeNode]) -> None:
    """After an outage `meta` is read from the old position."""
    a, b, c = nodes
    from amqpd.cluster.row_codec import encode_note

    a.state.set_owner(1, c.note(6))
    a.state._apply_owner(1, encode_note(b.note(5).note(1))[1])
    assert a.state.owner_of(1) == c.note(6)
    a.state._apply_owner(1, encode_note(b.note(7).note(1))[1])
    assert a.state.owner_of(1) == b.note(7)
