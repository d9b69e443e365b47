"""kafka-python: the steps of README.md."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from queue import Empty, SimpleQueue
from typing import Any

import kafka
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, OffsetAndMetadata, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType, NewTopic
from kafka.errors import CommitFailedError
from steps import Client, Consumer, Record, login, main


def settings(address: str) -> dict[str, Any]:
    found = login()
    if found is None:
        return {"bootstrap_servers": address}
    return {
        "bootstrap_servers": address,
        "security_protocol": "SASL_SSL",
        "ssl_cafile": found.ca,
        "sasl_mechanism": "PLAIN",
        "sasl_plain_username": found.user,
        "sasl_plain_password": found.password,
    }


class KafkaPythonConsumer(Consumer):
    """A member polls in a thread of its own.

    kafka-python 3.0.12 joins its group again when the answer to JoinGroup comes between two calls of `poll`. If one
    thread polled two members by turns, that would happen again and again.
    """

    def __init__(self, address: str, topic: str, group: str) -> None:
        self.consumer = KafkaConsumer(
            **settings(address),
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            session_timeout_ms=10_000,
            heartbeat_interval_ms=500,
            isolation_level="read_committed",
        )
        self.topic, self.partition = topic, TopicPartition(topic, 0)
        self.taken: SimpleQueue[Sequence[Record]] = SimpleQueue()
        self.thread = ThreadPoolExecutor(1)
        self.next_take: Future[None] | None = None
        self.is_closed = False

    def assign(self, offset: int) -> None:
        self.consumer.assign([self.partition])
        self.consumer.seek(self.partition, offset)

    def subscribe(self) -> None:
        self.consumer.subscribe([self.topic])

    def poll(self) -> Sequence[Record]:
        found = self.consumer.poll(100, 10_000).get(self.partition, [])
        return [Record(each.offset, each.timestamp, each.value, each.key, tuple(each.headers)) for each in found]

    def take(self) -> Sequence[Record]:
        if self.next_take is None:
            self.next_take = self.thread.submit(self._take)
        elif self.next_take.done():
            self.next_take.result()
        try:
            return self.taken.get(timeout=0.1)
        except Empty:
            return []

    def _take(self) -> None:
        """Poll, commit, and do so again until the consumer is closed."""
        with contextlib.suppress(CommitFailedError):  # the group rebalances: another member gets the records
            records = super().take()
            if records:
                self.taken.put(records)
        if not self.is_closed:
            self.next_take = self.thread.submit(self._take)

    def partitions(self) -> int:
        return len(self.thread.submit(self.consumer.assignment).result())

    def commit(self, offset: int) -> None:
        self.consumer.commit({self.partition: OffsetAndMetadata(offset, "", -1)})

    def committed(self) -> int:
        return int(self.consumer.committed(self.partition))

    def offset_of_time(self, timestamp_ms: int) -> int:
        return int(self.consumer.offsets_for_times({self.partition: timestamp_ms})[self.partition].offset)

    def end(self) -> int:
        return int(self.consumer.end_offsets([self.partition])[self.partition])

    def close(self) -> None:
        self.is_closed = True
        self.thread.shutdown()
        self.consumer.close()


class KafkaPythonClient(Client):
    def __init__(self, address: str) -> None:
        super().__init__(address)
        self.admin = KafkaAdminClient(**settings(address))

    @staticmethod
    def version() -> str:
        return str(kafka.__version__)

    def create(self, topic: str) -> None:
        self.admin.create_topics([NewTopic(topic, 1, 1)])

    def delete(self, topic: str) -> None:
        self.admin.delete_topics([topic])

    def topics(self) -> set[str]:
        return set(self.admin.list_topics())

    def partitions(self, topic: str) -> int:
        [found] = self.admin.describe_topics([topic])
        return len(found["partitions"])

    def groups(self) -> set[str]:
        return {each["group_id"] for each in self.admin.list_groups()}

    def group(self, group: str) -> tuple[str, int]:
        found = self.admin.describe_groups([group])[group]
        return found["group_state"], len(found["members"])

    def delete_group(self, group: str) -> bool:
        self.admin.delete_groups([group])
        return True

    def send(self, topic: str, codec: str, values: Sequence[bytes], first_ms: int) -> list[int]:
        producer = KafkaProducer(
            **settings(self.address),
            acks="all",
            enable_idempotence=True,
            compression_type=None if codec == "none" else codec,
            linger_ms=5,
        )
        sent = [
            producer.send(topic, value, b"key", partition=0, timestamp_ms=first_ms + number)
            for number, value in enumerate(values)
        ]
        offsets = [each.get(60).offset for each in sent]
        producer.close()
        return offsets

    def send_record(self, topic: str, record: Record) -> None:
        producer = KafkaProducer(**settings(self.address), acks="all", enable_idempotence=True)
        producer.send(topic, record.value, record.key, list(record.headers), partition=0).get(60)
        producer.close()

    def send_transactions(self, topic: str, aborted: bytes, committed: Sequence[bytes]) -> None:
        producer = KafkaProducer(**settings(self.address), enable_idempotence=True, transactional_id=topic)
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, aborted, partition=0).get(60)
        producer.abort_transaction()
        producer.begin_transaction()
        for value in committed:
            producer.send(topic, value, partition=0)
        producer.commit_transaction()
        producer.close()

    def set_retention(self, topic: str, value: str) -> None:
        self.admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, {"retention.ms": value})])

    def retention(self, topic: str) -> str:
        found = self.admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)])
        return str(found["topic"][topic].get("retention.ms", {}).get("value"))  # modified ones only

    def consumer(self, topic: str, group: str) -> Consumer:
        return KafkaPythonConsumer(self.address, topic, group)


main(KafkaPythonClient)
