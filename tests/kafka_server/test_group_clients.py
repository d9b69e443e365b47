"""Consumer groups with stock clients: subscribe, commit, resume, rebalance, a member that dies."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pika
import pytest
from aiokafka import AIOKafkaConsumer
from group_members import poll_until
from kafka import KafkaAdminClient, KafkaConsumer

from amqpd.testing import BrokerProcess

SETTINGS = {"kafka.port": 0, "kafka.host": "127.0.0.1"}


def address(broker: BrokerProcess) -> str:
    assert broker.ready is not None
    host, port = broker.ready.listeners["kafka"]
    return f"{host}:{port}"


def publish(broker: BrokerProcess, topic: str, bodies: list[bytes]) -> None:
    with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare(topic, durable=True, arguments={"x-queue-type": "stream"})
        for body in bodies:
            channel.basic_publish("", topic, body, pika.BasicProperties(delivery_mode=2))


def consumer(broker: BrokerProcess, group: str, *topics: str, **options: Any) -> Any:
    return KafkaConsumer(
        *topics,
        bootstrap_servers=address(broker),
        group_id=group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        session_timeout_ms=6000,
        heartbeat_interval_ms=500,
        **options,
    )


def read(client: Any, count: int) -> list[bytes]:
    """Return the next `count` values."""
    values: list[bytes] = []
    while len(values) < count:
        for records in client.poll(timeout_ms=1000, max_records=count - len(values)).values():
            values += [each.value for each in records]
    return values


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("clients"), settings=SETTINGS) as process:
        yield process
        assert "Traceback" not in process.stderr


@pytest.fixture
def names() -> tuple[str, str]:
    """A group and a topic."""
    return f"group-{uuid.uuid4().hex}", f"topic-{uuid.uuid4().hex}"


def test_kafka_python_resumes_where_it_committed(broker: BrokerProcess, names: tuple[str, str]) -> None:
    group, topic = names
    bodies = [str(number).encode() for number in range(10)]
    publish(broker, topic, bodies)
    first = consumer(broker, group, topic)
    assert read(first, 4) == bodies[:4]
    first.commit()
    first.close()
    second = consumer(broker, group, topic)
    assert read(second, 6) == bodies[4:]
    second.close()
    third = consumer(broker, group, topic)
    assert read(third, 1) == bodies[4:5]
    third.close()


@pytest.mark.slow
def test_commits_survive_a_kill_of_the_broker(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, settings=SETTINGS) as process:
        bodies = [str(number).encode() for number in range(10)]
        publish(process, "t", bodies)
        first = consumer(process, "g", "t")
        assert read(first, 4) == bodies[:4]
        first.commit()
        first.close()  # now: kafka-python leaks the socket of a connection that it cannot make
        process.kill()
        process.start(same_ports=False)
        second = consumer(process, "g", "t")
        assert read(second, 6) == bodies[4:]
        second.close()


def test_two_members_share_topics_and_one_takes_over_when_the_other_leaves(
    broker: BrokerProcess, names: tuple[str, str]
) -> None:
    group, topic = names
    topics = [f"{topic}-a", f"{topic}-b"]
    for each in topics:
        publish(broker, each, [each.encode()])
    options = {"partition_assignment_strategy": _round_robin()}
    first, second = consumer(broker, group, *topics, **options), consumer(broker, group, *topics, **options)
    poll_until(lambda: len(first.assignment()) == len(second.assignment()) == 1, first, second)
    assert first.assignment().isdisjoint(second.assignment())
    second.close()
    poll_until(lambda: len(first.assignment()) == 2, first)
    first.close()


def _round_robin() -> list[Any]:
    from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor

    return [RoundRobinPartitionAssignor]


def test_static_member_keeps_its_partition_over_a_restart(broker: BrokerProcess, names: tuple[str, str]) -> None:
    group, topic = names
    publish(broker, topic, [b"1", b"2"])
    first = consumer(broker, group, topic, group_instance_id="one")
    assert read(first, 1) == [b"1"]
    first.commit()
    first.close()
    second = consumer(broker, group, topic, group_instance_id="one")
    assert read(second, 1) == [b"2"]
    second.close()


def test_admin_lists_describes_and_deletes_groups(broker: BrokerProcess, names: tuple[str, str]) -> None:
    group, topic = names
    publish(broker, topic, [b"1"])
    first = consumer(broker, group, topic)
    read(first, 1)
    first.commit()
    first.close()
    admin = KafkaAdminClient(bootstrap_servers=address(broker))
    offsets = admin.list_group_offsets([group])
    assert group in str(admin.list_groups())
    assert offsets
    admin.delete_groups([group])
    assert group not in str(admin.list_groups())
    admin.close()


async def _aio_consumer(broker: BrokerProcess, group: str, *topics: str) -> AIOKafkaConsumer:
    client = AIOKafkaConsumer(
        *topics,
        bootstrap_servers=address(broker),
        group_id=group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        session_timeout_ms=6000,
        heartbeat_interval_ms=500,
    )
    await client.start()
    return client


def test_aiokafka_resumes_where_it_committed(broker: BrokerProcess, names: tuple[str, str]) -> None:
    group, topic = names
    publish(broker, topic, [b"1", b"2", b"3"])

    async def scenario() -> list[bytes]:
        first = await _aio_consumer(broker, group, topic)
        values = [(await first.getone()).value for _ in range(2)]
        await first.commit()
        await first.stop()
        second = await _aio_consumer(broker, group, topic)
        values.append((await second.getone()).value)
        await second.stop()
        return values

    assert asyncio.run(scenario()) == [b"1", b"2", b"3"]


DYING_MEMBER = """
import sys, threading, warnings
warnings.simplefilter("ignore")
from kafka import KafkaConsumer
address, group, topic = sys.argv[1:]
client = KafkaConsumer(
    topic, bootstrap_servers=address, group_id=group, auto_offset_reset="earliest", enable_auto_commit=False,
    session_timeout_ms=6000, heartbeat_interval_ms=500,
)
next(client)
client.commit()
print("committed", flush=True)
threading.Event().wait()
"""


@pytest.mark.slow
def test_partition_of_a_member_that_is_killed_goes_to_another(broker: BrokerProcess, names: tuple[str, str]) -> None:
    group, topic = names
    publish(broker, topic, [b"1", b"2"])
    command = [sys.executable, "-c", DYING_MEMBER, address(broker), group, topic]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "committed\n"
        process.kill()
    second = consumer(broker, group, topic)
    assert read(second, 1) == [b"2"]
    second.close()
