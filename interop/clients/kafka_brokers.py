"""The brokers of Kafka's clients: amqpd with its listeners for them, and one broker of Apache Kafka."""

from __future__ import annotations

import os
import sys
import warnings
from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

import pika

from amqpd.testing import BrokerProcess

from .brokers import KAFKA, Certificates
from .programs import KAFKA_INSTALLED, Missing

ROOT: Final = Path(__file__).parents[2]
if TYPE_CHECKING:
    from kafka_rig import Kafka

CROSSING: Final = 10
"""Messages of each direction in a topic that AMQP's clients share with Kafka's."""

SETTINGS: Final = {
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "share.coordinator.state.topic.num.partitions": "1",
    "log.segment.delete.delay.ms": "1000",
    "log.retention.ms": "-1",
}
"""Settings of Apache Kafka for share groups on a single broker and for quick removal of deleted topics. Retention is
off, because the programs' records have times of 2023.
"""


class KafkaSide(ABC):
    """A broker for Kafka's clients.

    Attributes:
        name: In the matrix.
        user, password: Of SASL PLAIN at the TLS listener.
        plain, tls: `host:port` of the listeners.
        amqp: The URL for AMQP; empty if the broker has none.
    """

    name: str
    user: str
    password = "guest"
    plain: str
    tls: str
    amqp = ""
    version: str

    @abstractmethod
    def __enter__(self) -> Self:
        """Start the broker."""

    @abstractmethod
    def __exit__(self, *_: object) -> None:
        """Stop the broker."""

    def create_topic(self, topic: str) -> None:
        """Create a topic with one partition."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # kafka-python uses importlib.resources.read_text
            from kafka.admin import KafkaAdminClient, NewTopic
        admin = KafkaAdminClient(bootstrap_servers=self.plain)
        try:
            admin.create_topics([NewTopic(topic, 1, 1)])
        finally:
            admin.close()

    def publish(self, stream: str) -> None:
        """Declare a stream and publish the messages to it that Kafka's clients read."""
        with pika.BlockingConnection(pika.URLParameters(self.amqp)) as connection:
            channel = connection.channel()
            channel.queue_declare(stream, durable=True, arguments={"x-queue-type": "stream"})
            channel.confirm_delivery()
            for number in range(CROSSING):
                channel.basic_publish("", stream, b"from amqp %d" % number)

    def consumed(self, stream: str) -> list[bytes]:
        """Return what an AMQP consumer reads after the messages of `publish`, as many again."""
        with pika.BlockingConnection(pika.URLParameters(self.amqp)) as connection:
            channel = connection.channel()
            channel.basic_qos(prefetch_count=CROSSING)
            got: list[bytes] = []
            messages = channel.consume(stream, arguments={"x-stream-offset": CROSSING}, inactivity_timeout=60)
            for method, _properties, body in messages:
                if method is None:
                    break
                got.append(body)
                channel.basic_ack(method.delivery_tag)
                if len(got) == CROSSING:
                    break
            return got


class AmqpdForKafka(KafkaSide):
    """An amqpd with both Kafka listeners."""

    name = "amqpd"
    user = "/:guest"

    def __init__(self, folder: Path, certificates: Certificates) -> None:
        settings = {
            "log.level": "warning",
            "kafka.port": 0,
            "kafka.host": "127.0.0.1",
            "kafka.share_auto_offset_reset": "earliest",
            "kafka.tls.port": 0,
            "kafka.tls.certificate": certificates.server,
            "kafka.tls.key": certificates.server,
        }
        self._process = BrokerProcess(folder, settings=settings)

    def __enter__(self) -> Self:
        self._process.start()
        assert self._process.ready is not None
        self.amqp = self._process.url
        self.plain, self.tls = (
            f"localhost:{self._process.ready.listeners[listener][1]}" for listener in ("kafka", "kafkas")
        )
        self.version = self._process.ready.version
        return self

    def __exit__(self, *_: object) -> None:
        self._process.stop(60)
        if "Traceback" in self._process.stderr:
            raise RuntimeError(f"the broker logged a traceback:\n{self._process.stderr[-4000:]}")


class ApacheKafka(KafkaSide):
    """One broker of Apache Kafka, as tests/cluster starts it.

    Raises:
        Missing: Java or Kafka's jars are not installed.
    """

    name = KAFKA
    user = "steps"

    def __init__(self, folder: Path, certificates: Certificates) -> None:
        jars = KAFKA_INSTALLED / "java43"
        found = sorted(jars.glob("kafka_2.13-*.jar"))
        if not found:
            raise Missing(f"no jars of Kafka in {jars}: make kafka-clients")
        os.environ["TEST_KAFKA_JARS"] = str(jars)
        sys.path.append(str(ROOT / "tests" / "cluster"))
        try:
            from kafka_rig import Kafka, Secure, missing
        except ImportError as error:
            raise Missing(f"tests/cluster and what it needs are not here ({error})") from None
        if lacking := missing():
            raise Missing(lacking)
        self.version = found[0].stem.rpartition("-")[2]
        self._kafka: Kafka = Kafka(folder, 1, SETTINGS, secure=Secure(certificates.server, {self.user: self.password}))

    def __enter__(self) -> Self:
        self._kafka.__enter__()
        self.plain = self._kafka.bootstrap
        self._load_coordinators()
        self.tls = f"localhost:{self._kafka.brokers[1].secure_port}"
        return self

    def __exit__(self, *_: object) -> None:
        self._kafka.stop()

    def _load_coordinators(self) -> None:
        """Have Kafka create its internal topics. Clients get COORDINATOR_NOT_AVAILABLE until they are there."""
        from kafka import KafkaConsumer, KafkaProducer, OffsetAndMetadata, TopicPartition

        self.create_topic("first")
        consumer = KafkaConsumer(bootstrap_servers=self.plain, group_id="first")
        consumer.commit({TopicPartition("first", 0): OffsetAndMetadata(0, "", -1)})
        consumer.close()
        producer = KafkaProducer(bootstrap_servers=self.plain, transactional_id="first", enable_idempotence=True)
        producer.init_transactions()
        producer.close()
