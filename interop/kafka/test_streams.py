"""Kafka Streams: a word count and a windowed join with `exactly_once_v2`, while the application and the broker are
killed.

Each word of an order must be counted once, and each payment in time joined once, whatever was killed. A kill counts if
the application had results of the last orders before it, and had still orders to read after it. The test sends orders
until enough kills count.

TEST_STREAMS_KILLS: how many kills, by turns of application and broker; 2. TEST_STREAMS_ORDERS: orders before a kill.
"""

from __future__ import annotations

import os
import subprocess
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from amqpd.testing import BrokerProcess

from .kafka_programs import HERE, address_of, documented_settings, java

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # kafka-python uses importlib.resources.read_text
    from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
    from kafka.admin import NewTopic

KILLS: Final = int(os.environ.get("TEST_STREAMS_KILLS", "2"))
ORDERS: Final = int(os.environ.get("TEST_STREAMS_ORDERS", "2000"))
TIMEOUT_S: Final = 300
PROGRAM: Final = str(HERE / "java" / "StreamsProgram.java")
PARTITIONS: Final = 2
GROUP: Final = "shop"
INPUTS: Final = ("orders", "payments")
OUTPUTS: Final = ("counts", "paid")
IN_TIME_MS: Final = 9_000
"""Later than the order by less than the window of the program, and by more."""
TOO_LATE_MS: Final = 11_000

pytestmark = [
    pytest.mark.slow,
    pytest.mark.external,
    pytest.mark.timeout(600 * KILLS),
    # kafka-python leaks the socket of a connection that it cannot make.
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
]


class Shop:
    """The inputs of the application, the results that they must have, and those that it has committed.

    Attributes:
        words: word -> how often it was sent.
        payments: those that belong to an order and are in time.
        counts: word -> the counts that were received, in the order of the log.
        paid: the payments that were received.
    """

    def __init__(self, address: str) -> None:
        self.words: Counter[str] = Counter()
        self.payments: list[str] = []
        self.counts: dict[str, list[int]] = defaultdict(list)
        self.paid: list[str] = []
        self._sent = 0
        self._address = address
        admin = KafkaAdminClient(bootstrap_servers=address)
        admin.create_topics([NewTopic(name, PARTITIONS, 1) for name in (*INPUTS, *OUTPUTS)])
        admin.close()
        self._producer = KafkaProducer(bootstrap_servers=address, linger_ms=20)
        self._consumer = KafkaConsumer(bootstrap_servers=address, isolation_level="read_committed")
        places = [TopicPartition(topic, number) for topic in OUTPUTS for number in range(PARTITIONS)]
        self._consumer.assign(places)
        self._consumer.seek_to_beginning()

    def send(self, count: int) -> None:
        """Send orders of three words, and a payment for each, half of them too late."""
        now_ms = int(time.time() * 1000)
        for number in range(self._sent, self._sent + count):
            key, words = str(number).encode(), [f"a{number % 7}", f"b{number % 31}", f"c{number % 101}"]
            delay_ms = IN_TIME_MS if number % 2 else TOO_LATE_MS
            self._producer.send("orders", key=key, value=" ".join(words).encode(), timestamp_ms=now_ms)
            self._producer.send("payments", key=key, value=b"p" + key, timestamp_ms=now_ms + delay_ms)
            self.words.update(words)
            if number % 2:
                self.payments.append(f"p{number}")
        self._producer.flush(timeout=TIMEOUT_S)
        self._sent += count

    @property
    def expected(self) -> int:
        """The number of results that all inputs have."""
        return self.words.total() + len(self.payments)

    @property
    def received(self) -> int:
        return sum(len(numbers) for numbers in self.counts.values()) + len(self.paid)

    def receive(self) -> None:
        """Receive the results that are committed and not received yet, some of them at least if there are any."""
        for records in self._consumer.poll(timeout_ms=500).values():
            for record in records:
                if record.topic == "counts":
                    self.counts[record.key.decode()].append(int(record.value))
                else:
                    self.paid.append(record.value.decode())

    def receive_to_end(self) -> None:
        """Receive all results. The application must not run."""
        places = self._consumer.assignment()
        ends = self._consumer.end_offsets(places)
        while any(self._consumer.position(place) < ends[place] for place in places):
            self.receive()

    def unread(self) -> int:
        """Return how many inputs the application has not committed as read."""
        places = [TopicPartition(topic, number) for topic in INPUTS for number in range(PARTITIONS)]
        ends = self._consumer.end_offsets(places)
        admin = KafkaAdminClient(bootstrap_servers=self._address)
        committed = admin.list_group_offsets({GROUP: places})[GROUP]
        admin.close()
        return sum(ends[place] - max(committed[place].offset, 0) for place in places)

    def close(self) -> None:
        self._producer.close()
        self._consumer.close()


class Application:
    """The program as a process. Its output goes to `log`. member: id of a static member, or ""."""

    def __init__(self, address: str, folder: Path, member: str) -> None:
        settings = folder / "streams.properties"
        settings.write_text(
            f"""{documented_settings("Kafka Streams", address)}
            state.dir={folder / "state"}
            consumer.auto.offset.reset=earliest
            # Each change of a count is a record: 1, 2, 3 ... for each word.
            statestore.cache.max.bytes=0
            # Small files, so that changelogs are compacted.
            topic.segment.bytes=65536
            # A killed member is removed after this time.
            consumer.session.timeout.ms=6000
            consumer.heartbeat.interval.ms=1000
            {f"consumer.group.instance.id={member}" if member else ""}
            """
        )
        self._command = [*java("43-streams", PROGRAM), str(settings)]
        self.log = folder / "streams.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log)

    def check(self) -> None:
        assert self._process is not None
        assert self._process.poll() is None, self.log.read_text()[-3000:]

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """Stop it with SIGTERM, for which Java has the exit code 143."""
        assert self._process is not None
        self._process.terminate()
        assert self._process.wait(TIMEOUT_S) == 143, self.log.read_text()[-3000:]


def wait_for_results(shop: Shop, application: Application, count: int) -> None:
    """Wait until this many results are there."""
    deadline = time.monotonic() + TIMEOUT_S
    while shop.received < count:
        application.check()
        assert time.monotonic() < deadline, f"{shop.received} of {count} results\n{application.log.read_text()[-3000:]}"
        shop.receive()


@pytest.fixture
def kafka_broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    """A broker that has the same Kafka port after a restart, and compacts often."""
    settings = {"kafka.port": 0, "kafka.host": "127.0.0.1", "storage.upkeep_interval_s": 1}
    with BrokerProcess(tmp_path / "data", settings=settings) as broker:
        assert broker.ready is not None
        broker.settings["kafka.port"] = broker.ready.listeners["kafka"][1]
        yield broker
        assert "Traceback" not in broker.stderr, broker.stderr


@pytest.mark.parametrize("member", ["", "static-1"], ids=["dynamic", "static"])
def test_streams_counts_and_joins_each_record_once_over_kills(
    kafka_broker: BrokerProcess, tmp_path: Path, member: str
) -> None:
    application = Application(address_of(kafka_broker), tmp_path, member)
    shop = Shop(address_of(kafka_broker))
    application.start()
    try:
        kills, orders = 0, ORDERS
        while kills < KILLS:
            before = shop.expected
            shop.send(orders)
            wait_for_results(shop, application, before + 1)
            if kills % 2 == 0:
                application.kill()
                is_hit = shop.unread() > 0
                application.start()
            else:
                kafka_broker.kill()
                kafka_broker.start()
                is_hit = shop.unread() > 0
            wait_for_results(shop, application, shop.expected)
            if is_hit:
                kills += 1
            else:
                orders *= 2
        application.stop()
    finally:
        application.kill()
    shop.receive_to_end()
    assert shop.counts == {word: list(range(1, count + 1)) for word, count in shop.words.items()}
    assert sorted(shop.paid) == sorted(shop.payments)
    assert shop.unread() == 0
    shop.close()
