"""Guarantees of a queue across owners: acks count, a new queue never shows old messages, an old epoch cannot write."""

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
from nodes_story import (
    LONG,
    VHOSTS,
    count,
    loaded,
    note,
    owner_of,
    owners_of,
    start_and_wait,
    wait_until_flowing,
    wait_until_served,
)
from quickclient import HEARS_CANCEL, Gone, Link, connect
from test_nodes_zombies import stop_owner

ACK_AGE_S = 0.15 if LONG else 3.0
"""CI machines may delay a node's 50 ms flush."""
PERSISTENT = b"\x10\x00\x02"


async def check_old_acks(nodes: Nodes, times: int) -> None:
    """Kill owners. A message whose ack is older than ACK_AGE_S must not be delivered again."""
    judged = 0
    async with loaded(nodes, publishers=1) as load:
        for turn in range(times):
            vhost = VHOSTS[turn % len(VHOSTS)]
            victim = await owner_of(nodes, vhost)
            victim_vhosts = [each for each, owner in (await owners_of(nodes)).items() if owner == victim]
            await asyncio.sleep(1.0 + ACK_AGE_S)
            before = len(load.account.returned)
            old = [
                (queue, name)
                for queue in victim_vhosts
                for name, copy in load.account.seen[queue].items()
                if copy.heard_at and copy.heard_at < time.monotonic() - ACK_AGE_S
            ]
            since = time.monotonic()
            nodes.kill(victim)
            await wait_until_served(load, victim_vhosts, since)
            await start_and_wait(nodes, victim)
            await wait_until_flowing(load, VHOSTS)
            returned = [each for each in load.account.returned[before:] if 0 < each.heard_at < since - ACK_AGE_S]
            assert returned == [], (
                f"{len(returned)} of {len(old)} messages came back although they had been acked for long"
            )
            judged += len(old)
    note("acks", kills=times, judged=judged, told=load.account.summary())
    assert judged > 0


@pytest.mark.on_demand
async def test_old_acks_survive_a_kill(nodes: Nodes) -> None:
    """Acceptance 8, except its ten million acks: test_replicated_log.py covers what they leave."""
    await check_old_acks(nodes, count(2, 30))


@pytest.mark.on_demand
async def test_planted_unsent_acks_are_redelivered(tmp_path: Path, brokers: Kafka) -> None:
    """Planted fault: acks are not sent to Kafka."""
    with (
        Nodes(tmp_path, brokers, 3, name="planted-8", plant="no-settlements") as nodes,
        pytest.raises(AssertionError, match="came back although they had been acked"),
    ):
        await check_old_acks(nodes, 3)


class RecreatedQueue:
    """A queue that is declared, filled, deleted and declared again, over any node."""

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

    async def run_round(self) -> None:
        """Run one round. A message found must be of the last incarnation, or of one whose deletion was not answered."""
        self.round += 1
        is_new = False  # whether the queue is known to be new
        while True:
            try:
                link = await self._open()
                if not is_new:
                    await link.delete_queue("anew")
                    await link.declare_queue("anew")
                    is_new = True
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
                # The deletion or declaration was not answered, so its outcome is unknown: repeat it.
                self.again += 1
                is_new = is_new and self.again % 2 == 0
                await asyncio.sleep(0.1)


async def delete_and_declare(nodes: Nodes, rounds: int, kills: int) -> None:
    """Repeat with kills, and with a zombie whose batch for a former incarnation arrives late."""
    await asyncio.to_thread(nodes.add_vhost, "red")
    load = Load(account=_empty_account(), addresses=[node.amqp for node in nodes])
    queue = RecreatedQueue(load, "red")
    try:
        for turn in range(rounds):
            await queue.run_round()
            if kills and turn % max(1, rounds // kills) == rounds // kills - 1:
                victim = await owner_of(nodes, "red")
                if turn % 2:
                    nodes.kill(victim)
                    await queue.run_round()
                    await start_and_wait(nodes, victim)
                else:
                    late = await connect(nodes[victim].amqp[1], vhost="red", patience_s=300, properties=HEARS_CANCEL)
                    nodes.pause(victim)
                    late.publish("", "anew", PERSISTENT, b"0;late")
                    assert queue.link is not None
                    queue.link.abort()
                    await queue.run_round()
                    nodes.resume(victim)
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(late.gone.wait(), 60)
                    late.abort()
                await queue.run_round()
    finally:
        if queue.link is not None:
            queue.link.abort()
            await queue.link.gone.wait()
        await load.leave()
    note("anew", rounds=queue.round, again=queue.again)


def _empty_account():
    from account import Account

    return Account()


@pytest.mark.on_demand
async def test_new_queue_never_shows_an_old_message(nodes: Nodes) -> None:
    """Acceptance 9."""
    await delete_and_declare(nodes, count(40, 1000), count(3, 40))


@pytest.mark.on_demand
async def test_planted_reused_partition_shows_old_messages(tmp_path: Path, brokers: Kafka) -> None:
    """Planted fault: a partition is reused from its start, without a first record of the new queue."""
    with (
        Nodes(tmp_path, brokers, 3, name="planted-9", plant="old-place") as nodes,
        pytest.raises(AssertionError, match=r"^round \d+ found|^\d+: Message") as failure,
    ):
        await delete_and_declare(nodes, 40, 4)
    note("planted 9", seen=str(failure.value)[:300])


async def forgotten_producers(tmp_path: Path, plant: str, times: int) -> None:
    settings = {"producer.id.expiration.ms": "4000", "producer.id.expiration.check.interval.ms": "500"}
    with (
        Kafka(tmp_path / "kafka", settings=settings) as kafka,
        Nodes(tmp_path, kafka, 2, name="forgetful", plant=plant) as nodes,
    ):
        await stop_owner(nodes, kafka, times, 30)


@pytest.mark.on_demand
async def test_old_epoch_stays_fenced_when_kafka_forgets_producers(tmp_path: Path) -> None:
    """Acceptance 10, with hours compressed to seconds: the owner writes a record to each partition often enough."""
    kafka_rig.need(kafka_rig.missing())
    await forgotten_producers(tmp_path, "fast-keep-alive", count(1, 5))


@pytest.mark.on_demand
async def test_planted_no_keep_alive_lets_an_old_epoch_write(tmp_path: Path) -> None:
    """Planted fault: no keep-alive records. A zombie that learns of the new owner before it sends writes nothing, but
    one of several does. Clients of the next turn may report the zombie's message as never published.
    """
    kafka_rig.need(kafka_rig.missing())
    wrong = r"a zombie has confirmed|had has been stored|epoch \d+ behind|was never published"
    with pytest.raises(AssertionError, match=wrong):
        await forgotten_producers(tmp_path, "no-keep-alive", 5)
