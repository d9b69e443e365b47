"""A transactional producer over one raw socket, request by request."""

from __future__ import annotations

import itertools
import time
import uuid
from typing import Any

from kafka.admin import KafkaAdminClient, NewTopic
from kafka.protocol.consumer import FetchRequest, ListOffsetsRequest, OffsetFetchRequest
from kafka.protocol.producer import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    ProduceRequest,
    TxnOffsetCommitRequest,
)
from kafka.record.default_records import DefaultRecordBatchBuilder
from kafka.record.memory_records import MemoryRecords
from kafka_socket import KafkaSocket, build


def new_topic(address: str, prefix: str = "topic") -> str:
    """Create a topic and return its name."""
    name = f"{prefix}-{uuid.uuid4().hex[:12]}"
    admin = KafkaAdminClient(bootstrap_servers=address)
    admin.create_topics([NewTopic(name, 1, 1)])
    admin.close()
    return name


def batch(producer: tuple[int, int], sequence: int, values: list[bytes], transactional: bool = True) -> bytes:
    builder = DefaultRecordBatchBuilder(2, 0, int(transactional), *producer, sequence, 1 << 25)
    for number, each in enumerate(values):
        builder.append(number, int(time.time() * 1000), b"key", each, [])
    return bytes(builder.build())


def values_of(data: bytes | None) -> list[bytes]:
    """Return the values of all records that are no markers."""
    found: list[bytes] = []
    batches = MemoryRecords(data or b"")
    while batches.has_next():
        each = batches.next_batch()
        if not each.is_control_batch:
            found += [record.value for record in each]
    return found


class TransactionClient(KafkaSocket):
    """The producer with this transactional id.

    Attributes:
        producer: its id and epoch.
    """

    def __init__(self, address: str, name: str | None = None) -> None:
        super().__init__(address)
        self.name = name or f"txn-{uuid.uuid4().hex[:12]}"
        self.producer = (-1, -1)
        self._sequences: dict[str, itertools.count[int]] = {}

    def request(self, request_type: Any, version: int, **fields: Any) -> Any:
        return self.ask(build(request_type, fields, version), version)

    def init(self, version: int = 4, timeout_ms: int = 60_000, producer: tuple[int, int] = (-1, -1)) -> int:
        """Initialise the producer. Return the error code."""
        answer = self.request(
            InitProducerIdRequest,
            version,
            transactional_id=self.name,
            transaction_timeout_ms=timeout_ms,
            producer_id=producer[0],
            producer_epoch=producer[1],
        )
        if answer.error_code == 0:
            self.producer = (answer.producer_id, answer.producer_epoch)
            self._sequences.clear()
        return int(answer.error_code)

    def _identity(self, prefix: str = "") -> dict[str, Any]:
        return {
            f"{prefix}transactional_id": self.name,
            f"{prefix}producer_id": self.producer[0],
            f"{prefix}producer_epoch": self.producer[1],
        }

    def add(self, topic: str, *partitions: int, version: int = 3) -> list[int]:
        """Add partitions, 0 by default. Return their error codes."""
        wanted = [{"name": topic, "partitions": list(partitions or (0,))}]
        answer = self.request(
            AddPartitionsToTxnRequest, version, v3_and_below_topics=wanted, **self._identity("v3_and_below_")
        )
        (found,) = answer.results_by_topic_v3_and_below
        return [each.partition_error_code for each in found.results_by_partition]

    def produce(self, topic: str, *values: bytes, transactional: bool = True, named: bool = True) -> int:
        """Send a batch of the transaction. Return the error code."""
        numbers = self._sequences.setdefault(topic, itertools.count())
        first = next(numbers)
        for _ in values[1:]:
            next(numbers)
        data = batch(self.producer, first, list(values), transactional)
        answer = self.request(
            ProduceRequest,
            9,
            transactional_id=self.name if named else None,
            acks=-1,
            timeout_ms=30_000,
            topic_data=[{"name": topic, "partition_data": [{"index": 0, "records": data}]}],
        )
        return int(answer.responses[0].partition_responses[0].error_code)

    def add_offsets(self, group: str, version: int = 3) -> int:
        return int(self.request(AddOffsetsToTxnRequest, version, group_id=group, **self._identity()).error_code)

    def commit_offset(self, group: str, topic: str, offset: int, version: int = 3, **member: Any) -> int:
        """Add an offset to the transaction. Return the error code."""
        partitions = [
            {"partition_index": 0, "committed_offset": offset, "committed_leader_epoch": -1, "committed_metadata": ""}
        ]
        answer = self.request(
            TxnOffsetCommitRequest,
            version,
            group_id=group,
            topics=[{"name": topic, "partitions": partitions}],
            **self._identity(),
            **member,
        )
        return int(answer.topics[0].partitions[0].error_code)

    def end(self, commits: bool, version: int = 3) -> int:
        return int(self.request(EndTxnRequest, version, committed=commits, **self._identity()).error_code)

    # -- readers

    def offset_of(self, group: str, topic: str, stable: bool = False) -> tuple[int, int]:
        """Return the committed offset and the error code."""
        answer = self.request(
            OffsetFetchRequest,
            7,
            group_id=group,
            topics=[{"name": topic, "partition_indexes": [0]}],
            require_stable=stable,
        )
        found = answer.topics[0].partitions[0]
        return found.committed_offset, found.error_code

    def fetch(self, topic: str, committed: bool, offset: int = 0, version: int = 11) -> Any:
        """Return the partition of a Fetch response."""
        partition = {
            "partition": 0,
            "current_leader_epoch": -1,
            "fetch_offset": offset,
            "log_start_offset": -1,
            "partition_max_bytes": 1 << 20,
        }
        answer = self.request(
            FetchRequest,
            version,
            replica_id=-1,
            max_wait_ms=0,
            min_bytes=0,
            max_bytes=1 << 20,
            isolation_level=int(committed),
            session_epoch=-1,
            topics=[{"topic": topic, "partitions": [partition]}],
            forgotten_topics_data=[],
            rack_id="",
        )
        return answer.responses[0].partitions[0]

    def values(self, topic: str, committed: bool = True) -> list[bytes]:
        """Return the values of the records that a consumer reads."""
        return values_of(self.fetch(topic, committed).records)

    def latest(self, topic: str, committed: bool, version: int = 4, timestamp: int = -1) -> int:
        """Return the offset for a time, or for one of Kafka's numbers; the end by default."""
        wanted = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": timestamp}
        answer = self.request(
            ListOffsetsRequest,
            version,
            replica_id=-1,
            isolation_level=int(committed),
            topics=[{"name": topic, "partitions": [wanted]}],
        )
        return int(answer.topics[0].partitions[0].offset)
