"""A queue with groups under load: consumers disconnect without notice, and the broker is killed.

After each kill -9 the load continues; at the end the queue is drained. `groups_story.py` has the publishers, the
consumers and the judge. `TEST_CRASH_CYCLES` and `TEST_CRASH_SEED` set other cycles.
"""

from __future__ import annotations

import asyncio
import os
from functools import partial
from pathlib import Path
from typing import Final

import pytest
from groups_story import ARGUMENTS, GroupsStory
from quickclient import connect

from amqpd.testing import BrokerProcess

CONSUMERS: Final = 12
LIFE_S: Final = 1.5


class Lives(GroupsStory):
    """The load on one broker that is killed several times."""

    async def life(self, broker: BrokerProcess, seconds: float) -> None:
        ended = asyncio.Event()
        link = partial(connect, broker.amqp_port)
        tasks = [asyncio.create_task(self.consume(link, ended.is_set)) for _ in range(CONSUMERS)]
        publishers = [asyncio.create_task(self.publish(link, publisher)) for publisher in (0, 1)]
        await asyncio.sleep(seconds * (0.5 + self.chance.random()))
        await asyncio.to_thread(broker.kill)
        ended.set()
        await asyncio.gather(*tasks, *publishers, return_exceptions=True)
        self.ended()

    async def drain(self, broker: BrokerProcess) -> None:
        ended = asyncio.Event()
        link = partial(connect, broker.amqp_port)
        tasks = [asyncio.create_task(self.consume(link, ended.is_set)) for _ in range(CONSUMERS)]
        async with asyncio.timeout(120):
            while self.left():
                await asyncio.sleep(0.1)
                assert not self.failures, self.failures[:5]
        ended.set()
        await asyncio.gather(*tasks)


async def run(data: Path, seed: int, cycles: int) -> Lives:
    story = Lives(seed)
    with BrokerProcess(data) as broker:
        link = await connect(broker.amqp_port)
        await link.declare_queue(story.queue, table=ARGUMENTS)
        link.close()
        for _ in range(cycles):
            await story.life(broker, LIFE_S)
            assert not story.failures, story.failures[:5]
            broker.start()
        await story.drain(broker)
    return story


@pytest.mark.slow
@pytest.mark.parametrize("seed", [int(os.environ.get("TEST_CRASH_SEED", "1"))])
def test_each_group_stays_in_order_over_kills(tmp_path: Path, seed: int) -> None:
    cycles = int(os.environ.get("TEST_CRASH_CYCLES", "3"))
    story = asyncio.run(run(tmp_path / "data", seed, cycles))
    print(f"{cycles} kills, {story.deliveries} deliveries, {sum(map(len, story.confirmed.values()))} confirmed")
    assert not story.failures, story.failures[:5]
    assert story.deliveries > 100
