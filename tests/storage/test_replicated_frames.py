"""Kafka's frames, ours compared with kafka-python's, and responses with wrong contents.

kafka-python decodes our requests, and we decode its responses. Then each response is cut at each byte and has each byte
changed: it is decoded or raises BadAnswer, with bounded memory.
"""

from __future__ import annotations

import random
import tracemalloc
import warnings
from collections.abc import Callable
from typing import Any

import pytest
from google_crc32c import value as checksum
from hypothesis import given, settings
from hypothesis import strategies as st
from librt.strings import BytesWriter
from profiles import examples

from amqpd.kafka import requests
from amqpd.kafka.wire import BadAnswer, Reader, uvarint_size, write_uvarint
from amqpd.storage.log.batch import ClosedBatch, close_batch

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
    from kafka.protocol.sasl import (
        SaslAuthenticateRequest,
        SaslAuthenticateResponse,
        SaslHandshakeRequest,
        SaslHandshakeResponse,
    )

ID = 77
CLIENT = b"node-1"
names = st.text("abcdefghijklmnopqrstuvwxyz0123456789._-", min_size=1, max_size=40)
int16s = st.integers(-(2**15), 2**15 - 1)
int32s = st.integers(-(2**31), 2**31 - 1)
int64s = st.integers(-(2**63), 2**63 - 1)
few_examples = settings(max_examples=examples(60), deadline=None)


def make_batch(records: bytes, more: list[bytes], base_offset: int = 5, sequence: int = 0) -> ClosedBatch:
    return close_batch(BytesWriter(), records, base_offset, 3, 0, 0, 1_700_000_000_000, 0, 9, sequence, -1, more, 2)


def batch_bytes(batch: ClosedBatch) -> bytes:
    return b"".join((batch.header, batch.records, *batch.more))


def encode_response(message: Any, version: int) -> bytes:
    """The response frame without its length."""
    message.API_VERSION = version
    message.with_header(correlation_id=ID)
    data = bytes(message.encode(header=True, framed=True))
    assert int.from_bytes(data[:4], "big") == len(data) - 4
    return data[4:]


def decode_request(kind: Any, data: bytes, version: int) -> Any:
    """Decode one of our requests with kafka-python and check that encoding it again gives the same bytes."""
    message = kind.decode(data, version=version, header=True, framed=True)
    assert int.from_bytes(data[:4], "big") == len(data) - 4
    assert message.header.correlation_id == ID
    assert message.header.client_id == CLIENT.decode()
    assert message.header.request_api_key == kind.API_KEY
    message.API_VERSION = version
    message.with_header(correlation_id=ID, client_id=CLIENT.decode())
    assert message.encode(header=True, framed=True) == data
    return message


class TestRequests:
    @given(
        st.dictionaries(
            names,
            st.dictionaries(
                st.integers(0, 2**31 - 1),
                st.tuples(st.sampled_from((0, 1, 100, 16 * 1024, 16 * 1024 + 1, 70_000)), st.integers(0, 3)),
                min_size=1,
                max_size=4,
            ),
            max_size=3,
        ),
        st.integers(0, 2**31 - 1),
    )
    @few_examples
    def test_produce(self, topics_wanted: dict[str, dict[int, tuple[int, int]]], timeout_ms: int) -> None:
        topics = []
        for name, partitions in topics_wanted.items():
            topic = requests.TopicBatches(name.encode())
            for partition, (size, parts) in partitions.items():
                topic.add(partition, make_batch(b"r" * size, [b"m" * 50] * parts))
            topics.append(topic)
        parts = requests.encode_produce(BytesWriter(), ID, CLIENT, timeout_ms, topics)
        message = decode_request(ProduceRequest, b"".join(parts), requests.PRODUCE_VERSION)
        assert (message.acks, message.timeout_ms, message.transactional_id) == (-1, timeout_ms, None)
        assert [each.name for each in message.topic_data] == list(topics_wanted)
        for topic, read in zip(topics, message.topic_data, strict=True):
            assert [each.index for each in read.partition_data] == topic.partitions
            for batch, each in zip(topic.batches, read.partition_data, strict=True):
                assert bytes(each.records) == bytes(8) + batch_bytes(batch)[8:]

    @given(st.lists(st.tuples(names, st.integers(0, 9), int64s, int32s), max_size=6), int32s, int32s)
    @few_examples
    def test_fetch(self, rows: list[tuple[str, int, int, int]], wait_ms: int, size_max: int) -> None:
        positions = [requests.FetchPlace(name.encode(), *rest) for name, *rest in sorted(rows)]
        data = requests.encode_fetch(BytesWriter(), ID, CLIENT, wait_ms, size_max, positions)
        message = decode_request(FetchRequest, data, requests.FETCH_VERSION)
        assert (message.max_wait_ms, message.max_bytes, message.min_bytes) == (wait_ms, size_max, 1)
        assert (message.replica_id, message.session_id, message.session_epoch) == (-1, 0, -1)
        assert [
            (each.topic, one.partition, one.fetch_offset, one.partition_max_bytes)
            for each in message.topics
            for one in each.partitions
        ] == sorted(rows)
        assert len({each.topic for each in message.topics}) == len(message.topics)

    @given(st.lists(names, max_size=5))
    @few_examples
    def test_metadata(self, topics: list[str]) -> None:
        data = requests.encode_metadata(ID, CLIENT, [each.encode() for each in topics])
        message = decode_request(MetadataRequest, data, 12)
        assert [each.name for each in message.topics] == topics
        assert message.allow_auto_topic_creation is False

    @given(names, st.lists(st.integers(0, 2**31 - 1), max_size=5), int64s)
    @few_examples
    def test_list_offsets(self, topic: str, partitions: list[int], when: int) -> None:
        data = requests.encode_list_offsets(ID, CLIENT, topic.encode(), partitions, when)
        message = decode_request(ListOffsetsRequest, data, 6)
        assert (message.replica_id, message.isolation_level) == (-1, 0)
        (read,) = message.topics
        assert read.name == topic
        assert [(each.partition_index, each.timestamp) for each in read.partitions] == [
            (each, when) for each in partitions
        ]

    def test_other_requests(self) -> None:
        message = decode_request(ApiVersionsRequest, requests.encode_api_versions(ID, CLIENT, b"amqpd", b"1.2"), 3)
        assert (message.client_software_name, message.client_software_version) == ("amqpd", "1.2")
        message = decode_request(FindCoordinatorRequest, requests.encode_find_coordinator(ID, CLIENT, b"slot"), 3)
        assert (message.key, message.key_type) == ("slot", 1)
        message = decode_request(
            InitProducerIdRequest, requests.encode_init_producer_id(ID, CLIENT, b"slot", 5000, 7, 8), 4
        )
        assert (message.transactional_id, message.transaction_timeout_ms) == ("slot", 5000)
        assert (message.producer_id, message.producer_epoch) == (7, 8)
        message = decode_request(InitProducerIdRequest, requests.encode_init_producer_id(ID, CLIENT, None, 5000), 4)
        assert (message.transactional_id, message.producer_id, message.producer_epoch) == (None, -1, -1)
        assert (
            decode_request(SaslHandshakeRequest, requests.encode_sasl_handshake(ID, CLIENT, b"PLAIN"), 1).mechanism
            == "PLAIN"
        )
        message = decode_request(SaslAuthenticateRequest, requests.encode_sasl_authenticate(ID, CLIENT, b"\0me"), 2)
        assert message.auth_bytes == b"\0me"


def produce_response(partitions: list[tuple[str, int, int, int, list[str | None], str | None]]) -> bytes:
    topics: dict[str, list[Any]] = {}
    kinds = ProduceResponse.TopicProduceResponse
    of_one = kinds.PartitionProduceResponse
    for name, index, code, offset, errors, text in partitions:
        messages = [of_one.BatchIndexAndErrorMessage(batch_index=1, batch_index_error_message=each) for each in errors]
        topics.setdefault(name, []).append(
            of_one(
                index=index,
                error_code=code,
                base_offset=offset,
                log_append_time_ms=-1,
                log_start_offset=3,
                record_errors=messages,
                error_message=text,
            )
        )
    responses = [kinds(name=name, partition_responses=each) for name, each in topics.items()]
    return encode_response(ProduceResponse(responses=responses, throttle_time_ms=0), requests.PRODUCE_VERSION)


def fetch_response(partitions: list[tuple[str, int, int, int, int, bytes | None]], aborted: int = 0) -> bytes:
    topics: dict[str, list[Any]] = {}
    kinds = FetchResponse.FetchableTopicResponse
    of_one = kinds.PartitionData
    for name, index, code, high, low, records in partitions:
        topics.setdefault(name, []).append(
            of_one(
                partition_index=index,
                error_code=code,
                high_watermark=high,
                last_stable_offset=high,
                log_start_offset=low,
                aborted_transactions=[of_one.AbortedTransaction(producer_id=1, first_offset=2)] * aborted,
                preferred_read_replica=-1,
                records=records,
            )
        )
    responses = [kinds(topic=name, partitions=each) for name, each in topics.items()]
    message = FetchResponse(throttle_time_ms=0, error_code=0, session_id=0, responses=responses)
    return encode_response(message, requests.FETCH_VERSION)


def metadata_response() -> bytes:
    of_topic = MetadataResponse.MetadataResponseTopic
    of_partition = of_topic.MetadataResponsePartition
    partitions = [
        of_partition(
            error_code=code,
            partition_index=index,
            leader_id=leader,
            leader_epoch=4,
            replica_nodes=[1, 2, 3],
            isr_nodes=[1],
            offline_replicas=[2, 3],
        )
        for index, leader, code in ((0, 1, 0), (1, -1, 5))
    ]
    brokers = [
        MetadataResponse.MetadataResponseBroker(node_id=each, host=f"kafka{each}", port=9092, rack=None)
        for each in (1, 2)
    ]
    topics = [
        of_topic(error_code=0, name="orders", is_internal=False, partitions=partitions),
        of_topic(error_code=3, name="gone", is_internal=False, partitions=[]),
    ]
    message = MetadataResponse(throttle_time_ms=0, brokers=brokers, cluster_id="abc", controller_id=1, topics=topics)
    return encode_response(message, 12)


def api_versions_response() -> bytes:
    kind = ApiVersionsResponse.ApiVersion
    rows = [kind(api_key=api, min_version=0, max_version=version) for api, _, version in requests.WANTED]
    message = ApiVersionsResponse(error_code=0, api_keys=rows, throttle_time_ms=0)
    return encode_response(message, 3)


coordinator_response = encode_response(
    FindCoordinatorResponse(throttle_time_ms=0, error_code=0, error_message=None, node_id=2, host="kafka2", port=9092),
    3,
)
producer_id_response = encode_response(
    InitProducerIdResponse(throttle_time_ms=0, error_code=0, producer_id=4000, producer_epoch=12), 4
)
of_offsets = ListOffsetsResponse.ListOffsetsTopicResponse
offsets_response = encode_response(
    ListOffsetsResponse(
        throttle_time_ms=0,
        topics=[
            of_offsets(
                name="orders",
                partitions=[
                    of_offsets.ListOffsetsPartitionResponse(
                        partition_index=index, error_code=code, timestamp=-1, offset=offset, leader_epoch=3
                    )
                    for index, code, offset in ((0, 0, 77), (9, 6, -1))
                ],
            )
        ],
    ),
    6,
)
authenticate_response = encode_response(
    SaslAuthenticateResponse(error_code=58, error_message="no", auth_bytes=b"v=1", session_lifetime_ms=9), 2
)
handshake_response = encode_response(SaslHandshakeResponse(error_code=33, mechanisms=["PLAIN", "GSSAPI"]), 1)
BATCHES = [batch_bytes(make_batch(b"r" * 90, [], base)) for base in (5, 8, 11)]

RESPONSES: dict[str, tuple[bytes, Callable[[bytes], object]]] = {
    "produce": (
        produce_response(
            [("a", 0, 0, 7, [], None), ("a", 3, 87, -1, ["bad", None], "worse"), ("b", 1, 0, 9, [], None)]
        ),
        requests.decode_produce,
    ),
    "fetch": (
        fetch_response([("a", 0, 0, 14, 5, b"".join(BATCHES)), ("a", 1, 1, -1, -1, None)], aborted=2),
        lambda data: [each.batches() for each in requests.decode_fetch(data)[1]],
    ),
    "metadata": (metadata_response(), requests.decode_metadata),
    "versions": (api_versions_response(), requests.decode_api_versions),
    "coordinator": (coordinator_response, requests.decode_find_coordinator),
    "producer id": (producer_id_response, requests.decode_init_producer_id),
    "offsets": (offsets_response, requests.decode_list_offsets),
    "authenticated": (authenticate_response, requests.decode_sasl_authenticate),
    "handshake": (handshake_response, requests.decode_sasl_handshake),
}


class TestResponses:
    @given(
        st.lists(
            st.tuples(
                names,
                st.integers(0, 2**31 - 1),
                int16s,
                int64s,
                st.lists(st.none() | st.text(max_size=9), max_size=2),
                st.none() | st.text(max_size=200),
            ),
            max_size=6,
        )
    )
    @few_examples
    def test_produce(self, partitions: list[tuple[str, int, int, int, list[str | None], str | None]]) -> None:
        ordered = sorted(partitions, key=lambda each: each[0])
        read = requests.decode_produce(produce_response(ordered))
        assert [(each.topic.decode(), each.partition, each.code, each.base_offset) for each in read] == [
            each[:4] for each in ordered
        ]
        for each, (*_, errors, text) in zip(read, ordered, strict=True):
            texts = [one for one in (*errors, text) if one is not None]
            assert each.text == "; ".join(texts)

    def test_fetch(self) -> None:
        data = fetch_response([("a", 0, 0, 14, 5, b"".join(BATCHES)), ("b", 1, 1, -1, -1, None)], aborted=1)
        code, (first, second) = requests.decode_fetch(data)
        assert code == 0
        assert (first.topic, first.partition, first.high_watermark, first.log_start_offset) == (b"a", 0, 14, 5)
        assert first.batches() == BATCHES
        assert (second.code, second.batches()) == (1, [])

    def test_batch_that_kafka_has_cut_is_ignored(self) -> None:
        data = fetch_response([("a", 0, 0, 14, 5, b"".join(BATCHES)[:-1])])
        assert requests.decode_fetch(data)[1][0].batches() == BATCHES[:2]

    def test_batch_emptied_by_compaction_is_kept(self) -> None:
        """Kafka keeps the header of a producer's last batch for its sequence."""
        empty = close_batch(BytesWriter(), b"", 14, 0, 0, 0, 1_700_000_000_000, 0, 9, 0, -1, [], 2).header
        spans = bytearray(empty)
        spans[23:27] = (2).to_bytes(4, "big")  # the offsets 14 to 16
        spans[17:21] = checksum(bytes(spans[21:])).to_bytes(4, "big")
        data = fetch_response([("a", 0, 0, 17, 5, BATCHES[0] + bytes(spans))])
        assert requests.decode_fetch(data)[1][0].batches() == [BATCHES[0], bytes(spans)]

    @pytest.mark.parametrize("at", [16, 21, 30, 70])
    def test_wrong_checksum_is_refused(self, at: int) -> None:
        broken = bytearray(BATCHES[0])
        broken[at] ^= 1
        with pytest.raises(BadAnswer):
            requests.decode_fetch(fetch_response([("a", 0, 0, 14, 5, bytes(broken))]))[1][0].batches()

    def test_metadata(self) -> None:
        read = requests.decode_metadata(metadata_response())
        assert read.brokers == {1: ("kafka1", 9092), 2: ("kafka2", 9092)}
        assert read.leaders == {(b"orders", 0): 1, (b"orders", 1): -1}
        assert read.codes == {(b"orders", 1): 5, (b"gone", -1): 3}

    def test_missing_versions_are_listed(self) -> None:
        code, found = requests.decode_api_versions(api_versions_response())
        assert code == 0
        assert requests.missing_versions(found) == []
        found[0] = (3, 8)
        del found[22]
        assert requests.missing_versions(found) == ["Produce 9 (it has 3 to 8)", "InitProducerId 4 (it has none)"]

    def test_api_versions_error_of_an_older_broker(self) -> None:
        data = ID.to_bytes(4, "big") + (35).to_bytes(2, "big") + bytes(4)
        assert requests.decode_api_versions(data) == (35, {})

    def test_other_responses(self) -> None:
        found = requests.decode_find_coordinator(coordinator_response)
        assert (found.code, found.broker, found.host, found.port) == (0, 2, "kafka2", 9092)
        given_id = requests.decode_init_producer_id(producer_id_response)
        assert (given_id.code, given_id.producer_id, given_id.epoch) == (0, 4000, 12)
        assert [
            (each.topic, each.partition, each.code, each.offset)
            for each in requests.decode_list_offsets(offsets_response)
        ] == [(b"orders", 0, 0, 77), (b"orders", 9, 6, -1)]
        authentication = requests.decode_sasl_authenticate(authenticate_response)
        assert (authentication.code, authentication.text, authentication.message, authentication.lifetime_ms) == (
            58,
            "no",
            b"v=1",
            9,
        )
        assert requests.decode_sasl_handshake(handshake_response) == (33, ["PLAIN", "GSSAPI"])


@pytest.mark.parametrize("kind", RESPONSES)
class TestDamagedResponses:
    def test_response_cut_at_any_byte_is_refused(self, kind: str) -> None:
        data, decode = RESPONSES[kind]
        decode(data)
        for end in range(len(data)):
            with pytest.raises(BadAnswer):
                decode(data[:end])
        with pytest.raises(BadAnswer):
            decode(data + b"\0")

    def test_changed_byte_is_decoded_or_refused(self, kind: str) -> None:
        data, decode = RESPONSES[kind]
        random_ = random.Random(16)
        read = 0
        tracemalloc.start()
        for at in range(4, len(data)):
            for value in {0, 1, 0x7F, 0x80, 0xFF, data[at] ^ (1 << random_.randrange(8))}:
                changed = data[:at] + bytes([value]) + data[at + 1 :]
                try:
                    decode(changed)
                    read += 1
                except BadAnswer:
                    pass
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert read > 0  # numbers may have any value
        assert peak < 2_000_000

    def test_random_bytes_are_decoded_or_refused(self, kind: str) -> None:
        _, decode = RESPONSES[kind]
        random_ = random.Random(kind)
        for _ in range(2000):
            data = random_.randbytes(random_.randrange(60))
            try:
                decode(data)
            except BadAnswer:
                continue


def test_count_larger_than_the_remaining_bytes_is_refused() -> None:
    """Four billion elements are announced in a few bytes and refused before a list is made."""
    with pytest.raises(BadAnswer, match="longer"):
        Reader(b"\xff\xff\xff\xff\x0f" + bytes(100)).count(1)
    with pytest.raises(BadAnswer, match="32 bits"):
        Reader(b"\xff\xff\xff\xff\x1f").uvarint()
    with pytest.raises(BadAnswer, match="32 bits"):
        Reader(b"\xff\xff\xff\xff\xff\x01").uvarint()
    with pytest.raises(BadAnswer):
        Reader(b"\xff\xff").string()


@given(st.integers(0, 2**32 - 1))
def test_uvarint_round_trip(value: int) -> None:
    writer = BytesWriter()
    write_uvarint(writer, value)
    data = writer.getvalue()
    assert uvarint_size(value) == len(data)
    reader = Reader(data)
    assert reader.uvarint() == value
    reader.finish()
