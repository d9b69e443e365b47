"""Kafka's command-line tools of 4.3 against the listener. docs/kafka.md has a table of them.

A tool for a request that the broker does not offer must say so; the test is skipped once the request is offered.
"""

from __future__ import annotations

import re
import subprocess
import uuid
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from amqpd.testing import BrokerProcess

from .kafka_programs import address_of, java

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # kafka-python uses importlib.resources.read_text
    from kafka import KafkaAdminClient, KafkaProducer, OffsetAndMetadata, TopicPartition
    from kafka.admin import NewTopic

pytestmark = [pytest.mark.slow, pytest.mark.external]

TOOLS: Final = "org.apache.kafka.tools"
TIMEOUT_S: Final = 120
RECORDS: Final = 100
COMMITTED: Final = 40
TIME_MS: Final = 1_700_000_000_000

CLASSES: Final = {
    "kafka-acls": f"{TOOLS}.AclCommand",
    "kafka-broker-api-versions": f"{TOOLS}.BrokerApiVersionsCommand",
    "kafka-client-metrics": f"{TOOLS}.ClientMetricsCommand",
    "kafka-cluster": f"{TOOLS}.ClusterTool",
    "kafka-configs": "kafka.admin.ConfigCommand",
    "kafka-console-consumer": f"{TOOLS}.consumer.ConsoleConsumer",
    "kafka-console-producer": f"{TOOLS}.ConsoleProducer",
    "kafka-console-share-consumer": f"{TOOLS}.consumer.ConsoleShareConsumer",
    "kafka-consumer-groups": f"{TOOLS}.consumer.group.ConsumerGroupCommand",
    "kafka-consumer-perf-test": f"{TOOLS}.ConsumerPerformance",
    "kafka-delete-records": f"{TOOLS}.DeleteRecordsCommand",
    "kafka-e2e-latency": f"{TOOLS}.EndToEndLatency",
    "kafka-features": f"{TOOLS}.FeatureCommand",
    "kafka-get-offsets": f"{TOOLS}.GetOffsetShell",
    "kafka-groups": f"{TOOLS}.GroupsCommand",
    "kafka-leader-election": f"{TOOLS}.LeaderElectionCommand",
    "kafka-log-dirs": f"{TOOLS}.LogDirsCommand",
    "kafka-metadata-quorum": f"{TOOLS}.MetadataQuorumCommand",
    "kafka-producer-perf-test": f"{TOOLS}.ProducerPerformance",
    "kafka-reassign-partitions": f"{TOOLS}.reassign.ReassignPartitionsCommand",
    "kafka-share-groups": f"{TOOLS}.consumer.group.ShareGroupCommand",
    "kafka-streams-application-reset": f"{TOOLS}.StreamsResetter",
    "kafka-topics": f"{TOOLS}.TopicCommand",
    "kafka-transactions": f"{TOOLS}.TransactionsCommand",
    "kafka-verifiable-consumer": f"{TOOLS}.VerifiableConsumer",
    "kafka-verifiable-producer": f"{TOOLS}.VerifiableProducer",
}


class Case(NamedTuple):
    """A command that works. {topic}, {group} and {file} are replaced.

    Attributes:
        expected: a regular expression for the output.
        input: for standard input.
    """

    tool: str
    arguments: str
    expected: str
    input: str = ""


class Missing(NamedTuple):
    """A command that needs a request that may be missing. request: as kafka-broker-api-versions names it."""

    tool: str
    arguments: str
    request: str


RESET: Final = "--reset-offsets --group {group} --topic {topic} --execute"
WORK: Final = (
    Case("kafka-topics", "--create --topic {topic}-2 --config retention.ms=3600000", r"Created topic {topic}-2\."),
    Case("kafka-topics", "--list", r"(?m)^{topic}$"),
    Case("kafka-topics", "--describe --topic {topic}", r"PartitionCount: 1\s.*(?s:.)*Leader: 0\s+Replicas: 0\s+Isr: 0"),
    Case("kafka-topics", "--alter --topic {topic} --partitions 3", r"^$"),
    Case("kafka-topics", "--delete --topic {topic}", r"^$"),
    Case("kafka-topics", "--create --topic {topic}", r"Topic '{topic}' already exists|TopicExistsException"),
    Case("kafka-configs", "--describe --all --entity-type topics --entity-name {topic}", r"cleanup.policy=delete"),
    Case(
        "kafka-configs",
        "--alter --entity-type topics --entity-name {topic} --add-config retention.ms=100000",
        r"Completed updating config for topic {topic}",
    ),
    Case("kafka-configs", "--describe --entity-type users --entity-name guest", r"producer_byte_rate=1\.0E9"),
    Case(
        "kafka-configs",
        "--alter --entity-type users --entity-name guest --add-config consumer_byte_rate=1000000000",
        r"Completed updating config for user guest",
    ),
    Case(
        "kafka-configs",
        "--alter --entity-type clients --entity-name x --add-config consumer_byte_rate=1000",
        r"only users have quotas here",
    ),
    Case("kafka-delete-records", "--offset-json-file {file}", r"partition: {topic}-0\s+low_watermark: 10"),
    Case("kafka-log-dirs", "--describe", r'"logDir"'),
    Case("kafka-acls", "--list", r"Current ACLs"),
    Case("kafka-transactions", "list", r"TransactionalId\s+Coordinator"),
    Case("kafka-transactions", "describe-producers --topic {topic} --partition 0", r"ProducerId\s+ProducerEpoch"),
    Case("kafka-share-groups", "--describe --group {group}", r"The group id does not exist"),
    Case("kafka-console-share-consumer", "--topic {topic} --timeout-ms 5000", r"Processed a total of 0 messages"),
    Case("kafka-configs", "--describe --all --entity-type brokers --entity-name 0", r"auto.create.topics.enable=false"),
    Case("kafka-console-producer", "--topic {topic} --reader-property parse.key=true", r"^$", "a\t1\nb\t2\n"),
    Case("kafka-console-producer", "--topic {topic} --compression-codec zstd", r"^$", "1\n2\n"),
    Case(
        "kafka-console-consumer",
        "--topic {topic} --from-beginning --max-messages 100 --timeout-ms 60000",
        r"^value 0\n(?s:.)*\nvalue 99\n(?s:.)*Processed a total of 100 messages",
    ),
    Case(
        "kafka-console-consumer",
        "--topic {topic} --group {group} --max-messages 1 --timeout-ms 60000",
        r"^value 40\n(?s:.)*Processed a total of 1 messages",
    ),
    Case(
        "kafka-console-consumer",
        "--topic {topic} --partition 0 --offset 98 --max-messages 2 --timeout-ms 60000 --isolation-level read_committed"
        " --formatter-property print.timestamp=true --formatter-property print.offset=true",
        r"CreateTime:1700000000098\tOffset:98\tvalue 98\nCreateTime:1700000000099\tOffset:99\tvalue 99",
    ),
    Case("kafka-consumer-groups", "--list --state", r"(?m)^{group}\s+Empty"),
    Case("kafka-consumer-groups", "--describe --group {group}", r"{group}\s+{topic}\s+0\s+40\s+100\s+60\s"),
    Case("kafka-consumer-groups", "--describe --group {group} --state", r"Empty\s+0"),
    Case("kafka-consumer-groups", "--describe --group {group} --members", r"has no active members"),
    Case("kafka-consumer-groups", RESET + " --to-earliest", r"{group}\s+{topic}\s+0\s+0\s"),
    Case("kafka-consumer-groups", RESET + " --to-latest", r"{group}\s+{topic}\s+0\s+100\s"),
    Case("kafka-consumer-groups", RESET + " --shift-by -5", r"{group}\s+{topic}\s+0\s+35\s"),
    Case("kafka-consumer-groups", RESET + " --to-offset 7", r"{group}\s+{topic}\s+0\s+7\s"),
    Case("kafka-consumer-groups", RESET + " --to-datetime 2023-11-14T22:13:20.050Z", r"{group}\s+{topic}\s+0\s+50\s"),
    Case("kafka-consumer-groups", "--delete-offsets --group {group} --topic {topic}", r"{topic}\s+0\s+Successful"),
    Case("kafka-consumer-groups", "--delete --group {group}", r"was successful"),
    Case("kafka-groups", "--list", r"{group}\s"),
    Case("kafka-get-offsets", "--topic {topic}", r"(?m)^{topic}:0:100$"),
    Case("kafka-get-offsets", "--topic {topic} --time earliest", r"(?m)^{topic}:0:0$"),
    Case("kafka-get-offsets", "--topic {topic} --time max-timestamp", r"(?m)^{topic}:0:99$"),
    Case("kafka-get-offsets", "--topic {topic} --time 1700000000050", r"(?m)^{topic}:0:50$"),
    Case(
        "kafka-producer-perf-test",
        "--topic {topic} --num-records 2000 --record-size 100 --throughput -1 --command-property acks=all",
        r"2000 records sent",
    ),
    Case("kafka-consumer-perf-test", "--topic {topic} --num-records 100 --timeout 60000", r"(?m), 100, \d"),
    Case("kafka-e2e-latency", "--topic {topic} --num-records 20 --producer-acks all --record-size 100", r"99\.9th"),
    Case("kafka-verifiable-producer", "--topic {topic} --max-messages 20", r'"acked":20'),
    Case(
        "kafka-verifiable-consumer",
        "--topic {topic} --group-id {group}-2 --max-messages 50 --reset-policy earliest",
        r'"offset":50}\],"success":true',
    ),
    Case(
        "kafka-streams-application-reset",
        "--application-id {group} --input-topics {topic}",
        r"Topic: {topic} Partition: 0 Offset: 0",
    ),
    Case("kafka-cluster", "cluster-id", r"Cluster ID: \S+"),
    Case("kafka-cluster", "list-endpoints", r"(?m)^0\s+\S+\s+\d+"),
    Case("kafka-features", "describe", r""),
)
MISSING: Final = (
    Missing("kafka-leader-election", "--election-type preferred --all-topic-partitions", "ElectLeaders"),
    Missing("kafka-reassign-partitions", "--list", "ListPartitionReassignments"),
    Missing("kafka-client-metrics", "--list", "ListConfigResources"),
    Missing("kafka-metadata-quorum", "describe --status", "DescribeQuorum"),
)


@pytest.fixture(scope="module")
def kafka_tools_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    settings = {"kafka.port": 0, "kafka.host": "127.0.0.1"}
    with BrokerProcess(tmp_path_factory.mktemp("kafka-tools"), settings=settings) as broker:
        broker.api("PUT", "/api/amqpd/user-limits/guest", {"value": {"producer_byte_rate": 1_000_000_000}})
        yield broker
        assert "Traceback" not in broker.stderr, broker.stderr


@pytest.fixture
def names(kafka_tools_broker: BrokerProcess, tmp_path: Path) -> dict[str, str]:
    """A topic with 100 records, one a millisecond, and a group that has committed offset 40."""
    topic = f"tools-{uuid.uuid4()}"
    group = f"group-{topic}"
    address = address_of(kafka_tools_broker)
    admin = KafkaAdminClient(bootstrap_servers=address)
    admin.create_topics([NewTopic(topic, 1, 1)])
    producer = KafkaProducer(bootstrap_servers=address)
    for number in range(RECORDS):
        producer.send(topic, b"value %d" % number, timestamp_ms=TIME_MS + number)
    producer.close()
    admin.alter_group_offsets(group, {TopicPartition(topic, 0): OffsetAndMetadata(COMMITTED, "", -1)})
    admin.close()
    file = tmp_path / "offsets.json"
    file.write_text(f'{{"partitions": [{{"topic": "{topic}", "partition": 0, "offset": 10}}], "version": 1}}')
    return {"topic": topic, "group": group, "file": str(file)}


def run_tool(broker: BrokerProcess, tool: str, arguments: str, names: dict[str, str], text: str = "") -> str:
    """Run a tool; return its output and errors."""
    # The commands of kafka-cluster have options of their own.
    address = f"--bootstrap-server {address_of(broker)}"
    whole = f"{arguments} {address}" if tool == "kafka-cluster" else f"{address} {arguments}"
    command = [*java("43", CLASSES[tool]), *whole.format(**names).split()]
    process = subprocess.run(command, check=False, capture_output=True, text=True, input=text, timeout=TIMEOUT_S)
    return process.stdout + process.stderr


@pytest.fixture(scope="module")
def offered(kafka_tools_broker: BrokerProcess) -> str:
    """The output of kafka-broker-api-versions."""
    return run_tool(kafka_tools_broker, "kafka-broker-api-versions", "", {})


def test_the_versions_of_requests_are_usable(offered: str) -> None:
    assert re.search(r"Produce\(0\): 0 to \d+ \[usable: \d+\]", offered), offered
    assert "NONE" not in offered


@pytest.mark.parametrize("case", WORK, ids=lambda case: f"{case.tool} {case.arguments}".replace(" ", "_"))
def test_a_tool_does_its_job(kafka_tools_broker: BrokerProcess, names: dict[str, str], case: Case) -> None:
    output = run_tool(kafka_tools_broker, case.tool, case.arguments, names, case.input)
    expected = case.expected.replace("{topic}", names["topic"]).replace("{group}", names["group"])
    assert re.search(expected, output), output


@pytest.mark.parametrize("case", MISSING, ids=lambda case: f"{case.tool} {case.request}".replace(" ", "_"))
def test_a_tool_names_the_request_that_is_missing(
    kafka_tools_broker: BrokerProcess, names: dict[str, str], offered: str, case: Missing
) -> None:
    if re.search(rf"\b{case.request}\(\d+\): UNSUPPORTED", offered) is None:
        pytest.skip(f"{case.request} is offered: this belongs to WORK")
    output = run_tool(kafka_tools_broker, case.tool, case.arguments, names)
    constant = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", case.request).upper()
    assert re.search(rf"does not support {constant}|The {constant} API is not supported", output), output
