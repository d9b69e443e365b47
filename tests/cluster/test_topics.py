"""The cluster's topics: created with safe settings, and checked when another program created or changed them."""

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
    """Options of a cluster of its own, with one broker."""
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
    """Return the rules as keyword arguments of `create_topic`."""
    return {rule.name.replace(".", "_"): rule.value for rule in rules} | other


async def test_topics_are_created_with_the_required_settings(options: ClusterOptions) -> None:
    async with TopicAdmin(options) as first:
        await first.prepare()
        found = await first.describe([options.meta_topic, options.settled_topic, "another"])
    assert set(found) == {options.meta_topic, options.settled_topic}
    for made in found.values():
        assert (made.partitions, made.replicas) == (4, 1)
        assert all(made.settings[rule.name] == rule.value for rule in compacted_rules(options))
    async with TopicAdmin(options) as again:
        await again.prepare()


async def test_two_nodes_can_prepare_topics_at_once(options: ClusterOptions) -> None:
    async with TopicAdmin(options) as one, TopicAdmin(options) as other:
        await asyncio.gather(one.prepare(), other.prepare())
        assert len(await one.describe([options.meta_topic, options.settled_topic])) == 2


async def test_other_number_of_slots_is_refused(options: ClusterOptions) -> None:
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
async def test_unsafe_topic_setting_is_refused(
    kafka: Kafka, options: ClusterOptions, setting: str, value: str, why: str
) -> None:
    settings = settings_of(compacted_rules(options), **{setting.replace(".", "_"): value})
    create_topic(kafka.bootstrap, options.meta_topic, options.slots, **settings)
    async with TopicAdmin(options) as nodes:
        with pytest.raises(UnsafeTopic) as refused:
            await nodes.prepare()
    assert why in str(refused.value)
    assert f"--topic {options.meta_topic} --add-config {setting}=" in str(refused.value)


async def test_too_few_replicas_or_insync_replicas_are_refused(kafka: Kafka, options: ClusterOptions) -> None:
    """The topic was created for one replica; the cluster now requires two."""
    create_topic(kafka.bootstrap, options.meta_topic, options.slots, **settings_of(compacted_rules(options)))
    async with TopicAdmin(replace(options, required_insync=2, replication_factor=2)) as nodes:
        with pytest.raises(UnsafeTopic) as refused:
            await nodes.prepare()
    assert "min.insync.replicas is 1, not 2 or more" in str(refused.value)
    assert "it has 1 of the 2 copies of cluster.replication_factor" in str(refused.value)


async def test_replication_factor_above_broker_count_is_refused(options: ClusterOptions) -> None:
    async with TopicAdmin(replace(options, replication_factor=3)) as nodes:
        with pytest.raises(UnsafeTopic, match="cannot have the 3 copies of cluster.replication_factor"):
            await nodes.prepare()


async def test_setting_that_only_costs_space_is_a_warning(
    kafka: Kafka, options: ClusterOptions, caplog: pytest.LogCaptureFixture
) -> None:
    settings = settings_of(compacted_rules(options), segment_bytes=str(1 << 30))
    create_topic(kafka.bootstrap, options.meta_topic, options.slots, **settings)
    async with TopicAdmin(options) as nodes:
        with caplog.at_level(logging.WARNING, "amqpd.kafka.admin"):
            await nodes.prepare()
    assert f"topic {options.meta_topic}: segment.bytes is 1073741824, not 16777216" in caplog.text


async def test_topic_of_a_vhost_grows(options: ClusterOptions) -> None:
    name = options.queues_topic("ab12")
    async with TopicAdmin(options) as nodes:
        assert await nodes.prepare_queues("ab12", 8) == 8
        assert await nodes.prepare_queues("ab12", 3) == 8
        assert await nodes.prepare_queues("ab12", 16) == 16
        await nodes.grow(name, 16)  # like a retry whose first answer was lost
        found = (await nodes.describe([name]))[name]
        assert found.partitions == 16
        assert all(found.settings[rule.name] == rule.value for rule in queue_rules(options))
        await nodes.delete(name)
        await nodes.delete(name)


async def test_vhost_topic_with_retention_is_refused(kafka: Kafka, options: ClusterOptions) -> None:
    settings = settings_of(queue_rules(options), retention_ms="604800000")
    create_topic(kafka.bootstrap, options.queues_topic("ab12"), 1, **settings)
    async with TopicAdmin(options) as nodes:
        with pytest.raises(UnsafeTopic, match="retention.ms is 604800000, not -1"):
            await nodes.prepare_queues("ab12", 1)


async def test_dedicated_topic_is_recognised_by_its_mark(kafka: Kafka, options: ClusterOptions) -> None:
    """A topic with the same name and another mark is never deleted."""
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


async def test_records_are_deleted_up_to_an_offset(kafka: Kafka, access: KafkaAccess, options: ClusterOptions) -> None:
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
    """A broker with auto.create.topics.enable=true, its default."""
    need(missing())
    with Kafka(tmp_path / "kafka", settings={"auto.create.topics.enable": "true"}) as cluster:
        yield cluster


async def test_describe_does_not_create_a_topic(obliging: Kafka, topic: str) -> None:
    options = options_for(KafkaAccess((obliging.bootstrap,)), topic)
    async with TopicAdmin(options) as nodes:
        assert await nodes.describe([options.meta_topic]) == {}
        assert await nodes.describe([options.meta_topic]) == {}
        await nodes.prepare()


async def test_answers_do_not_grow_with_other_topics(kafka: Kafka, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a thousand vhosts a new queue must not read the metadata of all partitions. The test also covers the
    requests that use undocumented parts of aiokafka.
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


async def test_prepare_fails_when_kafka_is_unreachable(monkeypatch: pytest.MonkeyPatch, topic: str) -> None:
    monkeypatch.setattr(admin, "PATIENCE_S", 1.0)
    (port,) = free_ports(1)
    async with TopicAdmin(options_for(KafkaAccess((f"127.0.0.1:{port}",)), topic)) as nodes:
        with pytest.raises(KafkaDisconnected, match="Kafka did not execute the request within 1 s"):
            await nodes.prepare()


async def test_prepare_fails_when_kafka_refuses_the_login(kafka: Kafka, topic: str) -> None:
    access = KafkaAccess((kafka.bootstrap,), sasl_mechanism="PLAIN", sasl_username="amqpd", sasl_password="x")
    async with TopicAdmin(options_for(access, topic)) as nodes:
        with pytest.raises(KafkaIncompatible, match="does not accept PLAIN"):
            await nodes.prepare()
