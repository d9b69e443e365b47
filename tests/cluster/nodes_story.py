"""Shared parts of the acceptance tests with several nodes: a cluster under load, faults, and checks.

Counts are small in CI and complete with TEST_CLUSTER_LONG=1 (`make cluster-test`).
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import median
from typing import Final

from account import Account
from amqpd_nodes import Nodes
from kafka_logs import fetch_all
from nodes_load import Load

from amqpd.kafka.config import KafkaAccess
from amqpd.kafka.producer import fetch_any_metadata
from amqpd.kafka.producer_state import HEADER
from amqpd.storage.log.batch import BatchHeader

LONG: Final = bool(os.environ.get("TEST_CLUSTER_LONG"))
VHOSTS: Final = ("red", "green", "blue")
PATIENCE_S: Final = 300.0
"""How long the delivery of all confirmed messages may take after publishing stops."""
SERVED_S_MAX: Final = 15.0
SERVED_S_MEDIAN: Final = 12.0
QUIET_MACHINE: Final = LONG or not os.environ.get("CI")
"""True if times are judged. CI machines are shared, so only counts are judged there."""


def count(ci: int, whole: int) -> int:
    """Return the count for CI, or the whole count in a long run."""
    return whole if LONG else ci


@asynccontextmanager
async def loaded(
    nodes: Nodes,
    vhosts: Sequence[str] = VHOSTS,
    publishers: int = 2,
    rate: float = 60.0,
    unread: bool = False,
    patience_s: float = PATIENCE_S,
    load: Load | None = None,
) -> AsyncIterator[Load]:
    """Give each vhost a queue of its name, publishers and a consumer. At the end drain within `patience_s`, and judge.

    unread: each vhost has one more queue that is read only at the end. Deliveries to a consumer may come from the
    owner's memory, so they do not prove that Kafka has the messages. load: use these clients.
    """
    for vhost in vhosts:
        await asyncio.to_thread(nodes.add_vhost, vhost)
    if load is None:
        load = Load(Account(), [node.amqp for node in nodes])
    for vhost in vhosts:
        await load.declare(vhost, vhost)
    for vhost in vhosts:
        load.consume(vhost, vhost)
        for _ in range(publishers):
            load.publish(vhost, vhost, rate)
        if unread:
            await load.declare(vhost, f"{vhost}.unread")
            load.publish(vhost, f"{vhost}.unread", rate)
    try:
        await wait_until_flowing(load, vhosts)
        yield load
        for vhost in vhosts if unread else ():
            load.consume(vhost, f"{vhost}.unread")
        await load.drain(patience_s)
    finally:
        await load.leave()
    print(load.account.summary())
    load.account.judge()


async def wait_until_served(
    load: Load, queues: Sequence[str], since: float, timeout_s: float = 120.0
) -> dict[str, float]:
    """Wait until each queue delivers over a connection opened after `since`. Return the seconds of each. Raises:
    AssertionError.
    """
    deadline = time.monotonic() + timeout_s
    found: dict[str, float] = {}
    while len(found) < len(queues):
        for queue in queues:
            at = load.first_since(queue, since)
            if at and queue not in found:
                found[queue] = at - since
        missing = [queue for queue in queues if queue not in found]
        assert time.monotonic() < deadline, f"{missing} are not served within {timeout_s:g} s; {load.account.summary()}"
        await asyncio.sleep(0.02)
    return found


async def wait_until_flowing(load: Load, queues: Sequence[str], timeout_s: float = 120.0) -> None:
    """Wait until each queue delivers a message published from now on."""
    await _wait_for_progress(load, load.account.newest_at, queues, timeout_s)


async def wait_until_confirming(load: Load, queues: Sequence[str], timeout_s: float = 120.0) -> None:
    """Wait for confirms instead: deliveries may come from the owner's memory even if Kafka fails."""
    await _wait_for_progress(load, load.account.newest_confirmed_at, queues, timeout_s)


async def _wait_for_progress(load: Load, newest_at: dict[str, float], queues: Sequence[str], timeout_s: float) -> None:
    since = time.monotonic()
    deadline = since + timeout_s
    while True:
        missing = [queue for queue in queues if newest_at.get(queue, 0.0) < since]
        if not missing:
            return
        assert time.monotonic() < deadline, f"{missing} do not flow; {load.account.summary()}"
        await asyncio.sleep(0.02)


async def until(condition: Callable[[], bool], timeout_s: float = 120.0) -> None:
    """Wait until the condition holds. Raises: TimeoutError."""
    async with asyncio.timeout(timeout_s):
        while True:
            if condition():
                return
            await asyncio.sleep(0.05)


async def start_and_wait(nodes: Nodes, number: int) -> None:
    """Start the node again and wait until it is ready."""
    nodes.start(number, wait=False)  # not in a thread: the process ends with the thread that started it
    await asyncio.to_thread(nodes.wait_until_ready, number)


async def owner_of(nodes: Nodes, vhost: str) -> int:
    """Return the number of the node that serves the vhost. Raises: NodeFailed."""
    return await asyncio.to_thread(nodes.owner_of, vhost)


async def owners_of(nodes: Nodes, vhosts: Sequence[str] = VHOSTS) -> dict[str, int]:
    """Return the owners of the vhosts."""
    return {vhost: await owner_of(nodes, vhost) for vhost in vhosts}


def judge_times(what: str, times: Sequence[float], most: float = SERVED_S_MAX, middle: float = SERVED_S_MEDIAN) -> None:
    """Print the times, and compare them with the limits on a quiet machine."""
    print(f"{what}: {len(times)} times, median {median(times):.1f} s, at most {max(times):.1f} s")
    if QUIET_MACHINE:
        assert max(times) <= most, times
        assert median(times) <= middle, times


# -- Kafka's contents


async def topics_of(access: KafkaAccess, cluster: str) -> dict[str, int]:
    """Return the cluster's topics and their numbers of partitions."""
    from aiokafka.admin import AIOKafkaAdminClient

    admin = AIOKafkaAdminClient(**access.aiokafka_options())
    await admin.start()
    try:
        found = await admin.describe_topics()
    finally:
        await admin.close()
    prefix = f"amqpd.{cluster}."
    return {each["topic"]: len(each["partitions"]) for each in found if each["topic"].startswith(prefix)}


async def check_epochs_never_fall(access: KafkaAccess, cluster: str) -> dict[tuple[str, int], int]:
    """Check that in every partition epochs never decrease and each epoch begins with its barrier. Return the number of
    barriers of each partition. Raises: AssertionError.
    """
    barriers: dict[tuple[str, int], int] = {}
    for topic, partitions in (await topics_of(access, cluster)).items():
        for number in range(partitions):
            last = (-1, -1)
            seen: set[int] = set()
            for batch in await fetch_all(access, topic, number):
                header = BatchHeader(batch, 0)
                producer, epoch = int(header.producer_id), int(header.producer_epoch)
                at = int(header.base_offset)
                if producer == last[0]:
                    assert epoch >= last[1], f"{topic} {number} at {at}: epoch {epoch} behind {last[1]}"
                else:
                    assert producer not in seen, f"{topic} {number} at {at}: producer {producer} came back"
                    seen.add(producer)
                if last != (-1, -1) and (producer, epoch) != last and not topic.endswith((".meta", ".settled")):
                    # compacted topics keep only the last barrier
                    assert HEADER in batch, f"{topic} {number} at {at}: epoch {epoch} begins without a barrier"
                barriers[topic, number] = barriers.get((topic, number), 0) + (HEADER in batch)
                last = (producer, epoch)
    return barriers


async def leaders(access: KafkaAccess, topic: str) -> dict[int, int]:
    """Map each partition to its leader."""
    metadata = await fetch_any_metadata(access, [topic.encode()])
    assert metadata is not None
    return {int(number): int(leader) for (_, number), leader in metadata.leaders.items()}


def note(name: str, **figures: object) -> None:
    """Print figures of a long run and append them as a JSON line to the file named by TEST_CLUSTER_FIGURES."""
    line = json.dumps({"test": name, **figures})
    print(line)
    if os.environ.get("TEST_CLUSTER_FIGURES"):
        with Path(os.environ["TEST_CLUSTER_FIGURES"]).open("a", encoding="utf-8") as file:
            file.write(line + "\n")
