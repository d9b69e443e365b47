"""The cluster's topics: made as safety asks for, held against that when somebody else made or changed them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from kafka_logs import create_topic
from kafka_rig import Kafka, free_ports, missing, need

from amqpd.kafka import admin
from amqpd.kafka.admin import ClusterOptions, TopicAdmin, UnsafeTopic, compacted_rules, queue_rules
from amqpd.kafka.config import KafkaAccess
from amqpd.kafka.connection import KafkaDisconnected, KafkaIncompatible
from amqpd.kafka.producer import KafkaRefused


@pytest.fixture
def options(access: KafkaAccess, topic: str) -> ClusterOptions:
    """Of a cluster that no other test has, over one broker."""
    return options_for(access, topic)


def options_for(access: KafkaAccess, name: str) -> ClusterOptions:
    return ClusterOptions(
        access=access,
        cluster=name,
        node="one",
        secret=b"",
        listen=("127.0.0.1", 0),
        address=("127.0.0.1", 0),
        slots=4,
        replication_factor=1,
        required_insync=1,
        max_message_bytes=8 << 20,
        session_timeout_s=6.0,
        heartbeat_s=0.5,
        delivery_timeout_s=60.0,
    )


def settings_of(rules: tuple[admin.TopicRule, ...], **other: str) -> dict[str, str]:
    """As `create_topic` takes them."""
    return {rule.name.replace(".", "_"): rule.value for rule in rules} | other


async def test_made_as_the_table_says_and_found_again(options: ClusterOptions) -> None:
    async with TopicAdmin(options) as first:
        await first.prepare()
        found = await first.describe([options.meta_topic, options.settled_topic, "another"])
    assert set(found) == {options.meta_topic, options.settled_topic}
    for made in found.values():
        assert (made.partitions, made.replicas) == (4, 1)
        assert all(made.settings[rule.name] == rule.value for rule in compacted_rules(options))
    async with TopicAdmin(options) as again:
        await again.prepare()


async def test_two_nodes_that_start_at_once(options: ClusterOptions) -> None:
    async with TopicAdmin(options) as one, TopicAdmin(options) as other:
        await asyncio.gather(one.prepare(), other.prepare())
        assert len(await one.describe([options.meta_topic, options.settled_topic])) == 2


async def test_another_number_of_slots(options: ClusterOptions) -> None:
    async with TopicAdmin(options) as nodes:
        await nodes.prepare()
    async with TopicAdmin(replace(options, slots=8)) as nodes:
        with pytest.raises(UnsafeTopic, match=r"has 4 partitions, .* set cluster.slots to 4"):
            await nodes.prepare()


@pytest.mark.parametrize(
    ("setting", "value", "why"),
    [
        ("cleanup.policy", "compact,delete", "cleanup.policy is compact,delete, not compact"),
        ("unclean.leader.election.enable", "true", "unclean.leader.election.enable is true, not false"),
        ("message.timestamp.type", "LogAppendTime", "message.timestamp.type is LogAppendTime, not CreateTime"),
        ("max.message.bytes", "1000000", "max.message.bytes is 1000000, not 9437184 or more"),
    ],
)
async def test_weaker_than_a_confirm_promises(
    kafka: Kafka, options: ClusterOptions, setting: str, value: str, why: str
) -> None:
    settings = settings_of(compacted_rules(options), **{setting.replace(".", "_"): value})
    create_topic(kafka.bootstrap, options.meta_topic, options.slots, **settings)
    async with TopicAdmin(options) as nodes:
        with pytest.raises(UnsafeTopic) as refused:
            await nodes.prepare()
    assert why in str(refused.value)
    assert f"--topic {options.meta_topic} --add-config {setting}=" in str(refused.value)


async def test_fewer_copies_in_step_than_asked_for(kafka: Kafka, options: ClusterOptions) -> None:
    """Made when one copy was enough, for a cluster that promises two."""
    create_topic(kafka.bootstrap, options.meta_topic, options.slots, **settings_of(compacted_rules(options)))
    async with TopicAdmin(replace(options, required_insync=2, replication_factor=2)) as nodes:
        with pytest.raises(UnsafeTopic) as refused:
            await nodes.prepare()
    assert "min.insync.replicas is 1, not 2 or more" in str(refused.value)
    assert "it has 1 of the 2 copies of cluster.replication_factor" in str(refused.value)


async def test_more_copies_than_there_are_brokers(options: ClusterOptions) -> None:
    async with TopicAdmin(replace(options, replication_factor=3)) as nodes:
        with pytest.raises(UnsafeTopic, match="cannot have the 3 copies of cluster.replication_factor"):
            await nodes.prepare()


async def test_what_only_costs_space_is_a_warning(
    kafka: Kafka, options: ClusterOptions, caplog: pytest.LogCaptureFixture
) -> None:
    settings = settings_of(compacted_rules(options), segment_bytes=str(1 << 30))
    create_topic(kafka.bootstrap, options.meta_topic, options.slots, **settings)
    async with TopicAdmin(options) as nodes:
        with caplog.at_level(logging.WARNING, "amqpd.kafka.admin"):
            await nodes.prepare()
    assert f"topic {options.meta_topic}: segment.bytes is 1073741824, not 16777216" in caplog.text


async def test_a_vhosts_topic_grows(options: ClusterOptions) -> None:
    name = options.queues_topic("ab12")
    async with TopicAdmin(options) as nodes:
        assert await nodes.prepare_queues("ab12", 8) == 8
        assert await nodes.prepare_queues("ab12", 3) == 8
        assert await nodes.prepare_queues("ab12", 16) == 16
        await nodes.grow(name, 16)  # as after a try whose answer was lost
        found = (await nodes.describe([name]))[name]
        assert found.partitions == 16
        assert all(found.settings[rule.name] == rule.value for rule in queue_rules(options))
        await nodes.delete(name)
        await nodes.delete(name)


async def test_a_vhosts_topic_that_would_lose_messages(kafka: Kafka, options: ClusterOptions) -> None:
    settings = settings_of(queue_rules(options), retention_ms="604800000")
    create_topic(kafka.bootstrap, options.queues_topic("ab12"), 1, **settings)
    async with TopicAdmin(options) as nodes:
        with pytest.raises(UnsafeTopic, match="retention.ms is 604800000, not -1"):
            await nodes.prepare_queues("ab12", 1)


async def test_a_queue_s_own_is_known_by_its_mark(kafka: Kafka, options: ClusterOptions) -> None:
    """Another one of its name is never deleted."""
    name = f"{options.cluster}.orders"
    async with TopicAdmin(options) as topics_:
        assert await topics_.lost_dedicated({name: 5}) == {name: "its topic is gone"}
        await topics_.delete_dedicated(name, 5)
        await topics_.create_dedicated(name, 5)
        assert await topics_.lost_dedicated({name: 5}) == {}
        assert await topics_.lost_dedicated({name: 6}) == {name: "another program has created its topic again"}
        await topics_.delete_dedicated(name, 6)
        assert name in await topics_.describe([name])
        await topics_.delete_dedicated(name, 5)
        assert await topics_.lost_dedicated({name: 5}) == {name: "its topic is gone"}
        create_topic(kafka.bootstrap, name)
        await topics_.delete_dedicated(name, 5)
        with pytest.raises(KafkaRefused, match="exist"):
            await topics_.create_dedicated(name, 7)


async def test_records_are_freed(kafka: Kafka, access: KafkaAccess, options: ClusterOptions) -> None:
    from aiokafka import AIOKafkaProducer

    name = options.queues_topic("ab12")
    async with TopicAdmin(options) as nodes:
        await nodes.prepare_queues("ab12", 2)
        async with AIOKafkaProducer(**access.aiokafka_options()) as producer:
            for number in range(10):
                await producer.send_and_wait(name, b"%d" % number, partition=number % 2)
        assert await nodes.delete_records(name, {0: 3, 1: -1}) == {0: 3, 1: 5}
        assert await nodes.delete_records(name, {0: 3}) == {0: 3}
        with pytest.raises(KafkaRefused, match="OFFSET_OUT_OF_RANGE"):
            await nodes.delete_records(name, {0: 99})


@pytest.fixture
def obliging(tmp_path: Path) -> Iterator[Kafka]:
    """A broker that makes each topic it is asked about, as it does unless it is told otherwise."""
    need(missing())
    with Kafka(tmp_path / "kafka", settings={"auto.create.topics.enable": "true"}) as cluster:
        yield cluster


async def test_nothing_is_made_by_being_asked_for(obliging: Kafka, topic: str) -> None:
    options = options_for(KafkaAccess((obliging.bootstrap,)), topic)
    async with TopicAdmin(options) as nodes:
        assert await nodes.describe([options.meta_topic]) == {}
        assert await nodes.describe([options.meta_topic]) == {}
        await nodes.prepare()


async def test_only_what_is_asked_for_is_answered(kafka: Kafka, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a thousand vhosts in Kafka a queue more must not read all of their partitions. It holds, too, what is asked
    of aiokafka beside what its documentation has.
    """
    from aiokafka.admin import AIOKafkaAdminClient

    answers: list[int] = []
    send = AIOKafkaAdminClient._send_request

    async def counted(self: AIOKafkaAdminClient, request: object, *more: object) -> object:
        answer = await send(self, request, *more)
        answers.append(len(answer.encode()))
        return answer

    options = options_for(KafkaAccess((kafka.bootstrap,)), topic)
    async with TopicAdmin(options) as nodes:
        await nodes.prepare_queues("small", 2)
        monkeypatch.setattr(AIOKafkaAdminClient, "_send_request", counted)
        await nodes.prepare_queues("small", 3)
        before = max(answers)
        await nodes.prepare_queues("large", 300)
        answers.clear()
        await nodes.prepare_queues("small", 4)
        assert await nodes.delete_records(options.queues_topic("small"), {0: -1, 3: -1}) == {0: 0, 3: 0}
        assert max(answers) < before + 1000


async def test_a_kafka_that_is_away(monkeypatch: pytest.MonkeyPatch, topic: str) -> None:
    monkeypatch.setattr(admin, "PATIENCE_S", 1.0)
    (port,) = free_ports(1)
    async with TopicAdmin(options_for(KafkaAccess((f"127.0.0.1:{port}",)), topic)) as nodes:
        with pytest.raises(KafkaDisconnected, match="Kafka did not execute the request within 1 s"):
            await nodes.prepare()


async def test_a_kafka_that_lets_nobody_in(kafka: Kafka, topic: str) -> None:
    access = KafkaAccess((kafka.bootstrap,), sasl_mechanism="PLAIN", sasl_username="amqpd", sasl_password="x")
    async with TopicAdmin(options_for(access, topic)) as nodes:
        with pytest.raises(KafkaIncompatible, match="does not accept PLAIN"):
            await nodes.prepare()
