"""Leader epochs of a log that several processes have written."""

from __future__ import annotations

from typing import Any

import pytest
from kafka import KafkaAdminClient, KafkaProducer
from kafka.admin import NewTopic
from kafka.protocol.consumer import OffsetForLeaderEpochRequest
from kafka.protocol.metadata import MetadataRequest
from kafka_socket import KafkaSocket, address_of

from amqpd.testing import BrokerProcess

NAME = "epochs"
LIVES = 3
RECORDS = 5


@pytest.fixture(scope="module")
def restarted(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A socket to a broker that was started three times, and has written five records each time."""
    broker = BrokerProcess(tmp_path_factory.mktemp("epochs"), settings={"kafka.port": 0, "kafka.host": "127.0.0.1"})
    for life in range(LIVES):
        broker.start()
        if life == 0:
            admin = KafkaAdminClient(bootstrap_servers=address_of(broker))
            admin.create_topics([NewTopic(NAME, 1, 1)])
            admin.close()
        producer = KafkaProducer(bootstrap_servers=address_of(broker))
        for number in range(RECORDS):
            producer.send(NAME, b"%d" % number).get(30)
        producer.close()
        if life < LIVES - 1:
            broker.stop()
    with broker, KafkaSocket(address_of(broker)) as socket:
        yield socket


@pytest.mark.slow
@pytest.mark.parametrize(
    ("epoch", "expected"), [(0, (0, 5)), (1, (1, 10)), (2, (2, 15)), (3, (-1, -1)), (-1, (-1, -1))]
)
def test_an_epoch_ends_where_the_next_process_began(
    restarted: KafkaSocket, epoch: int, expected: tuple[int, int]
) -> None:
    topic = OffsetForLeaderEpochRequest.OffsetForLeaderTopic
    partition = topic.OffsetForLeaderPartition(partition=0, current_leader_epoch=-1, leader_epoch=epoch)
    request = OffsetForLeaderEpochRequest(replica_id=-1, topics=[topic(topic=NAME, partitions=[partition])])
    (found,) = restarted.ask(request, 4).topics[0].partitions
    assert (found.error_code, found.leader_epoch, found.end_offset) == (0, *expected)


def test_metadata_have_no_epoch_that_is_lower_than_that_of_a_batch(restarted: KafkaSocket) -> None:
    """Java's consumer that has committed an offset with epoch 2 would wait for metadata with epoch 2."""
    topic = MetadataRequest.MetadataRequestTopic(topic_id=None, name=NAME)
    answer = restarted.ask(MetadataRequest(topics=[topic], allow_auto_topic_creation=False), 9)
    assert answer.topics[0].partitions[0].leader_epoch == -1
