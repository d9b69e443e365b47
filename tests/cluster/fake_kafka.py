"""A Kafka in this process without Java: brokers on loopback with partitions in memory, for tests of readers and
writers. kafka-python encodes the answers and decodes the requests.

    async with FakeKafka(brokers=2) as kafka:
        kafka.create("meta", 4)
        kafka.append("meta", 0, batch)
        kafka.access

It appends batches whose sequence fits, fences by epoch, and has no replicas. It can move leaders (`lead`), break
connections (`drop`), answer with a code (`fail`) and hang like a suspended process (`hang`): its sockets accept data,
but it does not answer.
"""

from __future__ import annotations

import asyncio
import struct
import warnings
from collections import Counter
from typing import Any, Self

from amqpd.kafka.config import KafkaAccess
from amqpd.kafka.requests import WANTED
from amqpd.storage.log.batch import BatchHeader

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # kafka-python uses importlib.resources.read_text
    from kafka.protocol.consumer.fetch import FetchRequest, FetchResponse
    from kafka.protocol.consumer.offsets import ListOffsetsRequest, ListOffsetsResponse
    from kafka.protocol.metadata import (
        ApiVersionsRequest,
        ApiVersionsResponse,
        FindCoordinatorRequest,
        FindCoordinatorResponse,
        MetadataRequest,
        MetadataResponse,
    )
    from kafka.protocol.producer import (
        InitProducerIdRequest,
        InitProducerIdResponse,
        ProduceRequest,
        ProduceResponse,
    )

REQUESTS: dict[int, Any] = {
    kind.API_KEY: kind
    for kind in (
        ApiVersionsRequest,
        FetchRequest,
        FindCoordinatorRequest,
        InitProducerIdRequest,
        ListOffsetsRequest,
        MetadataRequest,
        ProduceRequest,
    )
}
REMEMBERED = 5
PRODUCE, FETCH, LIST_OFFSETS, METADATA = 0, 1, 2, 3
NOT_LEADER, OUT_OF_RANGE, UNKNOWN_TOPIC, OUT_OF_ORDER, FENCED = 6, 1, 3, 45, 47


class FakePartition:
    """One partition: its batches, its leader, and its producers."""

    def __init__(self, leader: int) -> None:
        self.leader = leader
        self.batches: list[bytes] = []
        self.first = 0
        self.end = 0
        self.producers: dict[int, tuple[int, int]] = {}
        # (producer id, epoch, sequence) -> offset of the last batches, to recognise a repeated one
        self.remembered: dict[tuple[int, int, int], int] = {}
        self.news = asyncio.Event()

    def append(self, batch: bytes) -> int:
        """Append the batch. Return its offset."""
        header = BatchHeader(batch, 0)
        base = self.end
        self.batches.append(struct.pack(">q", base) + batch[8:])
        self.end = base + int(header.last_offset - header.base_offset) + 1
        self.news.set()
        self.news = asyncio.Event()
        return base

    def produce(self, batch: bytes) -> tuple[int, int]:
        """Append a produced batch. Return (code, offset)."""
        header = BatchHeader(batch, 0)
        epoch, following = self.producers.get(int(header.producer_id), (-1, -1))
        if header.producer_epoch < epoch:
            return FENCED, -1
        if header.producer_epoch > epoch:
            following = 0 if epoch >= 0 else int(header.base_sequence)
        number = int(header.producer_id), int(header.producer_epoch), int(header.base_sequence)
        if number in self.remembered:
            return 0, self.remembered[number]
        if header.base_sequence != following:
            return OUT_OF_ORDER, -1
        self.producers[number[0]] = number[1], following + int(header.count)
        self.remembered[number] = self.append(batch)
        while len(self.remembered) > REMEMBERED:
            del self.remembered[next(iter(self.remembered))]
        return 0, self.remembered[number]


class FakeKafka:
    """A cluster whose brokers have the numbers 1, 2, ..."""

    def __init__(self, brokers: int = 1) -> None:
        self.topics: dict[str, list[FakePartition]] = {}
        self.request_counts: Counter[int] = Counter()
        """Counts of requests, by API key."""
        self._heard = asyncio.Event()
        self.fetch_size_max = 1 << 30
        self._failing: dict[tuple[str, int], list[int]] = {}
        self._numbers = range(1, brokers + 1)
        self._servers: dict[int, asyncio.Server] = {}
        self._ports: dict[int, int] = {}
        self._writers: dict[int, set[asyncio.StreamWriter]] = {each: set() for each in self._numbers}
        self._ids: dict[str, tuple[int, int]] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self.gone: set[int] = set()
        self._hanging: dict[int, asyncio.Event] = {}
        self.coordinator = 0
        """The coordinator broker; 0: the broker that is asked."""

    async def __aenter__(self) -> Self:
        for number in self._numbers:
            await self.start(number)
        return self

    async def __aexit__(self, *_: object) -> None:
        for number in self._numbers:
            await self.stop(number)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def access(self) -> KafkaAccess:
        """The access settings of this Kafka."""
        return KafkaAccess(tuple(f"127.0.0.1:{port}" for port in self._ports.values()))

    # -- what a test does

    async def start(self, number: int) -> None:
        """Let the broker listen, at its former port."""

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            self._tasks.add(task)
            self._writers[number].add(writer)
            try:
                await self._serve(number, reader, writer)
            except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
                pass
            finally:
                self._tasks.discard(task)
                self._writers[number].discard(writer)
                writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", self._ports.get(number, 0))
        self._servers[number] = server
        self._ports[number] = server.sockets[0].getsockname()[1]
        self.gone.discard(number)

    async def wait_for_requests(self, api: int, count: int) -> None:
        """Wait until `count` requests of that kind have arrived."""
        while self.request_counts[api] < count:
            self._heard.clear()
            await self._heard.wait()

    async def stop(self, number: int) -> None:
        """Stop the broker."""
        server = self._servers.pop(number, None)
        if server is not None:
            server.close()
            self.gone.add(number)
            self.drop(number)
            await server.wait_closed()

    def drop(self, number: int) -> None:
        """Close all connections to the broker."""
        for writer in list(self._writers[number]):
            if writer.transport is not None:
                writer.transport.abort()

    def hang(self, number: int) -> None:
        """Let the broker hang until `go_on`: it executes requests only then."""
        self._hanging[number] = asyncio.Event()

    def resume(self, number: int) -> None:
        """Let the broker answer again, first the waiting requests."""
        self._hanging.pop(number).set()

    def create(self, topic: str, partitions: int) -> None:
        """Create a topic, or add partitions, spread over the brokers."""
        held = self.topics.setdefault(topic, [])
        while len(held) < partitions:
            held.append(FakePartition(1 + len(held) % len(self._numbers)))

    def append(self, topic: str, number: int, batch: bytes) -> int:
        """Append any batch to the partition. Return its offset."""
        return self.topics[topic][number].append(batch)

    def lead(self, topic: str, number: int, broker: int) -> None:
        """Set the leader of the partition."""
        held = self.topics[topic][number]
        held.leader = broker
        held.news.set()
        held.news = asyncio.Event()

    def fail(self, topic: str, number: int, *codes: int) -> None:
        """Answer the next requests for the partition with these codes."""
        self._failing.setdefault((topic, number), []).extend(codes)

    def delete_records(self, topic: str, number: int, offset: int) -> None:
        """Delete all records below the offset."""
        held = self.topics[topic][number]
        held.first = offset
        held.batches = [each for each in held.batches if BatchHeader(each, 0).last_offset >= offset]

    # -- what it answers

    async def _serve(self, me: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            size = await reader.readexactly(4)
            data = size + await reader.readexactly(int.from_bytes(size, "big"))
            hanging = self._hanging.get(me)
            if hanging is not None:
                await hanging.wait()
            api, version, correlation = struct.unpack(">hhi", data[4:12])
            self.request_counts[api] += 1
            self._heard.set()
            request = REQUESTS[api].decode(data, version=version, header=True, framed=True)
            answer = await getattr(self, f"_answer_{api}")(me, request)
            answer.API_VERSION = version
            answer.with_header(correlation_id=correlation)
            writer.write(bytes(answer.encode(header=True, framed=True)))
            await writer.drain()

    def _code(self, me: int, topic: str, number: int) -> int:
        failing = self._failing.get((topic, number))
        if failing:
            return failing.pop(0)
        if topic not in self.topics or number >= len(self.topics[topic]):
            return UNKNOWN_TOPIC
        return 0 if self.topics[topic][number].leader == me else NOT_LEADER

    async def _answer_18(self, _me: int, _request: Any) -> Any:
        kind = ApiVersionsResponse.ApiVersion
        rows = [kind(api_key=api, min_version=0, max_version=version) for api, _, version in WANTED]
        return ApiVersionsResponse(error_code=0, api_keys=rows, throttle_time_ms=0)

    async def _answer_3(self, _me: int, request: Any) -> Any:
        of_topic = MetadataResponse.MetadataResponseTopic
        of_partition = of_topic.MetadataResponsePartition
        brokers = [
            MetadataResponse.MetadataResponseBroker(node_id=each, host="127.0.0.1", port=port, rack=None)
            for each, port in self._ports.items()
            if each not in self.gone
        ]
        topics = []
        for asked in request.topics:
            held = self.topics.get(asked.name)
            partitions = [
                of_partition(
                    error_code=0,
                    partition_index=number,
                    leader_id=-1 if each.leader in self.gone else each.leader,
                    leader_epoch=0,
                    replica_nodes=[each.leader],
                    isr_nodes=[each.leader],
                    offline_replicas=[],
                )
                for number, each in enumerate(held or ())
            ]
            code = 0 if held is not None else UNKNOWN_TOPIC
            topics.append(of_topic(error_code=code, name=asked.name, is_internal=False, partitions=partitions))
        return MetadataResponse(throttle_time_ms=0, brokers=brokers, cluster_id="fake", controller_id=1, topics=topics)

    async def _answer_2(self, me: int, request: Any) -> Any:
        of_topic = ListOffsetsResponse.ListOffsetsTopicResponse
        topics = []
        for asked in request.topics:
            partitions = []
            for each in asked.partitions:
                code = self._code(me, asked.name, each.partition_index)
                held = None if code else self.topics[asked.name][each.partition_index]
                offset = -1 if held is None else held.first if each.timestamp == -2 else held.end
                partitions.append(
                    of_topic.ListOffsetsPartitionResponse(
                        partition_index=each.partition_index,
                        error_code=code,
                        timestamp=-1,
                        offset=offset,
                        leader_epoch=0,
                    )
                )
            topics.append(of_topic(name=asked.name, partitions=partitions))
        return ListOffsetsResponse(throttle_time_ms=0, topics=topics)

    async def _answer_1(self, me: int, request: Any) -> Any:
        answer, size = self._fetched(me, request)
        if not size and request.max_wait_ms:
            waiting = [
                asyncio.ensure_future(self.topics[asked.topic][each.partition].news.wait())
                for asked in request.topics
                for each in asked.partitions
                if asked.topic in self.topics and each.partition < len(self.topics[asked.topic])
            ]
            await asyncio.wait(waiting, timeout=request.max_wait_ms / 1000, return_when=asyncio.FIRST_COMPLETED)
            for each in waiting:
                each.cancel()
            answer, _ = self._fetched(me, request)
        return answer

    def _fetched(self, me: int, request: Any) -> tuple[Any, int]:
        """Return the answer and the number of bytes in it."""
        of_topic = FetchResponse.FetchableTopicResponse
        size = 0
        topics = []
        for asked in request.topics:
            partitions = []
            for each in asked.partitions:
                code = self._code(me, asked.topic, each.partition)
                data, high, first = b"", -1, -1
                if not code:
                    held = self.topics[asked.topic][each.partition]
                    high, first = held.end, held.first
                    if not first <= each.fetch_offset <= high:
                        code = OUT_OF_RANGE
                        high = first = -1
                    else:
                        room = min(each.partition_max_bytes, request.max_bytes - size, self.fetch_size_max)
                        data = _from(held, each.fetch_offset, room, first_whole=size == 0)
                size += len(data) + (1 if code else 0)
                partitions.append(
                    of_topic.PartitionData(
                        partition_index=each.partition,
                        error_code=code,
                        high_watermark=high,
                        last_stable_offset=high,
                        log_start_offset=first,
                        aborted_transactions=[],
                        preferred_read_replica=-1,
                        records=data,
                    )
                )
            topics.append(of_topic(topic=asked.topic, partitions=partitions))
        return FetchResponse(throttle_time_ms=0, error_code=0, session_id=0, responses=topics), size

    async def _answer_0(self, me: int, request: Any) -> Any:
        of_topic = ProduceResponse.TopicProduceResponse
        topics = []
        for asked in request.topic_data:
            partitions = []
            for each in asked.partition_data:
                code, offset = self._code(me, asked.name, each.index), -1
                if not code:
                    code, offset = self.topics[asked.name][each.index].produce(bytes(each.records))
                partitions.append(
                    of_topic.PartitionProduceResponse(
                        index=each.index,
                        error_code=code,
                        base_offset=offset,
                        log_append_time_ms=-1,
                        log_start_offset=0,
                        record_errors=[],
                        error_message=None,
                    )
                )
            topics.append(of_topic(name=asked.name, partition_responses=partitions))
        return ProduceResponse(responses=topics, throttle_time_ms=0)

    async def _answer_10(self, me: int, _request: Any) -> Any:
        number = self.coordinator or me
        port = self._ports[number]
        return FindCoordinatorResponse(
            throttle_time_ms=0, error_code=0, error_message=None, node_id=number, host="127.0.0.1", port=port
        )

    async def _answer_22(self, _me: int, request: Any) -> Any:
        producer_id, epoch = self._ids.get(request.transactional_id, (1000 + len(self._ids), -1))
        self._ids[request.transactional_id] = producer_id, epoch + 1
        return InitProducerIdResponse(
            throttle_time_ms=0, error_code=0, producer_id=producer_id, producer_epoch=epoch + 1
        )


def _from(held: FakePartition, offset: int, room: int, first_whole: bool) -> bytes:
    """Return batches from that offset on. The last one is cut at `room` bytes."""
    found = b""
    for batch in held.batches:
        if BatchHeader(batch, 0).last_offset < offset:
            continue
        if not found and first_whole:
            found = batch
        else:
            found += batch[: max(0, room - len(found))]
        if len(found) >= room:
            break
    return found
