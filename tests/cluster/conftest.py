"""A real Kafka for the tests of this folder, started once and shared.

Without Kafka its tests are skipped with the reason, or fail if TEST_REQUIRE_KAFKA is set.
"""

from __future__ import annotations

import gc
import os
import sys
import warnings
from collections.abc import AsyncIterator, Generator, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # helper modules of this folder
sys.path.append(str(Path(__file__).parents[1] / "crash"))  # quickclient

import amqpd_nodes
import fake_kafka
import kafka_hosts
import kafka_rig
import slot_of

from amqpd.kafka.config import KafkaAccess

TEST_TIMEOUT_S = 1200
"""The default timeout of a test. It includes a start of Kafka, which takes minutes on a busy machine."""
REAL = {"kafka", "replicated_kafka", "brokers", "far_brokers", "forgetful", "obliging", "secure"}
"""Fixtures that start a real Kafka. A test without them is not a long test."""
UNCLOSED = "ignore::pytest.PytestUnraisableExceptionWarning"
"""Sockets that a stock client leaves open after a kill. The garbage collector may find them in any later test."""
_names = count(1)


def pytest_itemcollected(item: pytest.Item) -> None:
    item.add_marker(pytest.mark.filterwarnings(UNCLOSED))
    if item.get_closest_marker("timeout") is None:
        item.add_marker(pytest.mark.timeout(TEST_TIMEOUT_S))
    if REAL.intersection(getattr(item, "fixturenames", ())) and item.get_closest_marker("on_demand") is None:
        item.add_marker(pytest.mark.ci_long)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Collect leaked sockets right after each long test, when its objects and log are released. At the end of the
    session they would cause a traceback.
    """
    result = yield
    long = item.get_closest_marker("ci_long") or item.get_closest_marker("on_demand")
    if Path(__file__).parent in item.path.parents and long:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            gc.collect()
    return result


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[kafka_rig.Kafka]:
    """One broker."""
    kafka_rig.need(kafka_rig.missing())
    with kafka_rig.Kafka(tmp_path_factory.mktemp("kafka")) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def replicated_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[kafka_rig.Kafka]:
    """Three brokers on hosts of their own (kafka_hosts.py)."""
    kafka_rig.need(kafka_rig.missing() or kafka_hosts.missing())
    with (
        kafka_hosts.Network(3) as hosts,
        kafka_rig.Kafka(tmp_path_factory.mktemp("kafka"), 3, hosts=hosts.hosts) as cluster,
    ):
        yield cluster


@pytest.fixture(scope="session")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[kafka_rig.Kafka]:
    """Three brokers on loopback, for nodes."""
    kafka_rig.need(kafka_rig.missing())
    with kafka_rig.Kafka(tmp_path_factory.mktemp("kafka"), 3) as cluster:
        yield cluster


@pytest.fixture
def nodes(brokers: kafka_rig.Kafka, tmp_path: Path) -> Iterator[amqpd_nodes.Nodes]:
    """Three nodes: a cluster for this test alone."""
    with amqpd_nodes.Nodes(tmp_path, brokers, 3, name=f"nodes-{os.getpid()}-{next(_names)}") as cluster:
        yield cluster


@pytest.fixture(scope="module")
def network() -> Iterator[kafka_hosts.Network]:
    """Hosts for three brokers and three nodes."""
    kafka_rig.need(kafka_rig.missing() or kafka_hosts.missing())
    with kafka_hosts.Network(6, number=1) as found:
        yield found


@pytest.fixture
def hosts(network: kafka_hosts.Network) -> list[kafka_hosts.Host]:
    """The hosts of `network`, all connected."""
    for host in network.hosts:
        host.heal()
    return network.hosts


@pytest.fixture(scope="module")
def far_brokers(network: kafka_hosts.Network, tmp_path_factory: pytest.TempPathFactory) -> Iterator[kafka_rig.Kafka]:
    """Three brokers on hosts of their own."""
    with kafka_rig.Kafka(tmp_path_factory.mktemp("kafka"), 3, hosts=network.hosts[:3]) as cluster:
        yield cluster


@pytest.fixture
def far_nodes(
    hosts: list[kafka_hosts.Host], far_brokers: kafka_rig.Kafka, tmp_path: Path
) -> Iterator[amqpd_nodes.Nodes]:
    """Three nodes on hosts of their own."""
    name = f"far-{os.getpid()}-{next(_names)}"
    with amqpd_nodes.Nodes(tmp_path, far_brokers, 3, name=name, hosts=hosts[3:]) as nodes:
        yield nodes


@pytest.fixture
def access(kafka: kafka_rig.Kafka) -> KafkaAccess:
    """The access settings of `kafka`."""
    return KafkaAccess((kafka.bootstrap,))


@pytest.fixture
def topic() -> str:
    """A topic name for this test alone."""
    return f"topic-{os.getpid()}-{next(_names)}"


@pytest.fixture
async def fake() -> AsyncIterator[fake_kafka.FakeKafka]:
    """A fake Kafka with two brokers in this process and the topics of a cluster `shop`."""
    async with fake_kafka.FakeKafka(brokers=2) as kafka:
        kafka.create(slot_of.META, 4)
        kafka.create(slot_of.SETTLED, 4)
        yield kafka


@pytest.fixture
async def take(fake: fake_kafka.FakeKafka, tmp_path: Path) -> AsyncIterator[slot_of.Take]:
    """Take a slot of that cluster; each call creates another owner."""
    slots: list[slot_of.Slot] = []
    topics = slot_of.FakeTopics(fake)

    async def take_again(**options: Any) -> slot_of.Slot:
        directory = tmp_path / f"{len(slots)}"
        vhosts = options.pop("vhosts", (slot_of.VHOST, slot_of.OTHER))
        slot = slot_of.Slot(fake.access, topics, directory, vhosts=vhosts, **options)
        slots.append(slot)
        return await slot.take()

    yield take_again
    for slot in slots:
        if slot.rows is not None:
            await slot.close()
