"""confluent-kafka (librdkafka): the steps of README.md."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import confluent_kafka
from confluent_kafka import (
    AcknowledgeType,
    ConsumerGroupTopicPartitions,
    Message,
    Producer,
    ShareConsumer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, ResourceType
from steps import Client, Consumer, Record, login, main


def settings(address: str) -> dict[str, Any]:
    found = login()
    if found is None:
        return {"bootstrap.servers": address}
    return {
        "bootstrap.servers": address,
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": found.ca,
        "sasl.mechanism": "PLAIN",
        "sasl.username": found.user,
        "sasl.password": found.password,
    }


class ConfluentConsumer(Consumer):
    def __init__(self, address: str, topic: str, group: str) -> None:
        self.consumer = confluent_kafka.Consumer(
            {
                **settings(address),
                "group.id": group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "session.timeout.ms": 10_000,
                "heartbeat.interval.ms": 500,
                "isolation.level": "read_committed",
            }
        )
        self.topic = topic

    def assign(self, offset: int) -> None:
        self.consumer.assign([TopicPartition(self.topic, 0, offset)])

    def subscribe(self) -> None:
        self.consumer.subscribe([self.topic])

    def poll(self) -> Sequence[Record]:
        records: list[Record] = []
        for message in self.consumer.consume(10_000, 0.1):
            if message.error():
                raise RuntimeError(message.error())
            headers = tuple(message.headers() or ())
            records.append(Record(message.offset(), message.timestamp()[1], message.value(), message.key(), headers))
        return records

    def partitions(self) -> int:
        return len(self.consumer.assignment())

    def commit(self, offset: int) -> None:
        self.consumer.commit(offsets=[TopicPartition(self.topic, 0, offset)], asynchronous=False)

    def committed(self) -> int:
        [partition] = self.consumer.committed([TopicPartition(self.topic, 0)], 10)
        return int(partition.offset)

    def offset_of_time(self, timestamp_ms: int) -> int:
        [partition] = self.consumer.offsets_for_times([TopicPartition(self.topic, 0, timestamp_ms)], 10)
        return int(partition.offset)

    def end(self) -> int:
        return int(self.consumer.get_watermark_offsets(TopicPartition(self.topic, 0), 10)[1])

    def close(self) -> None:
        self.consumer.close()


class ConfluentClient(Client):
    def __init__(self, address: str) -> None:
        super().__init__(address)
        self.admin = AdminClient(settings(address))

    @staticmethod
    def version() -> str:
        return f"{confluent_kafka.version()} (librdkafka {confluent_kafka.libversion()[0]})"

    def create(self, topic: str) -> None:
        self.admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(10)

    def delete(self, topic: str) -> None:
        self.admin.delete_topics([topic])[topic].result(10)

    def topics(self) -> set[str]:
        return set(self.admin.list_topics(timeout=10).topics)

    def partitions(self, topic: str) -> int:
        wanted = confluent_kafka.TopicCollection([topic])
        return len(self.admin.describe_topics(wanted)[topic].result(10).partitions)

    def groups(self) -> set[str]:
        return {group.group_id for group in self.admin.list_consumer_groups().result(10).valid}

    def group(self, group: str) -> tuple[str, int]:
        found = self.admin.describe_consumer_groups([group])[group].result(10)
        return found.state.name.title(), len(found.members)

    def delete_group(self, group: str) -> bool:
        [found] = self.admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)]).values()
        assert [each.offset for each in found.result(10).topic_partitions] == [321]
        self.admin.delete_consumer_groups([group])[group].result(10)
        return True

    def send(self, topic: str, codec: str, values: Sequence[bytes], first_ms: int) -> list[int]:
        producer = Producer(
            {
                **settings(self.address),
                "enable.idempotence": True,
                "acks": "all",
                "compression.type": codec,
                "linger.ms": 5,
            }
        )
        offsets: list[int] = []

        def delivered(error: Any, message: Message) -> None:
            if error:
                raise RuntimeError(error)
            offsets.append(message.offset())

        for number, value in enumerate(values):
            while True:
                try:
                    producer.produce(
                        topic, value, b"key", partition=0, on_delivery=delivered, timestamp=first_ms + number
                    )
                    break
                except BufferError:
                    producer.poll(0.1)
        assert producer.flush(60) == 0
        return offsets

    def send_record(self, topic: str, record: Record) -> None:
        producer = Producer({**settings(self.address), "enable.idempotence": True})
        producer.produce(topic, record.value, record.key, partition=0, headers=list(record.headers))
        assert producer.flush(60) == 0

    def send_transactions(self, topic: str, aborted: bytes, committed: Sequence[bytes]) -> None:
        producer = Producer({**settings(self.address), "transactional.id": topic})
        producer.init_transactions(60)
        producer.begin_transaction()
        producer.produce(topic, aborted, partition=0)
        assert producer.flush(60) == 0
        producer.abort_transaction(60)
        producer.begin_transaction()
        for value in committed:
            producer.produce(topic, value, partition=0)
        producer.commit_transaction(60)

    def set_retention(self, topic: str, value: str) -> None:
        change = ConfigEntry("retention.ms", value, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[change])
        self.admin.incremental_alter_configs([resource])[resource].result(10)

    def retention(self, topic: str) -> str:
        resource = ConfigResource(ResourceType.TOPIC, topic)
        return str(self.admin.describe_configs([resource])[resource].result(10)["retention.ms"].value)

    def share(self, topic: str, group: str, values: Sequence[bytes]) -> list[tuple[bytes, int]]:
        consumer = ShareConsumer(
            {**settings(self.address), "group.id": group, "share.acknowledgement.mode": "explicit"}
        )
        consumer.subscribe([topic])
        producer = Producer(settings(self.address))
        while not (probes := consumer.poll(1)):  # the group begins after the last record
            producer.produce(topic, b"probe", partition=0)
            producer.flush(60)
        for message in probes:
            consumer.acknowledge(message, AcknowledgeType.ACCEPT)
        for value in values:
            producer.produce(topic, value, partition=0)
        producer.flush(60)
        got: list[tuple[bytes, int]] = []
        is_released = False
        while len(got) < len(values):
            for message in consumer.poll(10):
                if message.value() == b"probe":
                    consumer.acknowledge(message, AcknowledgeType.ACCEPT)
                elif not is_released:
                    consumer.acknowledge(message, AcknowledgeType.RELEASE)
                    is_released = True
                else:
                    consumer.acknowledge(message, AcknowledgeType.ACCEPT)
                    got.append((message.value(), message.delivery_count()))
        consumer.commit_sync(60)
        consumer.close()
        return got

    def consumer(self, topic: str, group: str) -> Consumer:
        return ConfluentConsumer(self.address, topic, group)


main(ConfluentClient)
