"""What a queue promises across owners: acks count, a new queue never shows an old message, an old epoch stays out."""

from __future__ import annotations

import asyncio
import contextlib
import time
from pathlib import Path

import kafka_rig
import pytest
from amqpd_nodes import Nodes
from kafka_rig import Kafka
from nodes_load import Load
from nodes_story import LONG, VHOSTS, count, flowing, loaded, note, owner_of, owners_of, served, started
from quickclient import HEARS_CANCEL, Gone, Link, connect
from test_nodes_zombies import stopped_owner

ACK_AGE_S = 0.15 if LONG else 3.0
"""CI's machines may keep a node from its 50 ms for a while."""
PERSISTENT = b"\x10\x00\x02"


async def acks_count(nodes: Nodes, times: int) -> None:
    """An ack that is older than ACK_AGE_S when its node is killed does not come back."""
    judged = 0
    async with loaded(nodes, publishers=1) as load:
        for turn in range(times):
            vhost = VHOSTS[turn % len(VHOSTS)]
            victim = await owner_of(nodes, vhost)
            his = [each for each, owner in (await owners_of(nodes)).items() if owner == victim]
            await asyncio.sleep(1.0 + ACK_AGE_S)
            before = len(load.account.returned)
            old = [
                (queue, name)
                for queue in his
                for name, copy in load.account.seen[queue].items()
                if copy.heard_at and copy.heard_at < time.monotonic() - ACK_AGE_S
            ]
            since = time.monotonic()
            nodes.kill(victim)
            await served(load, his, since)
            await started(nodes, victim)
            await flowing(load, VHOSTS)
            back = [each for each in load.account.returned[before:] if 0 < each.heard_at < since - ACK_AGE_S]
            assert back == [], f"{len(back)} of {len(old)} messages came back although they had been acked for long"
            judged += len(old)
    note("acks", kills=times, judged=judged, told=load.account.told())
    assert judged > 0


@pytest.mark.on_demand
async def test_acks_that_are_old_enough_count(nodes: Nodes) -> None:
    """Acceptance 8, but for its ten million acks (test_replicated_log.py has what they leave)."""
    await acks_count(nodes, count(2, 30))


@pytest.mark.on_demand
async def test_settlements_that_are_not_told_come_back(tmp_path: Path, brokers: Kafka) -> None:
    """Planted: what consumers have acked is not told to Kafka."""
    with (
        Nodes(tmp_path, brokers, 3, name="planted-8", plant="no-settlements") as nodes,
        pytest.raises(AssertionError, match="came back although they had been acked"),
    ):
        await acks_count(nodes, 3)


class Anew:
    """A queue that is declared, filled, deleted and declared again, over whichever node there is."""

    def __init__(self, load: Load, vhost: str) -> None:
        self.load = load
        self.vhost = vhost
        self.link: Link | None = None
        self.round = 0
        self.again = 0

    async def _open(self) -> Link:
        if self.link is None or self.link.gone.is_set():
            self.link = await self.load._connect(self.vhost)
            await self.link.confirm_select()
        return self.link

    async def go(self) -> None:
        """One round. What is found must be of the incarnation that was declared last, or of one whose deletion nobody
        answered.
        """
        self.round += 1
        sure = False  # whether the queue is known to be new
        while True:
            try:
                link = await self._open()
                if not sure:
                    await link.delete_queue("anew")
                    await link.declare_queue("anew")
                    sure = True
                found = await link.get("anew", no_ack=True)
                if found is not None:
                    assert found.body.startswith(b"%d;" % self.round), f"round {self.round} found {found.body[:20]!r}"
                for number in range(5):
                    link.publish("", "anew", PERSISTENT, b"%d;%d" % (self.round, number))
                await link.qos(1)
                found = await link.get("anew", no_ack=True)
                assert found is None or found.body.startswith(b"%d;" % self.round), f"{self.round}: {found}"
                return
            except (Gone, TimeoutError, OSError):
                # A deletion or a declaration without an answer: done or not, it is done once more.
                self.again += 1
                sure = sure and self.again % 2 == 0
                await asyncio.sleep(0.1)


async def deleted_and_declared(nodes: Nodes, rounds: int, kills: int) -> None:
    """With kills between, and a zombie whose batch of a former incarnation comes late."""
    await asyncio.to_thread(nodes.add_vhost, "red")
    load = Load(account=_none(), addresses=[node.amqp for node in nodes])
    queue = Anew(load, "red")
    try:
        for turn in range(rounds):
            await queue.go()
            if kills and turn % max(1, rounds // kills) == rounds // kills - 1:
                victim = await owner_of(nodes, "red")
                if turn % 2:
                    nodes.kill(victim)
                    await queue.go()
                    await started(nodes, victim)
                else:
                    late = await connect(nodes[victim].amqp[1], vhost="red", patience_s=300, properties=HEARS_CANCEL)
                    nodes.pause(victim)
                    late.publish("", "anew", PERSISTENT, b"0;late")
                    assert queue.link is not None
                    queue.link.abort()
                    await queue.go()
                    nodes.resume(victim)
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(late.gone.wait(), 60)
                    late.abort()
                await queue.go()
    finally:
        if queue.link is not None:
            queue.link.abort()
            await queue.link.gone.wait()
        await load.leave()
    note("anew", rounds=queue.round, again=queue.again)


def _none():
    from account import Account

    return Account()


@pytest.mark.on_demand
async def test_a_new_queue_never_shows_an_old_message(nodes: Nodes) -> None:
    """Acceptance 9."""
    await deleted_and_declared(nodes, count(40, 1000), count(3, 40))


@pytest.mark.on_demand
async def test_a_queue_that_begins_where_another_did_shows_its_messages(tmp_path: Path, brokers: Kafka) -> None:
    """Planted: a partition is used again from its beginning, without a record of its own before it."""
    with (
        Nodes(tmp_path, brokers, 3, name="planted-9", plant="old-place") as nodes,
        pytest.raises(AssertionError, match=r"^round \d+ found|^\d+: Message") as seen,
    ):
        await deleted_and_declared(nodes, 40, 4)
    note("planted 9", seen=str(seen.value)[:300])


async def forgotten_producers(tmp_path: Path, plant: str, times: int) -> None:
    settings = {"producer.id.expiration.ms": "4000", "producer.id.expiration.check.interval.ms": "500"}
    with (
        Kafka(tmp_path / "kafka", settings=settings) as kafka,
        Nodes(tmp_path, kafka, 2, name="forgetful", plant=plant) as nodes,
    ):
        await stopped_owner(nodes, kafka, times, 30)


@pytest.mark.on_demand
async def test_an_old_epoch_stays_out_where_kafka_forgets_producers(tmp_path: Path) -> None:
    """Acceptance 10: hours pass in seconds; each partition has a record of its owner often enough."""
    kafka_rig.need(kafka_rig.missing())
    await forgotten_producers(tmp_path, "fast-keep-alive", count(1, 5))


@pytest.mark.on_demand
async def test_without_the_hourly_record_an_old_epoch_comes_in(tmp_path: Path) -> None:
    """Planted: it is left out. Who hears of the new owner before he sends writes nothing: one of several does.
    What it has written may be told by the next turn's clients, to whom it is strange.
    """
    kafka_rig.need(kafka_rig.missing())
    wrong = r"a zombie has confirmed|had has been stored|epoch \d+ behind|was never published"
    with pytest.raises(AssertionError, match=wrong):
        await forgotten_producers(tmp_path, "no-keep-alive", 5)
