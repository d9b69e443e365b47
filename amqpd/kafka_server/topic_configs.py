"""Topic configs of Kafka as arguments of a stream, and back.

    retention.ms        x-max-age, rounded up to whole seconds: Kafka Streams asks for its windows and a day more
    retention.bytes     x-max-length-bytes
    segment.bytes       x-stream-max-segment-size-bytes
    cleanup.policy      x-compact
    compression.type    x-compression

`x-queue-type` with the value classic or quorum makes a durable queue of that type instead of a stream. It is its only
config; a policy gives it limits, a time to live and a dead-letter exchange.

`ConfigInfo.fixed` is the one possible value of a config: what the broker does anyway. Any other config or value is
refused, because the broker could not keep it.

x-compression compresses what AMQP clients publish. Batches of Kafka producers are stored as they arrive.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from amqpd.broker.queue.arguments import rules_of
from amqpd.broker.queue.config import QueueConfig
from amqpd.broker.queue.stream import SEGMENT_SIZE_BYTES_MAX, SEGMENT_SIZE_BYTES_MIN
from amqpd.broker.queue.types import KINDS, kind_of
from amqpd.storage.log.batch import CODECS

INT64_MAX: Final = (1 << 63) - 1
"""The highest retention that clients ask for, as Debezium does for its history. It becomes the highest limit."""
NUMBER_MAX: Final = 1 << 60
"""The highest limit that a queue can have."""
RETENTION_MS_MAX: Final = NUMBER_MAX // 1000 * 1000

# Sources of a value (Kafka's ConfigSource).
TOPIC: Final = 1
POLICY: Final = 3
"""Kafka: the default of all brokers, changed while they run."""
DEFAULT: Final = 5

# Types of a value (Kafka's ConfigType).
BOOLEAN: Final = 1
STRING: Final = 2
INT: Final = 3
LONG: Final = 5
DOUBLE: Final = 6
LIST: Final = 7

CLEANUP: Final = "cleanup.policy"
COMPRESSION: Final = "compression.type"
RETENTION_BYTES: Final = "retention.bytes"
RETENTION_MS: Final = "retention.ms"
SEGMENT_BYTES: Final = "segment.bytes"
QUEUE_TYPE: Final = "x-queue-type"

_UNITS_MS: Final = (("D", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000))


class InvalidConfig(ValueError):
    """A config that a stream cannot keep. The text names it."""


class ConfigInfo(NamedTuple):
    """One config.

    Attributes:
        type: Kafka's ConfigType.
        argument: the argument of the queue; "" for a config with a fixed value.
        fixed: the only value that is accepted; "" if there are several.
    """

    type: int
    meaning: str
    argument: str = ""
    fixed: str = ""


CONFIGS: Final[Mapping[str, ConfigInfo]] = {
    CLEANUP: ConfigInfo(LIST, "delete by age and size, compact by key, or both", "x-compact"),
    COMPRESSION: ConfigInfo(STRING, "codec for messages of AMQP clients; producer: none", "x-compression"),
    RETENTION_BYTES: ConfigInfo(LONG, "maximum of bytes in files; -1: no limit", "x-max-length-bytes"),
    RETENTION_MS: ConfigInfo(LONG, "maximum age of records, rounded up to seconds; -1: no limit", "x-max-age"),
    SEGMENT_BYTES: ConfigInfo(INT, "size of a file", "x-stream-max-segment-size-bytes"),
    QUEUE_TYPE: ConfigInfo(STRING, "stream, or the type of a queue whose messages are taken", QUEUE_TYPE),
    "delete.retention.ms": ConfigInfo(LONG, "time that a tombstone is kept", fixed="86400000"),
    "file.delete.delay.ms": ConfigInfo(LONG, "time until removed files are deleted", fixed="60000"),
    "message.timestamp.type": ConfigInfo(STRING, "timestamps are those of the producer", fixed="CreateTime"),
    "min.compaction.lag.ms": ConfigInfo(LONG, "closed files may be compacted at once", fixed="0"),
    "min.cleanable.dirty.ratio": ConfigInfo(DOUBLE, "share of new bytes at which compaction begins", fixed="0.5"),
    "min.insync.replicas": ConfigInfo(INT, "there is one replica", fixed="1"),
    "preallocate": ConfigInfo(BOOLEAN, "files are not preallocated", fixed="false"),
    "remote.storage.enable": ConfigInfo(BOOLEAN, "there is no tiered storage", fixed="false"),
    "unclean.leader.election.enable": ConfigInfo(BOOLEAN, "there is one replica", fixed="false"),
}


class ConfigEntry(NamedTuple):
    """A config as responses show it.

    Attributes:
        source: TOPIC, POLICY or DEFAULT.
        default: the value without argument and policy.
    """

    name: str
    value: str
    source: int
    default: str
    read_only: bool
    type: int
    meaning: str


def arguments_of(configs: Iterable[tuple[str, str | None]]) -> dict[str, object]:
    """Return the arguments of a stream or queue with these configs. Raises: InvalidConfig."""
    given: dict[str, str] = {}
    for name, value in configs:
        info = CONFIGS.get(name)
        if info is None:
            raise InvalidConfig(f"{name} is not supported; {', '.join(CONFIGS)} are")
        if name in given:
            raise InvalidConfig(f"{name} is given twice")
        if value is None:
            raise InvalidConfig(f"{name} has no value")
        value = value.strip()
        if info.fixed and value.lower() != info.fixed.lower():
            raise InvalidConfig(f"{name} cannot be {value!r}; only {info.fixed} is supported")
        given[name] = value
    kind = given.get(QUEUE_TYPE, "stream")
    if kind not in KINDS:
        raise InvalidConfig(f"{QUEUE_TYPE} must be {', '.join(KINDS)}, not {kind[:40]!r}")
    if kind != "stream":
        for name in given:
            if name != QUEUE_TYPE and not CONFIGS[name].fixed:
                raise InvalidConfig(f"{name} is for streams only; a policy sets the limits of a {kind} queue")
        return {QUEUE_TYPE: kind}
    arguments: dict[str, object] = {QUEUE_TYPE: kind}
    _add_retention(arguments, given)
    if SEGMENT_BYTES in given:
        size = _number(SEGMENT_BYTES, given, SEGMENT_SIZE_BYTES_MIN, SEGMENT_SIZE_BYTES_MAX)
        arguments["x-stream-max-segment-size-bytes"] = size
    _add_cleanup(arguments, given)
    _add_compression(arguments, given)
    return arguments


def _number(name: str, given: Mapping[str, str], least: int, most: int) -> int:
    text = given[name]
    digits = text.removeprefix("-")
    # 20 characters are more than any 64-bit number has.
    number = int(text) if digits.isascii() and digits.isdigit() and len(digits) <= 20 else INT64_MAX + 1
    if not least <= number <= most:
        raise InvalidConfig(f"{name} must be a number from {least} to {most}, not {text[:40]!r}")
    return number


def _add_retention(arguments: dict[str, object], given: Mapping[str, str]) -> None:
    if RETENTION_MS in given:
        age_ms = min(_number(RETENTION_MS, given, -1, INT64_MAX), RETENTION_MS_MAX)
        if age_ms >= 0:
            arguments["x-max-age"] = _age_text(age_ms)
    if RETENTION_BYTES in given:
        size = min(_number(RETENTION_BYTES, given, -1, INT64_MAX), NUMBER_MAX)
        if size >= 0:
            arguments["x-max-length-bytes"] = size


def _age_text(age_ms: int) -> str:
    if age_ms == 0:
        raise InvalidConfig(f"{RETENTION_MS} must be at least 1, or -1 for no limit")
    age_ms += -age_ms % 1000
    return next(f"{age_ms // unit_ms}{unit}" for unit, unit_ms in _UNITS_MS if age_ms % unit_ms == 0)


def _add_cleanup(arguments: dict[str, object], given: Mapping[str, str]) -> None:
    if CLEANUP not in given:
        return
    words = {word.strip() for word in given[CLEANUP].split(",")}
    if not words <= {"compact", "delete"}:
        raise InvalidConfig(f"{CLEANUP} must be delete, compact, or both with a comma, not {given[CLEANUP][:40]!r}")
    if "compact" not in words:
        return
    # A compacted stream also obeys its limits; so compaction alone is a stream without limits.
    limits = {"x-max-age", "x-max-length-bytes"} & arguments.keys()
    if "delete" not in words and limits:
        raise InvalidConfig(
            f"{CLEANUP}=compact deletes nothing by age or size: leave out {RETENTION_MS} and {RETENTION_BYTES}, "
            "or use compact,delete"
        )
    arguments["x-compact"] = True


def _add_compression(arguments: dict[str, object], given: Mapping[str, str]) -> None:
    codec = given.get(COMPRESSION, "producer")
    if codec == "producer":
        return
    if codec not in (*CODECS[1:], "uncompressed"):
        codecs = ", ".join(CODECS[1:])
        raise InvalidConfig(f"{COMPRESSION} must be producer, uncompressed, {codecs}, not {codec[:40]!r}")
    arguments["x-compression"] = "none" if codec == "uncompressed" else codec


def entries_of(arguments: Mapping[str, object], rules: QueueConfig, segment_size_bytes: int) -> list[ConfigEntry]:
    """Return all configs of a stream, or the type of another queue.

    Args:
        arguments: of its declaration.
        rules: the rules in force, from arguments and policies.
        segment_size_bytes: the setting, for streams without a size of their own.
    """
    if not rules.stream:
        info = CONFIGS[QUEUE_TYPE]
        return [ConfigEntry(QUEUE_TYPE, kind_of(arguments).name, TOPIC, "stream", True, info.type, info.meaning)]
    values = {
        CLEANUP: (_cleanup(rules), "delete"),
        COMPRESSION: (_compression(arguments, rules), "producer"),
        RETENTION_BYTES: (str(rules.length_bytes_max), "-1"),
        RETENTION_MS: (str(rules.max_age_ms), "-1"),
        SEGMENT_BYTES: (str(_segment_size(rules, segment_size_bytes)), str(segment_size_bytes)),
    }
    entries: list[ConfigEntry] = []
    for name, info in CONFIGS.items():
        if name == QUEUE_TYPE:
            continue
        value, default = values.get(name, (info.fixed, info.fixed))
        source = DEFAULT if value == default else POLICY
        if info.argument and info.argument in arguments:
            source = TOPIC
        entries.append(ConfigEntry(name, value, source, default, bool(info.fixed), info.type, info.meaning))
    return entries


def given_configs(arguments: Mapping[str, object], segment_size_bytes: int) -> dict[str, str]:
    """Return the configs that a stream's arguments set."""
    entries = entries_of(arguments, rules_of(arguments), segment_size_bytes)
    return {entry.name: entry.value for entry in entries if entry.source == TOPIC}


def changed_arguments(
    arguments: Mapping[str, object], configs: Mapping[str, str | None], segment_size_bytes: int
) -> dict[str, object]:
    """Return a stream's arguments with these configs instead of those that it has. Raises: InvalidConfig.

    An argument whose config does not change stays as it was written, such as `1Y`.
    """
    before = given_configs(arguments, segment_size_bytes)
    of_configs = {info.argument for info in CONFIGS.values() if info.argument}
    result = {name: value for name, value in arguments.items() if name not in of_configs}
    result |= arguments_of(configs.items())
    for name, value in before.items():
        argument = CONFIGS[name].argument
        if configs.get(name) == value:
            result[argument] = arguments[argument]
    return result


def _cleanup(rules: QueueConfig) -> str:
    """Return `compact` for a compacted stream without limits: see `_add_cleanup`."""
    if rules.cleanup == "compact,delete" and rules.max_age_ms < 0 and rules.length_bytes_max < 0:
        return "compact"
    return rules.cleanup


def _compression(arguments: Mapping[str, object], rules: QueueConfig) -> str:
    if rules.codec > 0:
        return CODECS[rules.codec]
    return "uncompressed" if "x-compression" in arguments else "producer"


def _segment_size(rules: QueueConfig, default: int) -> int:
    """Return the size in force: stream.py keeps it within its limits."""
    size: int = rules.segment_size_bytes
    return default if size < 0 else min(max(size, SEGMENT_SIZE_BYTES_MIN), SEGMENT_SIZE_BYTES_MAX)


def broker_entries(settings: Any) -> list[ConfigEntry]:
    """Return the configs of the broker that clients ask for. All are read-only."""
    rows = (
        ("auto.create.topics.enable", "false", BOOLEAN, "topics are created by CreateTopics and by AMQP clients"),
        ("broker.id", "0", INT, "id of this broker"),
        ("default.replication.factor", "1", INT, "there is one replica"),
        ("delete.topic.enable", "true", BOOLEAN, "DeleteTopics deletes streams"),
        ("log.segment.bytes", str(settings.storage.segment_size_bytes), INT, "size of a file of a stream's log"),
        ("min.insync.replicas", "1", INT, "there is one replica"),
        ("num.partitions", "1", INT, "partitions of a new topic, unless its creation names more"),
        ("socket.request.max.bytes", str(settings.kafka.request_size_max_bytes), INT, "largest request"),
    )
    return [ConfigEntry(name, value, DEFAULT, value, True, kind, meaning) for name, value, kind, meaning in rows]
