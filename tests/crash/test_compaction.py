"""A compacted, compressed stream under load, killed at any moment, also during compaction.

One publisher with confirms writes rising numbers under a few routing keys, and sometimes a tombstone. One named reader
follows. After each kill a new reader reads the whole stream. The test checks:

- For each key, the last confirmed value or a later one is there.
- Nothing is there that was not published; nothing is there twice; offsets rise.
- Nothing older follows a key's tombstone.
- The stored offset of the named reader never goes back over a start, and is never beyond its acks.

`TEST_CRASH_CYCLES` and `TEST_CRASH_SEED` set other cycles.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import threading
import time
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Final

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import AMQPError

from amqpd.broker.vhost.consumer_offsets import WRITE_S
from amqpd.cli.main import run
from amqpd.testing import BrokerProcess

KEYS: Final = 20
STREAM: Final = {"x-queue-type": "stream", "x-compact": True, "x-stream-max-segment-size-bytes": 64 * 1024}
CLEANED: Final = "compacted up to offset"
SETTINGS: Final = {"storage.upkeep_interval_s": 0.2, "log.level": "info"}


class Story:
    """The history of one run.

    sent: the values of each key in order of publishing, None for a tombstone. confirmed: how many of them are
    confirmed.
    """

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.sent: dict[str, list[int | None]] = {f"key.{number}": [] for number in range(KEYS)}
        self.confirmed: dict[str, int] = dict.fromkeys(self.sent, 0)
        self.number = 0
        self.acked = 0  # the named reader's next offset
        self.stored = 0  # that offset as the last start found it
        self.is_running = True
        self.failures: list[BaseException] = []

    def body(self, number: int) -> bytes:
        filler = random.Random(number)
        return b"%d %s" % (number, filler.randbytes(400).hex().encode())

    def publish(self, url: str) -> None:
        with self.connected(url) as channel:
            channel.confirm_delivery()
            while self.is_running:
                key = self.chance.choice(list(self.sent))
                if self.chance.random() < 0.05:
                    self.sent[key].append(None)
                    channel.basic_publish("keys", key, b"", pika.BasicProperties(headers={"x-tombstone": True}))
                else:
                    self.number += 1
                    self.sent[key].append(self.number)
                    channel.basic_publish("keys", key, self.body(self.number))
                self.confirmed[key] = len(self.sent[key])

    def follow(self, url: str) -> None:
        with self.connected(url) as channel:
            channel.basic_qos(prefetch_count=50)
            arguments = {"x-stream-offset": "first", "x-stream-consumer-name": "follower"}
            before = -1
            for method, properties, _ in channel.consume("s", arguments=arguments, inactivity_timeout=0.2):
                if not self.is_running:
                    return
                if method is not None:
                    offset = properties.headers["x-stream-offset"]
                    assert offset > before, "offsets do not rise"
                    before = offset
                    self.acked = max(self.acked, offset + 1)
                    channel.basic_ack(method.delivery_tag)

    @contextlib.contextmanager
    def connected(self, url: str) -> Iterator[BlockingChannel]:
        """A channel until the broker is killed."""
        try:
            with connected(url) as channel:
                yield channel
        except (AMQPError, OSError):
            return
        except BaseException as failure:  # noqa: BLE001  # raised in a thread; the test raises it
            self.failures.append(failure)


@contextlib.contextmanager
def connected(url: str) -> Iterator[BlockingChannel]:
    """Yield a channel until the broker is killed; note any other failure for the test to raise."""
    connection = pika.BlockingConnection(pika.URLParameters(url))
    try:
        yield connection.channel()
    finally:
        if connection.is_open:
            with contextlib.suppress(AMQPError, OSError):
                connection.close()


def read_all(url: str, end: int) -> list[tuple[int, str, bytes]]:
    """Read all messages below the offset `end`."""
    found = []
    with connected(url) as channel:
        channel.basic_qos(prefetch_count=500)
        first = {"x-stream-offset": "first"}
        for method, properties, body in channel.consume("s", arguments=first, inactivity_timeout=30):
            assert method is not None, f"{len(found)} messages, the last of them {found[-1:]}, of {end} offsets"
            offset = properties.headers["x-stream-offset"]
            found.append((offset, method.routing_key, body))
            channel.basic_ack(method.delivery_tag)
            if offset == end - 1:
                break
    return found


def judge(story: Story, found: list[tuple[int, str, bytes]]) -> None:
    offsets = [offset for offset, _, _ in found]
    assert offsets == sorted(set(offsets)), "offsets do not rise, or one came twice"
    shown: dict[str, list[int | None]] = {key: [] for key in story.sent}
    for _, key, body in found:
        if not body:
            shown[key].append(None)
            continue
        number = int(body.split()[0])
        assert body == story.body(number)
        shown[key].append(number)
    for key, sent in story.sent.items():
        seen = shown[key]
        confirmed = story.confirmed[key]
        numbers = [each for each in seen if each is not None]
        assert set(numbers) <= set(sent), f"{key}: never published"
        assert numbers == sorted(numbers), f"{key}: out of order"
        if not confirmed:
            continue
        last = sent[confirmed - 1]
        later = sent[confirmed:]  # these may be there, too
        assert seen, f"{key}: nothing is left of {sent}"
        assert seen[-1] == last or seen[-1] in later, f"{key}: the last value is {seen[-1]}, {last} was confirmed"


def cycles(tmp_path: Path, count: int, seed: int) -> None:
    story = Story(seed)
    cleaned = 0
    with BrokerProcess(tmp_path, settings=SETTINGS) as broker:
        with connected(broker.url) as channel:
            codec = story.chance.choice(["zstd", "lz4", "snappy", "gzip"])
            channel.queue_declare("s", durable=True, arguments={**STREAM, "x-compression": codec})
            channel.exchange_declare("keys", "topic", durable=True)
            channel.queue_bind("s", "keys", "#")
        for cycle in range(count + 5):
            if cycle >= count and story.stored:
                break  # a slow broker may not have written an offset in time: run another cycle
            story.is_running = True
            threads = [threading.Thread(target=each, args=(broker.url,)) for each in (story.publish, story.follow)]
            for thread in threads:
                thread.start()
            if cycle < count - 1:
                time.sleep(story.chance.uniform(1.0, 3.0))
            else:  # long enough to write an offset, and for a compaction if there was none
                time.sleep(WRITE_S + 1.5)
                deadline = time.monotonic() + 60
                while not cleaned and CLEANED not in broker.stderr and time.monotonic() < deadline:
                    time.sleep(0.1)
            cleaned += broker.stderr.count(CLEANED)
            broker.kill()
            story.is_running = False
            for thread in threads:
                thread.join(120)
                assert not thread.is_alive()
            assert not story.failures, story.failures
            broker.start()
            with connected(broker.url) as channel:
                channel.confirm_delivery()
                channel.basic_publish("keys", "end", b"")
            stored = offsets_of(broker).get("follower", 0)
            assert story.stored <= stored <= story.acked, (
                "stored offset of the named reader went back or is beyond its acks"
            )
            story.stored = stored
            judge(story, [each for each in read_all(broker.url, end_of(broker)) if each[1] != "end"])
        found = read_all(broker.url, end_of(broker))
    total = sum(map(len, story.sent.values()))
    print(f"\n{count} kills, {total} published, {len(found)} left, {cleaned} cleanings seen in the log")
    assert cleaned, "nothing was compacted"
    assert len(found) < total
    assert story.stored > 0, "no offset was stored"


def end_of(broker: BrokerProcess) -> int:
    """Return the log end offset: the lag of a stored offset of 0."""
    ctl(broker, "set_stream_offset", "s", "measure", "0")
    return offsets_of(broker, "lag")["measure"]


def offsets_of(broker: BrokerProcess, column: str = "offset") -> dict[str, int]:
    rows = json.loads(ctl(broker, "list_stream_offsets", "s", "name", column, "--formatter", "json"))
    return {each["name"]: each[column] for each in rows}


def ctl(broker: BrokerProcess, *line: str) -> str:
    out = StringIO()
    assert run([*line, "--data-dir", str(broker.data_dir)], out, out, StringIO(), {}) == 0, out.getvalue()
    return out.getvalue()


@pytest.mark.slow
def test_three_kills_of_stream_under_compaction(tmp_path: Path) -> None:
    cycles(tmp_path, 3, int(os.environ.get("TEST_CRASH_SEED", "7")))


@pytest.mark.on_demand
@pytest.mark.timeout(0)
def test_many_kills_of_stream_under_compaction(tmp_path: Path) -> None:
    cycles(
        tmp_path,
        int(os.environ.get("TEST_CRASH_CYCLES", "30")),
        int(os.environ.get("TEST_CRASH_SEED", str(random.SystemRandom().randrange(1 << 30)))),
    )
