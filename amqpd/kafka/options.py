"""What a node of a cluster is told by its settings: who it is, where it listens, and how Kafka is reached.

`options_of` reads the files that hold secrets, once, at the start; that the settings go together is looked at before
(`amqpd.config.cluster`).
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from amqpd.kafka.config import KafkaAccess, split
from amqpd.config.cluster import secret_text
from amqpd.config.schema import ClusterSettings


@dataclass(frozen=True)
class ClusterOptions:
    """cluster: its name. node: ours. secret: of all nodes. listen: host ("": every interface) and port (0: any free
    one) for other nodes. address: host and port that they are told; the port is 0 where it is that of `listen`.
    slots: of the cluster. max_message_bytes: of a body in a replicated queue. kafka_topics: which topics
    queues may have for themselves, a pattern. Times are seconds.
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
        """Kafka's consumer group whose members are the nodes."""
        return f"amqpd.{self.cluster}"

    @property
    def meta_topic(self) -> str:
        """Where the metadata is, a partition for each slot."""
        return f"amqpd.{self.cluster}.meta"

    @property
    def settled_topic(self) -> str:
        """Where the settlements are, a partition for each slot."""
        return f"amqpd.{self.cluster}.settled"

    def queues_topic(self, vhost_id: str) -> str:
        """Where the logs of a vhost's durable queues are, a partition for each. vhost_id: its directory's name."""
        return f"amqpd.{self.cluster}.{vhost_id}"

    def transactional_id(self, slot: int) -> str:
        """Whose producer id a slot's owner has."""
        return f"amqpd.{self.cluster}.slot{slot}"


def options_of(cluster: ClusterSettings) -> ClusterOptions:
    """Of settings that go together. Raises: OSError, ValueError for a file that has gone since they were read."""
    here = os.uname().nodename
    node = cluster.node or f"amqpd@{here}"
    host, _, port = cluster.listen.rpartition(":")
    return ClusterOptions(
        access=access_of(cluster, node),
        cluster=cluster.name,
        node=node,
        secret=secret_text(cluster.secret, cluster.secret_file).encode(),
        listen=(host.removeprefix("[").removesuffix("]"), int(port)),
        address=split(cluster.address) if cluster.address else (here, 0),
        slots=cluster.slots,
        replication_factor=cluster.replication_factor,
        required_insync=cluster.required_insync,
        max_message_bytes=cluster.max_message_bytes,
        kafka_topics=cluster.kafka_topics,
        session_timeout_s=cluster.session_timeout_s,
        heartbeat_s=cluster.heartbeat_s,
        delivery_timeout_s=cluster.delivery_timeout_s,
    )


def access_of(cluster: ClusterSettings, client_id: str) -> KafkaAccess:
    """How Kafka is reached: the same for connections of our own and for aiokafka's. Raises: as `options_of`."""
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
