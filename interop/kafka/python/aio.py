"""aiokafka: the steps of README.md. The event loop runs while a method waits."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

import aiokafka
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from steps import Client, Consumer, Record, login, main

Result = TypeVar("Result")
RUNNER = asyncio.Runner()


def run(coroutine: Coroutine[Any, Any, Result]) -> Result:
    return RUNNER.run(coroutine)


def settings(address: str) -> dict[str, Any]:
    found = login()
    if found is None:
        return {"bootstrap_servers": address}
    return {
        "bootstrap_servers": address,
        "security_protocol": "SASL_SSL",
        "ssl_context": ssl.create_default_context(cafile=found.ca),
        "sasl_mechanism": "PLAIN",
        "sasl_plain_username": found.user,
        "sasl_plain_password": found.password,
    }


class AiokafkaConsumer(Consumer):
    def __init__(self, address: str, topic: str, group: str) -> None:
        self.topic, self.partition = topic, TopicPartition(topic, 0)
        run(self._start(address, group))

    async def _start(self, address: str, group: str) -> None:
        self.consumer = AIOKafkaConsumer(
            **settings(address),
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            session_timeout_ms=10_000,
            heartbeat_interval_ms=500,
            isolation_level="read_committed",
        )
        await self.consumer.start()

    def assign(self, offset: int) -> None:
        async def assign() -> None:
            self.consumer.assign([self.partition])
            self.consumer.seek(self.partition, offset)

        run(assign())

    def subscribe(self) -> None:
        async def subscribe() -> None:
            self.consumer.subscribe([self.topic])

        run(subscribe())

    def poll(self) -> Sequence[Record]:
        found = run(self.consumer.getmany(timeout_ms=100, max_records=10_000)).get(self.partition, [])
        return [Record(each.offset, each.timestamp, each.value, each.key, each.headers) for each in found]

    def partitions(self) -> int:
        return len(self.consumer.assignment())

    def commit(self, offset: int) -> None:
        run(self.consumer.commit({self.partition: offset}))

    def committed(self) -> int:
        return int(run(self.consumer.committed(self.partition)) or 0)

    def offset_of_time(self, timestamp_ms: int) -> int:
        return int(run(self.consumer.offsets_for_times({self.partition: timestamp_ms}))[self.partition].offset)

    def end(self) -> int:
        return int(run(self.consumer.end_offsets([self.partition]))[self.partition])

    def close(self) -> None:
        run(self.consumer.stop())


class AiokafkaClient(Client):
    def __init__(self, address: str) -> None:
        super().__init__(address)
        run(self._start())

    async def _start(self) -> None:
        self.admin = AIOKafkaAdminClient(**settings(self.address))
        await self.admin.start()

    @staticmethod
    def version() -> str:
        return aiokafka.__version__

    def create(self, topic: str) -> None:
        answer = run(self.admin.create_topics([NewTopic(topic, 1, 1)]))
        assert [each[1] for each in answer.topic_errors] == [0], answer

    def delete(self, topic: str) -> None:
        answer = run(self.admin.delete_topics([topic]))
        assert [each[1] for each in answer.topic_error_codes] == [0], answer

    def topics(self) -> set[str]:
        return set(run(self.admin.list_topics()))

    def partitions(self, topic: str) -> int:
        [found] = run(self.admin.describe_topics([topic]))
        return len(found["partitions"])

    def groups(self) -> set[str]:
        return {each[0] for each in run(self.admin.list_consumer_groups())}

    def group(self, group: str) -> tuple[str, int]:
        [answer] = run(self.admin.describe_consumer_groups([group]))
        _, _, state, _, _, members, *_ = answer.groups[0]
        return state, len(members)

    def delete_group(self, group: str) -> bool:
        [offset] = run(self.admin.list_consumer_group_offsets(group)).values()
        assert offset.offset == 321, offset
        return False

    def send(self, topic: str, codec: str, values: Sequence[bytes], first_ms: int) -> list[int]:
        return run(self._send(topic, codec, values, first_ms))

    async def _send(self, topic: str, codec: str, values: Sequence[bytes], first_ms: int) -> list[int]:
        producer = AIOKafkaProducer(
            **settings(self.address),
            acks="all",
            enable_idempotence=True,
            compression_type=None if codec == "none" else codec,
            linger_ms=5,
        )
        await producer.start()
        sent = [await producer.send(topic, value, b"key", 0, first_ms + number) for number, value in enumerate(values)]
        offsets = [(await each).offset for each in sent]
        await producer.stop()
        return offsets

    def send_record(self, topic: str, record: Record) -> None:
        async def send() -> None:
            async with AIOKafkaProducer(**settings(self.address), enable_idempotence=True) as producer:
                await producer.send_and_wait(topic, record.value, record.key, 0, headers=list(record.headers))

        run(send())

    def send_transactions(self, topic: str, aborted: bytes, committed: Sequence[bytes]) -> None:
        async def send() -> None:
            async with AIOKafkaProducer(**settings(self.address), transactional_id=topic) as producer:
                await producer.begin_transaction()
                await producer.send_and_wait(topic, aborted, partition=0)
                await producer.abort_transaction()
                async with producer.transaction():
                    for value in committed:
                        await producer.send(topic, value, partition=0)

        run(send())

    def set_retention(self, topic: str, value: str) -> None:
        run(self.admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, {"retention.ms": value})]))

    def retention(self, topic: str) -> str:
        [answer] = run(self.admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)]))
        [(*_, entries)] = answer.resources
        return str({entry[0]: entry[1] for entry in entries}["retention.ms"])

    def consumer(self, topic: str, group: str) -> Consumer:
        return AiokafkaConsumer(self.address, topic, group)


main(AiokafkaClient)
