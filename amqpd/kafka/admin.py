"""Administration of the cluster's Kafka topics, and the options of a cluster node.

| topic | partitions | settings |
|---|---|---|
| `amqpd.<cluster>.meta`, `.settled` | one a slot | compacted, in small segments: Kafka never compacts an active one |
| `amqpd.<cluster>.<vhost id>` | one a queue | only amqpd deletes records (DeleteRecords) |

All topics have `cluster.replication_factor` copies, `min.insync.replicas` from `cluster.required_insync`, no
unclean election, and `max.message.bytes` for a batch of `cluster.max_message_bytes`. `TopicAdmin` creates missing
topics and checks the settings of existing ones. A setting that is weaker than the promise of a confirm, or may lose
messages, raises `UnsafeTopic` with the command that corrects it. A setting that only costs time or space is a
warning.

Questions about topics forbid automatic creation (`_list_existing`). Otherwise a broker with `auto.create.topics.enable`
creates a topic with one partition and default settings.

aiokafka is imported when the first client is opened, because administration is rare.

`cluster_options` reads the files with secrets once, at the start. `amqpd.config.loader` has checked before that the
settings fit together.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self, TypeVar

from amqpd.config.loader import secret_text
from amqpd.config.schema import ClusterSettings
from amqpd.kafka.config import KafkaAccess, split_address
from amqpd.kafka.connection import KafkaDisconnected, open_connection
from amqpd.kafka.producer import TOPIC_GONE, KafkaRefused
from amqpd.kafka.wire import ASK_AGAIN, code_of

if TYPE_CHECKING:
    from aiokafka.admin import AIOKafkaAdminClient


@dataclass(frozen=True)
class ClusterOptions:
    """Options of a cluster node. Times are in seconds.

    Attributes:
        cluster: Name of the cluster.
        node: Name of this node.
        secret: Secret that all nodes share.
        listen: Host ("": all interfaces) and port (0: any free one) for other nodes.
        address: Host and port for other nodes to connect to; port 0: that of `listen`.
        slots: Number of slots in the cluster.
        max_message_bytes: Largest body in a replicated queue.
        kafka_topics: Pattern of topics that queues may have for themselves.
    """

    access: KafkaAccess
    cluster: str
    node: str
    secret: bytes = field(repr=False)
    listen: tuple[str, int]
    address: tuple[str, int]
    slots: int
    replication_factor: int
    required_insync: int
    max_message_bytes: int
    session_timeout_s: float
    heartbeat_s: float
    delivery_timeout_s: float
    kafka_topics: str = ""

    @property
    def group(self) -> str:
        return f"amqpd.{self.cluster}"

    @property
    def meta_topic(self) -> str:
        """Return the topic of the metadata, a partition for each slot."""
        return f"amqpd.{self.cluster}.meta"

    @property
    def settled_topic(self) -> str:
        """Return the topic of the settlements, a partition for each slot."""
        return f"amqpd.{self.cluster}.settled"

    def queues_topic(self, vhost_id: str) -> str:
        """Return the topic of a vhost's durable queues, a partition for each log.

        Args:
            vhost_id: The name of the vhost's directory.
        """
        return f"amqpd.{self.cluster}.{vhost_id}"

    def transactional_id(self, slot: int) -> str:
        return f"amqpd.{self.cluster}.slot{slot}"


def cluster_options(cluster: ClusterSettings) -> ClusterOptions:
    """Return the options for checked settings.

    Raises: OSError, ValueError: A file has changed or vanished since the check.
    """
    here = os.uname().nodename
    node = cluster.node or f"amqpd@{here}"
    host, _, port = cluster.listen.rpartition(":")
    return ClusterOptions(
        access=kafka_access(cluster, node),
        cluster=cluster.name,
        node=node,
        secret=secret_text(cluster.secret, cluster.secret_file).encode(),
        listen=(host.removeprefix("[").removesuffix("]"), int(port)),
        address=split_address(cluster.address) if cluster.address else (here, 0),
        slots=cluster.slots,
        replication_factor=cluster.replication_factor,
        required_insync=cluster.required_insync,
        max_message_bytes=cluster.max_message_bytes,
        kafka_topics=cluster.kafka_topics,
        session_timeout_s=cluster.session_timeout_s,
        heartbeat_s=cluster.heartbeat_s,
        delivery_timeout_s=cluster.delivery_timeout_s,
    )


def kafka_access(cluster: ClusterSettings, client_id: str) -> KafkaAccess:
    """Return the access to Kafka for our connections and for aiokafka's. Raises as `cluster_options`."""
    tls, sasl = cluster.tls, cluster.sasl
    return KafkaAccess(
        kafka=cluster.kafka,
        tls=tls.enabled,
        ca_file=str(tls.ca or ""),
        cert_file=str(tls.certificate or ""),
        key_file=str(tls.key or ""),
        sasl_mechanism=sasl.mechanism,
        sasl_username=sasl.user,
        sasl_password=secret_text(sasl.password, sasl.password_file) if sasl.mechanism else "",
        client_id=client_id,
    )


T = TypeVar("T")

logger = logging.getLogger(__name__)

BATCH_OVERHEAD: Final = 1 << 20
"""Bytes of a batch besides the body of its only message: headers, properties, routing key, framing."""
PATIENCE_S: Final = 60.0
"""Time limit for repeated tries while Kafka cannot do a request."""
_PAUSE_S: Final = 0.02
_PAUSE_S_MAX: Final = 2.0
_REQUEST_TIMEOUT_MS: Final = 15_000
_DELETED_AT_ONCE: Final = 500  # partitions of one DeleteRecords request

_TOPIC_EXISTS: Final = 36
_UNKNOWN_TOPIC: Final = 3
_NO_LEADER: Final = 5
_INVALID_REPLICATION: Final = 38
_NOT_CONTROLLER: Final = 41
_KNOWN_LATER: Final = frozenset({*ASK_AGAIN, _UNKNOWN_TOPIC, _NOT_CONTROLLER})


MARK: Final = "delete.retention.ms"
"""Topic setting that keeps the mark of a queue's own topic. It has a meaning only for compacted topics. Kafka has
no other field that tells which program created a topic.
"""
LOST_TRIES: Final = 3
LOST_PAUSE_S: Final = 0.5


class UnsafeTopic(Exception):
    """A topic that cannot be used; the text says which one, why, and how to correct it."""


class KafkaTopic(NamedTuple):
    """Kafka's description of a topic.

    Attributes:
        replicas: Number of copies, of the partition with the fewest.
        settings: Setting name -> value.
    """

    name: str
    partitions: int
    replicas: int
    settings: Mapping[str, str]


class TopicRule(NamedTuple):
    """The required value of one topic setting.

    Attributes:
        safety: A topic without this value is refused; otherwise a warning is logged.
        at_least: A larger number is accepted, too.
    """

    name: str
    value: str
    safety: bool = True
    at_least: bool = False

    def holds(self, value: str) -> bool:
        if self.name == "cleanup.policy":  # a list: `compact,delete` deletes, too
            return set(value.split(",")) == {self.value}
        return value == self.value or (self.at_least and value.isdigit() and int(value) >= int(self.value))


def compacted_rules(options: ClusterOptions) -> tuple[TopicRule, ...]:
    return (
        TopicRule("cleanup.policy", "compact"),
        TopicRule("segment.bytes", str(16 << 20), safety=False),
        TopicRule("max.compaction.lag.ms", str(600_000), safety=False),
        TopicRule("min.cleanable.dirty.ratio", "0.1", safety=False),
        *_common(options),
    )


def queue_rules(options: ClusterOptions) -> tuple[TopicRule, ...]:
    return (
        TopicRule("cleanup.policy", "delete"),
        TopicRule("retention.ms", "-1"),
        TopicRule("retention.bytes", "-1"),
        *_common(options),
    )


def _common(options: ClusterOptions) -> tuple[TopicRule, ...]:
    return (
        TopicRule("message.timestamp.type", "CreateTime"),
        TopicRule("unclean.leader.election.enable", "false"),
        TopicRule("min.insync.replicas", str(options.required_insync), at_least=True),
        TopicRule("max.message.bytes", str(options.max_message_bytes + BATCH_OVERHEAD), at_least=True),
    )


class TopicAdmin:
    """Kafka administration for a cluster of nodes. Use it as `async with`. The first request opens the client.

    All requests raise KafkaRefused, KafkaIncompatible, and KafkaDisconnected if Kafka is away for longer than
    PATIENCE_S. Checks raise UnsafeTopic.
    """

    def __init__(self, options: ClusterOptions) -> None:
        self.options = options
        self._admin: AIOKafkaAdminClient | None = None
        self._opening = asyncio.Lock()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        admin, self._admin = self._admin, None
        if admin is not None:
            await admin.close()

    # -- requests of a node

    async def prepare(self) -> None:
        """Create `meta` and `settled` if they are missing, else check them."""
        options = self.options
        names = (options.meta_topic, options.settled_topic)
        found = await self.describe(names)
        for topic in (found[name] for name in names if name in found):
            self.check_slots(topic)
        new = [name for name in names if name not in found]
        for name in new:
            await self._create(name, options.slots, compacted_rules(options))
        for topic in (await self._describe_new(new)).values():
            self.check_slots(topic)

    def check_slots(self, topic: KafkaTopic) -> None:
        slots = self.options.slots
        if topic.partitions != slots:
            raise UnsafeTopic(
                f"topic {topic.name} has {topic.partitions} partitions, but cluster.slots is {slots}: the number "
                f"of slots of a cluster never changes; set cluster.slots to {topic.partitions}"
            )
        self.check(topic, compacted_rules(self.options))

    async def prepare_queues(self, vhost_id: str, partitions: int) -> int:
        """Create or check a vhost's topic. Return its number of partitions, at least `partitions`. Raises as
        `prepare`.
        """
        name = self.options.queues_topic(vhost_id)
        rules = queue_rules(self.options)
        found = await self.describe([name])
        if name not in found:
            await self._create(name, partitions, rules)
            found = await self._describe_new([name])
        topic = found[name]
        self.check(topic, rules)
        if topic.partitions < partitions:
            await self.grow(name, partitions)
        return max(topic.partitions, partitions)

    async def create_dedicated(self, name: str, mark: int) -> None:
        """Create a queue's own topic, with one partition.

        Args:
            mark: A number that later identifies this topic.

        Raises: KafkaRefused: The topic exists.
        """
        rules = (*queue_rules(self.options), TopicRule(MARK, str(mark), safety=False))
        await self._create(name, 1, rules, exists_ok=False)

    async def lost_dedicated(self, marks: Mapping[str, int]) -> dict[str, str]:
        """Return the topics that are gone or were created again, and why.

        Args:
            marks: Topic -> the mark with which it was created.
        """
        found = await self._find_existing(marks)
        lost: dict[str, str] = {}
        for name, mark in marks.items():
            topic = found.get(name)
            if topic is None:
                lost[name] = TOPIC_GONE
            elif topic.settings.get(MARK) != str(mark):
                lost[name] = "another program has created its topic again"
        return lost

    async def delete_dedicated(self, name: str, mark: int) -> None:
        """Delete the topic with this mark, if it exists. Another topic of that name stays."""
        topic = (await self._find_existing([name])).get(name)
        if topic is None:
            return
        if topic.settings.get(MARK) == str(mark):
            await self.delete(name)
        else:
            logger.warning("topic %s was created again by another program, so it is not deleted with its queue", name)

    async def _find_existing(self, names: Collection[str]) -> dict[str, KafkaTopic]:
        """Return the topics that exist. Ask again for missing ones, because some brokers learn of a topic late."""
        found = await self.describe(names)
        for _ in range(LOST_TRIES):
            if len(found) == len(names):
                break
            await asyncio.sleep(LOST_PAUSE_S)
            found = await self.describe(names)
        return found

    def check(self, topic: KafkaTopic, rules: Iterable[TopicRule]) -> None:
        """Check a topic. Settings that only cost time or space are logged. Raises UnsafeTopic with the unsafe ones."""
        options = self.options
        weak: list[str] = []
        change: list[str] = []
        for rule in rules:
            value = topic.settings.get(rule.name, "")
            if rule.holds(value):
                continue
            text = f"{rule.name} is {value or 'unknown'}, not {rule.value}{' or more' if rule.at_least else ''}"
            if rule.safety:
                weak.append(text)
                change.append(f"{rule.name}={rule.value}")
            else:
                logger.warning("topic %s: %s", topic.name, text)
        if topic.replicas < options.replication_factor:
            weak.append(
                f"it has {topic.replicas} of the {options.replication_factor} copies of cluster.replication_factor "
                "(kafka-reassign-partitions.sh adds copies)"
            )
        if weak:
            text = f"topic {topic.name} is weaker than what a confirm promises: {'; '.join(weak)}"
            if change:
                text += f". kafka-configs.sh --alter --topic {topic.name} --add-config {','.join(change)}"
            raise UnsafeTopic(text)

    # -- requests to Kafka

    async def describe(self, names: Iterable[str]) -> dict[str, KafkaTopic]:
        """Return the topics that exist. Cost: that of their partitions."""
        return await self._retry("the topics", lambda: self._describe(set(names)))

    async def _describe_new(self, names: Sequence[str]) -> dict[str, KafkaTopic]:
        """Describe topics that were created just now: wait until the broker knows them."""

        async def ask() -> dict[str, KafkaTopic]:
            found = await self._describe(set(names))
            unknown = [name for name in names if name not in found]
            if unknown:
                raise KafkaDisconnected(f"topic {unknown[0]} is not known to all brokers yet")
            return found

        return await self._retry("the topics", ask)

    async def _describe(self, names: set[str]) -> dict[str, KafkaTopic]:
        found: dict[str, list[Mapping[str, Any]]] = {
            each["topic"]: each["partitions"] for each in await self._list_existing(names)
        }
        settings = await self._settings(found)
        return {
            name: KafkaTopic(
                name, len(parts), min((len(part["replicas"]) for part in parts), default=0), settings[name]
            )
            for name, parts in found.items()
            if name in settings
        }

    async def _list_existing(self, names: Iterable[str]) -> list[Mapping[str, Any]]:
        """Return Kafka's answer about the topics that exist.

        aiokafka's `describe_topics` lists all topics, which takes longer with each vhost, or creates the named
        ones.
        """
        from aiokafka.protocol.metadata import MetadataRequest

        asked = sorted(set(names))
        if not asked:
            return []  # an empty list asks for all topics
        admin = await self._client()
        answer = await admin._send_request(MetadataRequest(asked, allow_auto_topic_creation=False))
        found: list[Mapping[str, Any]] = answer.to_object()["topics"]
        for each in found:
            if each["error_code"] not in (0, _UNKNOWN_TOPIC, _NO_LEADER):
                raise _error_of(each["error_code"], f"topic {each['topic']} cannot be described")
        return [each for each in found if each["error_code"] != _UNKNOWN_TOPIC]

    async def _settings(self, names: Iterable[str]) -> dict[str, dict[str, str]]:
        from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

        resources = [ConfigResource(ConfigResourceType.TOPIC, name) for name in names]
        if not resources:
            return {}
        admin = await self._client()
        found: dict[str, dict[str, str]] = {}
        for answer in await admin.describe_configs(resources):
            for code, text, _, name, entries in answer.resources:
                if code and code != _UNKNOWN_TOPIC:  # it was deleted meanwhile
                    raise _error_of(code, f"the settings of topic {name} cannot be read: {text or ''}".rstrip())
                if not code:
                    found[name] = {entry[0]: entry[1] or "" for entry in entries}
        return found

    async def _create(self, name: str, partitions: int, rules: Iterable[TopicRule], exists_ok: bool = True) -> None:
        from aiokafka.admin import NewTopic

        settings = {rule.name: rule.value for rule in rules}
        copies = self.options.replication_factor
        topic = NewTopic(name, partitions, copies, topic_configs=settings)

        async def ask() -> None:
            admin = await self._client()
            answer = await admin.create_topics([topic], timeout_ms=_REQUEST_TIMEOUT_MS)
            for _, code, text in answer.topic_errors:
                if code == _INVALID_REPLICATION:
                    raise UnsafeTopic(
                        f"topic {name} cannot have the {copies} copies of cluster.replication_factor: {text}"
                    )
                if code and not (exists_ok and code == _TOPIC_EXISTS):  # another node was faster
                    raise _error_of(code, f"topic {name} cannot be created: {text or ''}".rstrip(" :"))

        await self._retry(f"topic {name}", ask)
        await self._retry(f"topic {name}", lambda: self._check_known(name, partitions))
        logger.info("topic %s is created: %d partitions, %d copies", name, partitions, copies)

    async def _check_known(self, name: str, partitions: int) -> None:
        """Check that the broker knows all partitions. Raises KafkaDisconnected if not."""
        for each in await self._list_existing([name]):
            if len([part for part in each["partitions"] if part["leader"] >= 0]) >= partitions:
                return
        raise KafkaDisconnected(f"topic {name} is not known to all brokers yet")

    async def grow(self, name: str, partitions: int) -> None:
        """Grow a topic to at least `partitions`."""
        from aiokafka.admin import NewPartitions
        from aiokafka.errors import InvalidPartitionsError

        async def ask() -> None:
            admin = await self._client()
            try:
                await admin.create_partitions({name: NewPartitions(partitions)}, timeout_ms=_REQUEST_TIMEOUT_MS)
            except InvalidPartitionsError:
                # An earlier try without an answer has grown it, or it can never grow.
                if not any(len(each["partitions"]) >= partitions for each in await self._list_existing([name])):
                    raise

        await self._retry(f"topic {name}", ask)
        await self._retry(f"topic {name}", lambda: self._check_known(name, partitions))

    async def delete_records(self, name: str, before: Mapping[int, int]) -> dict[int, int]:
        """Delete the records below these offsets.

        Args:
            before: Partition -> offset; -1: the end of the partition.

        Returns: Partition -> first offset that still exists.
        """
        freed: dict[int, int] = {}
        left = sorted(before.items())
        while left:
            part, left = left[:_DELETED_AT_ONCE], left[_DELETED_AT_ONCE:]

            async def ask(asked: Sequence[tuple[int, int]] = part) -> None:
                freed.update(await self._delete_records(name, asked))

            await self._retry(f"topic {name}", ask)
        return freed

    async def _delete_records(self, name: str, before: Iterable[tuple[int, int]]) -> dict[int, int]:
        """Delete records by our own request: aiokafka's `delete_records` lists all of Kafka's partitions first."""
        from aiokafka.protocol.admin import DeleteRecordsRequest

        leaders = {
            part["partition"]: part["leader"]
            for each in await self._list_existing([name])
            for part in each["partitions"]
        }
        asked: dict[int, list[tuple[int, int]]] = {}
        for number, offset in before:
            leader = leaders.get(number, -1)
            if leader < 0:
                raise KafkaDisconnected(f"no broker leads {name} {number}")
            asked.setdefault(leader, []).append((number, offset))
        freed: dict[int, int] = {}
        admin = await self._client()
        for leader, some in asked.items():
            answer = await admin._client.send(leader, DeleteRecordsRequest([(name, some)], _REQUEST_TIMEOUT_MS))
            for _, partitions, *_ in answer.topics:
                for number, first, code, *_ in partitions:
                    if code:
                        raise _error_of(code, f"the records of topic {name} {number} cannot be deleted")
                    freed[number] = first
        return freed

    async def delete(self, name: str) -> None:
        """Delete a topic, if it exists."""

        async def ask() -> None:
            admin = await self._client()
            answer = await admin.delete_topics([name], timeout_ms=_REQUEST_TIMEOUT_MS)
            for _, code, *_rest in answer.topic_error_codes:
                if code not in (0, _UNKNOWN_TOPIC):
                    raise _error_of(code, f"topic {name} cannot be deleted")

        await self._retry(f"topic {name}", ask)

    async def ask_coordinator(self, group: str, request: Any) -> int:
        """Send a request to the coordinator of a group. Return the code of its answer."""
        from aiokafka.client import ConnectionGroup, CoordinationType

        async def ask() -> int:
            client = (await self._client())._client
            number = await client.coordinator_lookup(CoordinationType.GROUP, group)
            return int((await client.send(number, request, group=ConnectionGroup.COORDINATION)).error_code)

        return await self._retry(f"group {group}", ask)

    # -- client

    async def _client(self) -> AIOKafkaAdminClient:
        from aiokafka.admin import AIOKafkaAdminClient

        async with self._opening:
            if self._admin is None:
                await self._check_connection()
                options = await asyncio.to_thread(self.options.access.aiokafka_options)  # reads certificates
                admin = AIOKafkaAdminClient(request_timeout_ms=_REQUEST_TIMEOUT_MS, **options)
                try:
                    await admin.start()
                except BaseException:
                    await admin.close()
                    raise
                self._admin = admin
            return self._admin

    async def _check_connection(self) -> None:
        """Connect once to one of the named brokers, to get the reason of a failure: aiokafka gives none.

        Raises: KafkaIncompatible, OSError.
        """
        last: OSError = KafkaDisconnected("no Kafka broker is configured")
        for host, port in self.options.access.addresses:
            try:
                connection = await open_connection(self.options.access, host, port)
            except OSError as error:
                last = error
                continue
            await connection.close()
            return
        raise last

    async def _retry(self, what: str, ask: Callable[[], Awaitable[T]]) -> T:
        """Call `ask`, again and again while Kafka is away."""
        from aiokafka.errors import BrokerResponseError, KafkaError

        pause = _PAUSE_S
        last: Exception | None = None
        try:
            async with asyncio.timeout(PATIENCE_S):
                while True:
                    try:
                        return await ask()
                    except BrokerResponseError as error:
                        if error.errno not in _KNOWN_LATER:
                            raise KafkaRefused(f"{what}: {code_of(error.errno).name} {error}") from error
                        last = error
                    except (KafkaError, OSError) as error:  # TimeoutError is an OSError
                        last = error
                        if not isinstance(error, KafkaDisconnected):
                            await self.close()  # a new client asks the named brokers again
                    await asyncio.sleep(pause)
                    pause = min(2 * pause, _PAUSE_S_MAX)
        except TimeoutError:
            raise KafkaDisconnected(
                f"{what}: Kafka did not execute the request within {PATIENCE_S:g} s: {last or 'no answer'}"
            ) from last


def _error_of(code: int, what: str) -> Exception:
    """Return the exception for an error code: KafkaDisconnected if a retry may help, else KafkaRefused."""
    name = code_of(code).name
    return KafkaDisconnected(f"{what}: {name}") if code in _KNOWN_LATER else KafkaRefused(f"{what}: {name}")
