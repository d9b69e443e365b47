"""Frames of Kafka's protocol, and the requests that are not sent for each turn: one function out, one in, for each.

    request   length i32 | API i16 | version i16 | correlation id i32 | client id string | tagged fields | ...
    answer    length i32 | correlation id i32 | tagged fields | ...

Versions are fixed, one each: what Kafka 4 has, and a few of before. `missing_versions` holds them against what a broker
says of itself with the first request, before anything else is asked.

    ApiVersions 3      which versions the broker has (its answer's head is the older one, without tagged fields)
    ListOffsets 6      where a partition begins, and where it ends
    Metadata 12        brokers, and who leads each partition
    FindCoordinator 3  who keeps the epochs of a transactional id
    InitProducerId 4   a producer id and its next epoch
    SaslHandshake 1, SaslAuthenticate 2: see sasl.py
"""

from __future__ import annotations

from typing import Final, final

from librt.strings import BytesWriter
from mypy_extensions import i64

from amqpd.kafka.wire import Reader, write_compact, write_flag, write_int16, write_int32, write_int64, write_string, write_uvarint

PRODUCE: Final[i64] = 0
FETCH: Final[i64] = 1
LIST_OFFSETS: Final[i64] = 2
METADATA: Final[i64] = 3
FIND_COORDINATOR: Final[i64] = 10
SASL_HANDSHAKE: Final[i64] = 17
API_VERSIONS: Final[i64] = 18
INIT_PRODUCER_ID: Final[i64] = 22
SASL_AUTHENTICATE: Final[i64] = 36

WANTED: Final = (
    (0, "Produce", 9),
    (1, "Fetch", 12),
    (2, "ListOffsets", 6),
    (3, "Metadata", 12),
    (10, "FindCoordinator", 3),
    (22, "InitProducerId", 4),
)
"""(API, its name, the version of it that is spoken here)."""

CORRELATION_MAX: Final[i64] = 0x7FFF_FFFF
_LENGTH_SIZE: Final[i64] = 4
_NO_TOPIC_ID: Final = bytes(16)
_TRANSACTION_COORDINATOR: Final[i64] = 1


def head_size(client_id: bytes) -> i64:
    """Bytes of a flexible request's head behind its length."""
    return 2 + 2 + 4 + 2 + len(client_id) + 1


def write_head(
    writer: BytesWriter, size: i64, api: i64, version: i64, correlation_id: i64, client_id: bytes, flexible: bool = True
) -> None:
    """Begins a request in `writer`. size: of all that follows the length; 0 where `framed` will know it."""
    write_int32(writer, size)
    write_int16(writer, api)
    write_int16(writer, version)
    write_int32(writer, correlation_id)
    write_string(writer, client_id)
    if flexible:
        writer.append(0)


def framed(writer: BytesWriter) -> bytes:
    """What was written to `writer`, with its length in front."""
    size: i64 = len(writer) - _LENGTH_SIZE
    data = writer.getvalue()
    return int(size).to_bytes(4, "big") + data[_LENGTH_SIZE:]


def read_head(reader: Reader, flexible: bool = True) -> None:
    """Passes over an answer's head."""
    reader.int32()
    if flexible:
        reader.pass_tags()


# -- which versions


def encode_api_versions(correlation_id: i64, client_id: bytes, software: bytes, version: bytes) -> bytes:
    """Asks a broker what it speaks. software, version: letters, digits, `-` and `.`, which the broker logs."""
    writer = BytesWriter()
    write_head(writer, 0, API_VERSIONS, 3, correlation_id, client_id)
    write_compact(writer, software)
    write_compact(writer, version)
    writer.append(0)
    return framed(writer)


def decode_api_versions(data: bytes) -> tuple[i64, dict[int, tuple[int, int]]]:
    """(code, API -> its lowest and highest version). Raises: BadAnswer."""
    reader = Reader(data)
    read_head(reader, flexible=False)
    code: i64 = reader.int16()
    found: dict[int, tuple[int, int]] = {}
    if code != 0:  # a broker that does not know version 3 answers in version 0: its code is all there is to learn
        return code, found
    left: i64 = reader.count(7)
    while left > 0:
        api: i64 = reader.int16()
        lowest: i64 = reader.int16()
        highest: i64 = reader.int16()
        reader.pass_tags()
        found[api] = (lowest, highest)
        left -= 1
    reader.int32()
    reader.pass_tags()
    reader.finish()
    return code, found


def missing_versions(found: dict[int, tuple[int, int]]) -> list[str]:
    """What a broker lacks of what is spoken here, in words; empty: nothing."""
    missing: list[str] = []
    for api, name, version in WANTED:
        lowest, highest = found.get(api, (0, -1))
        if not lowest <= version <= highest:
            has = f"{lowest} to {highest}" if highest >= lowest else "none"
            missing.append(f"{name} {version} (it has {has})")
    return missing


# -- brokers and leaders


@final
class Metadata:
    """What a broker knows of the cluster. brokers: id -> (host, port). leaders: (topic, partition) -> broker id, -1 for
    none. codes: (topic, partition), partition -1 for all of it -> a code that is not 0.
    """

    def __init__(self) -> None:
        self.cluster_id: str = ""
        self.brokers: dict[int, tuple[str, int]] = {}
        self.leaders: dict[tuple[bytes, int], int] = {}
        self.codes: dict[tuple[bytes, int], int] = {}


def encode_metadata(correlation_id: i64, client_id: bytes, topics: list[bytes]) -> bytes:
    """Asks for the brokers, and who leads the partitions of `topics`; none is made by being asked for."""
    writer = BytesWriter()
    write_head(writer, 0, METADATA, 12, correlation_id, client_id)
    write_uvarint(writer, len(topics) + 1)
    for topic in topics:
        writer.write(_NO_TOPIC_ID)
        write_compact(writer, topic)
        writer.append(0)
    write_flag(writer, False)
    write_flag(writer, False)
    writer.append(0)
    return framed(writer)


def decode_metadata(data: bytes) -> Metadata:
    """The answer. Cost: some 2 us a partition. Raises: BadAnswer."""
    reader = Reader(data)
    read_head(reader)
    reader.int32()
    found = Metadata()
    left: i64 = reader.count(11)
    while left > 0:
        broker: i64 = reader.int32()
        host = reader.compact().decode("utf-8", "replace")
        port: i64 = reader.int32()
        reader.compact_or_none()
        reader.pass_tags()
        found.brokers[broker] = (host, port)
        left -= 1
    cluster_id = reader.compact_or_none()
    if cluster_id is not None:
        found.cluster_id = cluster_id.decode("utf-8", "replace")
    reader.int32()
    left = reader.count(26)
    while left > 0:
        _read_topic(reader, found)
        left -= 1
    reader.pass_tags()
    reader.finish()
    return found


def _read_topic(reader: Reader, found: Metadata) -> None:
    code: i64 = reader.int16()
    name = reader.compact_or_none() or b""
    reader.int64()
    reader.int64()
    reader.int8()
    if code != 0:
        found.codes[name, -1] = code
    left: i64 = reader.count(18)
    while left > 0:
        code = reader.int16()
        partition: i64 = reader.int32()
        leader: i64 = reader.int32()
        reader.int32()
        reader.pass_int32s()
        reader.pass_int32s()
        reader.pass_int32s()
        reader.pass_tags()
        found.leaders[name, partition] = leader
        if code != 0:
            found.codes[name, partition] = code
        left -= 1
    reader.int32()
    reader.pass_tags()


# -- where partitions begin and end


EARLIEST: Final[i64] = -2
LATEST: Final[i64] = -1


@final
class PartitionOffset:
    """What ListOffsets answered of one partition. code: Kafka's, 0: `offset` is good."""

    def __init__(self, topic: bytes, partition: i64, code: i64, offset: i64) -> None:
        self.topic: bytes = topic
        self.partition: i64 = partition
        self.code: i64 = code
        self.offset: i64 = offset


def encode_list_offsets(
    correlation_id: i64, client_id: bytes, topic: bytes, partitions: list[int], when: i64
) -> bytes:
    """Asks the leader of those partitions for an offset of each. when: EARLIEST, the first that is still there; LATEST,
    the high watermark; or a time, milliseconds since 1970: the first record that is not older.
    """
    writer = BytesWriter()
    write_head(writer, 0, LIST_OFFSETS, 6, correlation_id, client_id)
    write_int32(writer, -1)
    writer.append(0)
    write_uvarint(writer, 2)
    write_compact(writer, topic)
    write_uvarint(writer, len(partitions) + 1)
    for partition in partitions:
        write_int32(writer, partition)
        write_int32(writer, -1)
        write_int64(writer, when)
        writer.append(0)
    writer.append(0)
    writer.append(0)
    return framed(writer)


def decode_list_offsets(data: bytes) -> list[PartitionOffset]:
    """The answer. Raises: BadAnswer."""
    reader = Reader(data)
    read_head(reader)
    reader.int32()
    found: list[PartitionOffset] = []
    topics: i64 = reader.count(3)
    while topics > 0:
        topic = reader.compact()
        left: i64 = reader.count(27)
        while left > 0:
            partition: i64 = reader.int32()
            code: i64 = reader.int16()
            reader.int64()  # the record's time
            offset: i64 = reader.int64()
            reader.int32()
            reader.pass_tags()
            found.append(PartitionOffset(topic, partition, code, offset))
            left -= 1
        reader.pass_tags()
        topics -= 1
    reader.pass_tags()
    reader.finish()
    return found


# -- producer ids


@final
class Coordinator:
    """Who keeps the epochs of a transactional id. code: Kafka's, 0: it is `broker`, at `host` and `port`."""

    def __init__(self, code: i64, text: str, broker: i64, host: str, port: i64) -> None:
        self.code: i64 = code
        self.text: str = text
        self.broker: i64 = broker
        self.host: str = host
        self.port: i64 = port


def encode_find_coordinator(correlation_id: i64, client_id: bytes, transactional_id: bytes) -> bytes:
    """Asks who keeps the epochs of that transactional id."""
    writer = BytesWriter()
    write_head(writer, 0, FIND_COORDINATOR, 3, correlation_id, client_id)
    write_compact(writer, transactional_id)
    kind: int = _TRANSACTION_COORDINATOR
    writer.append(kind)
    writer.append(0)
    return framed(writer)


def decode_find_coordinator(data: bytes) -> Coordinator:
    """The answer. Raises: BadAnswer."""
    reader = Reader(data)
    read_head(reader)
    reader.int32()
    code: i64 = reader.int16()
    text = reader.compact_or_none() or b""
    broker: i64 = reader.int32()
    host = reader.compact().decode("utf-8", "replace")
    port: i64 = reader.int32()
    reader.pass_tags()
    reader.finish()
    return Coordinator(code, text.decode("utf-8", "replace"), broker, host, port)


@final
class ProducerId:
    """What InitProducerId answered. code: Kafka's, 0: the two others are good."""

    def __init__(self, code: i64, producer_id: i64, epoch: i64) -> None:
        self.code: i64 = code
        self.producer_id: i64 = producer_id
        self.epoch: i64 = epoch


def encode_init_producer_id(
    correlation_id: i64,
    client_id: bytes,
    transactional_id: bytes | None,
    timeout_ms: i64,
    producer_id: i64 = -1,
    epoch: i64 = -1,
) -> bytes:
    """Asks for a producer id and its next epoch.

    transactional_id: the id stays the same and its epoch goes up, which fences who has the one before; None: a new id.
    timeout_ms: for how long a transaction may be open; there are none, but Kafka has a limit for it.
    producer_id, epoch: those that are held, to be renewed; refused if somebody has got later ones.
    """
    writer = BytesWriter()
    write_head(writer, 0, INIT_PRODUCER_ID, 4, correlation_id, client_id)
    if transactional_id is None:
        writer.append(0)
    else:
        write_compact(writer, transactional_id)
    write_int32(writer, timeout_ms)
    write_int64(writer, producer_id)
    write_int16(writer, epoch)
    writer.append(0)
    return framed(writer)


def decode_init_producer_id(data: bytes) -> ProducerId:
    """The answer. Raises: BadAnswer."""
    reader = Reader(data)
    read_head(reader)
    reader.int32()
    code: i64 = reader.int16()
    producer_id: i64 = reader.int64()
    epoch: i64 = reader.int16()
    reader.pass_tags()
    reader.finish()
    return ProducerId(code, producer_id, epoch)


# -- who we are


def encode_sasl_handshake(correlation_id: i64, client_id: bytes, mechanism: bytes) -> bytes:
    """Says which mechanism follows."""
    writer = BytesWriter()
    write_head(writer, 0, SASL_HANDSHAKE, 1, correlation_id, client_id, flexible=False)
    write_string(writer, mechanism)
    return framed(writer)


def decode_sasl_handshake(data: bytes) -> tuple[i64, list[str]]:
    """(code, the mechanisms that the broker has). Raises: BadAnswer."""
    reader = Reader(data)
    read_head(reader, flexible=False)
    code: i64 = reader.int16()
    mechanisms: list[str] = []
    left: i64 = reader.count32(2)
    while left > 0:
        mechanisms.append(reader.string().decode("utf-8", "replace"))
        left -= 1
    reader.finish()
    return code, mechanisms


def encode_sasl_authenticate(correlation_id: i64, client_id: bytes, message: bytes) -> bytes:
    """One message of the mechanism."""
    writer = BytesWriter()
    write_head(writer, 0, SASL_AUTHENTICATE, 2, correlation_id, client_id)
    write_compact(writer, message)
    writer.append(0)
    return framed(writer)


@final
class SaslAnswer:
    """The server's message. code: Kafka's, 0: go on. lifetime_ms: after so long it wants to hear all of it again; 0:
    never.
    """

    def __init__(self, code: i64, text: str, message: bytes, lifetime_ms: i64) -> None:
        self.code: i64 = code
        self.text: str = text
        self.message: bytes = message
        self.lifetime_ms: i64 = lifetime_ms


def decode_sasl_authenticate(data: bytes) -> SaslAnswer:
    """The answer. Raises: BadAnswer."""
    reader = Reader(data)
    read_head(reader)
    code: i64 = reader.int16()
    text = reader.compact_or_none() or b""
    message = reader.compact_or_none() or b""
    lifetime_ms: i64 = reader.int64()
    reader.pass_tags()
    reader.finish()
    return SaslAnswer(code, text.decode("utf-8", "replace"), message, lifetime_ms)
