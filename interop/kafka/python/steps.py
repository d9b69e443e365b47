"""The steps of README.md for Kafka clients of Python: the programs beside it implement `Client` and `Consumer`.

    python kafka_python.py HOST:PORT [--records N]
    python kafka_python.py version

Environment: STEPS_CA (a file), STEPS_USER and STEPS_PASSWORD for TLS and SASL PLAIN; STEPS_CROSSING, a topic with ten
messages of an AMQP publisher.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import traceback
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, TypeVar

Result = TypeVar("Result")

CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
EACH: Final = 200
TIME_MS: Final = 1_700_000_000_000
WAIT_S: Final = 60
RETENTION_MS: Final = "3600000"
CROSSING: Final = 10

Headers = tuple[tuple[str, bytes | None], ...]


class Record(NamedTuple):
    """A consumed record."""

    offset: int
    timestamp_ms: int
    value: bytes | None
    key: bytes | None = b"key"
    headers: Headers = ()


class NotOffered(Exception):  # no error
    """The client does not have what a step shows; the text says what."""


class Consumer(ABC):
    """A consumer of one topic with one partition, without automatic commits."""

    @abstractmethod
    def assign(self, offset: int) -> None:
        """Read the partition from this offset, without group membership."""

    @abstractmethod
    def subscribe(self) -> None:
        """Join the group. Without a committed offset it begins at the first record."""

    @abstractmethod
    def poll(self) -> Sequence[Record]:
        """Return the next records, within some 0.1 s."""

    @abstractmethod
    def partitions(self) -> int:
        """Return how many partitions are assigned."""

    @abstractmethod
    def commit(self, offset: int) -> None:
        """Commit this offset, synchronously."""

    def take(self) -> Sequence[Record]:
        """Return the next records of a member, after their offset is committed, within some 0.1 s."""
        records = self.poll()
        if records:
            self.commit(records[-1].offset + 1)
        return records

    @abstractmethod
    def committed(self) -> int:
        """Return the committed offset."""

    @abstractmethod
    def offset_of_time(self, timestamp_ms: int) -> int:
        """Return the first offset at or after a time."""

    @abstractmethod
    def end(self) -> int:
        """Return the offset after the last record."""

    @abstractmethod
    def close(self) -> None:
        """Leave the group and close."""


class Client(ABC):
    """A client library, connected to an address. Topics have one partition; producers are idempotent, with acks=all."""

    def __init__(self, address: str) -> None:
        self.address = address

    @staticmethod
    @abstractmethod
    def version() -> str:
        """Return the version of the library."""

    @abstractmethod
    def create(self, topic: str) -> None:
        """Create a topic."""

    @abstractmethod
    def delete(self, topic: str) -> None:
        """Delete a topic."""

    @abstractmethod
    def topics(self) -> set[str]:
        """Return the names of all topics."""

    @abstractmethod
    def partitions(self, topic: str) -> int:
        """Describe a topic; return how many partitions it has."""

    @abstractmethod
    def groups(self) -> set[str]:
        """Return the names of all groups."""

    @abstractmethod
    def group(self, group: str) -> tuple[str, int]:
        """Describe a group; return its state and how many members it has."""

    @abstractmethod
    def delete_group(self, group: str) -> bool:
        """Delete a group. Return False if the client cannot."""

    @abstractmethod
    def send(self, topic: str, codec: str, values: Sequence[bytes], first_ms: int) -> list[int]:
        """Send values with one producer, one millisecond apart; return their offsets."""

    @abstractmethod
    def consumer(self, topic: str, group: str) -> Consumer:
        """Return a consumer, which does not read records of aborted transactions."""

    @abstractmethod
    def send_record(self, topic: str, record: Record) -> None:
        """Send one record with its key, value and headers, any of which may be missing."""

    @abstractmethod
    def send_transactions(self, topic: str, aborted: bytes, committed: Sequence[bytes]) -> None:
        """Send a value in a transaction that is aborted, then the others in one that is committed."""

    @abstractmethod
    def set_retention(self, topic: str, value: str) -> None:
        """Set the topic's config `retention.ms`."""

    @abstractmethod
    def retention(self, topic: str) -> str:
        """Return the topic's config `retention.ms`."""

    def share(self, topic: str, group: str, values: Sequence[bytes]) -> list[tuple[bytes, int]]:
        """Send the values and receive them as a share group, the first one after a release. Return the values that were
        accepted, each with its delivery count. Raises NotOffered.
        """
        raise NotOffered("the client has no share groups")


class Login(NamedTuple):
    """The settings for SASL PLAIN over TLS. ca: path of the authority's certificate."""

    ca: str
    user: str
    password: str


def login() -> Login | None:
    """Return the login of the environment, or None for a connection without TLS and login."""
    names = ("STEPS_CA", "STEPS_USER", "STEPS_PASSWORD")
    return Login(*(os.environ[name] for name in names)) if "STEPS_CA" in os.environ else None


class Steps:
    """The steps, in order."""

    def __init__(self, client: Client, records: int) -> None:
        self.client, self.records = client, records
        self.topic = f"python-{uuid.uuid4()}"
        self.group = f"group-{self.topic}"
        self.sent: list[bytes] = []
        self.members: list[Consumer] = []
        self.received: list[Record] = []
        self.failed = False

    def run(self) -> int:
        """Run all steps; return the exit code."""
        steps = (self.create, self.produce, self.consume, self.headers, self.rebalance, self.resume, self.seek)
        steps += (self.transactions, self.describe, self.configs, self.from_amqp, self.to_amqp, self.delete)
        for each in (*steps, self.many, self.share):
            name = each.__name__.replace("_", "-")
            if name.endswith("-amqp") and "STEPS_CROSSING" not in os.environ:
                continue
            ok: bool | None = True
            try:
                detail = each()
            except NotOffered as reason:
                ok, detail = None, str(reason)
            except Exception as error:  # noqa: BLE001  # reported as the step's result
                traceback.print_exc()
                ok, detail, self.failed = False, repr(error), True
            print(json.dumps({"step": name, "ok": ok, "detail": detail}), flush=True)
        return int(self.failed)

    def send(self, codec: str) -> None:
        first = len(self.sent)
        values = [b"value %d" % number for number in range(first, first + EACH)]
        offsets = self.client.send(self.topic, codec, values, TIME_MS + first)
        assert offsets == list(range(first, first + EACH)), offsets
        self.sent += values

    def create(self) -> str:
        self.client.create(self.topic)
        return self.topic

    def produce(self) -> str:
        for codec in CODECS:
            self.send(codec)
        return f"{len(self.sent)} records"

    def consume(self) -> str:
        got = self.read(self.topic, 0, len(self.sent))
        expected = [Record(number, TIME_MS + number, value) for number, value in enumerate(self.sent)]
        assert got == expected, next(pair for pair in zip(got, expected, strict=False) if pair[0] != pair[1])
        return f"{len(got)} records"

    def read(self, topic: str, offset: int, count: int) -> list[Record]:
        """Return so many records from an offset on."""
        consumer = self.client.consumer(topic, self.group)
        consumer.assign(offset)
        got: list[Record] = []
        wait_for(f"{count} records", lambda: got.extend(consumer.poll()) or len(got) >= count)
        consumer.close()
        return got

    def headers(self) -> str:
        topic = f"{self.topic}-headers"
        self.client.create(topic)
        records = [
            Record(0, 0, b"value", b"key", (("text", b"x"), ("text", b"again"), ("empty", b""))),
            Record(1, 0, b"", None),
            Record(2, 0, None, b"deleted"),
        ]
        for record in records:
            self.client.send_record(topic, record)
        got = [record._replace(timestamp_ms=0) for record in self.read(topic, 0, 3)]
        assert got == records, got
        self.client.delete(topic)
        return "3 records"

    def transactions(self) -> str:
        topic = f"{self.topic}-transactions"
        self.client.create(topic)
        self.client.send_transactions(topic, b"no", [b"yes 0", b"yes 1"])
        values = [record.value for record in self.read(topic, 0, 2)]
        assert values == [b"yes 0", b"yes 1"], values
        self.client.delete(topic)
        return "one of two"

    def configs(self) -> str:
        self.client.set_retention(self.topic, RETENTION_MS)
        wait_for("the config", lambda: self.client.retention(self.topic) == RETENTION_MS)
        return RETENTION_MS

    def from_amqp(self) -> str:
        values = [record.value for record in self.read(os.environ["STEPS_CROSSING"], 0, CROSSING)]
        assert values == [b"from amqp %d" % number for number in range(CROSSING)], values
        return f"{CROSSING} records"

    def to_amqp(self) -> str:
        values = [b"from kafka %d" % number for number in range(CROSSING)]
        offsets = self.client.send(os.environ["STEPS_CROSSING"], "none", values, TIME_MS)
        assert offsets == list(range(CROSSING, 2 * CROSSING)), offsets
        return f"{CROSSING} records"

    def share(self) -> str:
        topic = f"{self.topic}-share"
        self.client.create(topic)
        values = [b"value %d" % number for number in range(CROSSING)]
        got = self.client.share(topic, f"share-{self.topic}", values)
        assert sorted(value for value, _ in got) == values, got
        assert sum(count - 1 for _, count in got) == 1, got
        self.client.delete(topic)
        return f"{CROSSING} records, one of them twice"

    def poll_members(self) -> int:
        for member in self.members:
            self.received += member.take()
        return len(self.received)

    def wait_for_members(self, count: int) -> None:
        def is_balanced() -> bool:
            self.poll_members()
            partitions = sum(member.partitions() for member in self.members)
            return partitions == 1 and self.client.group(self.group) == ("Stable", count)

        wait_for(f"{count} members, one of them with the partition", is_balanced)

    def join(self) -> None:
        member = self.client.consumer(self.topic, self.group)
        self.members.append(member)
        member.subscribe()
        self.wait_for_members(len(self.members))

    def rebalance(self) -> str:
        self.join()
        self.join()
        wait_for("all records", lambda: self.poll_members() >= len(self.sent))
        owner = next(member for member in self.members if member.partitions())
        self.members.remove(owner)
        owner.close()
        self.wait_for_members(1)
        self.join()
        self.send("none")
        wait_for("the records sent meanwhile", lambda: self.poll_members() >= len(self.sent))
        for member in self.members:
            member.close()
        assert [record.offset for record in self.received] == list(range(len(self.sent)))
        return f"3 members, {len(self.received)} records"

    def resume(self) -> str:
        consumer = self.client.consumer(self.topic, self.group)
        consumer.assign(0)
        consumer.commit(321)
        consumer.close()
        consumer = self.client.consumer(self.topic, self.group)
        consumer.subscribe()
        first = wait_for("records", consumer.poll)[0]
        committed = consumer.committed()
        consumer.close()
        assert (first.offset, committed) == (321, 321), (first, committed)
        return "from 321"

    def seek(self) -> str:
        consumer = self.client.consumer(self.topic, self.group)
        consumer.assign(0)
        offset = consumer.offset_of_time(TIME_MS + 777)
        end = consumer.end()
        consumer.close()
        consumer = self.client.consumer(self.topic, self.group)
        consumer.assign(offset)
        first = wait_for("records", consumer.poll)[0]
        consumer.close()
        assert (first.offset, first.timestamp_ms, end) == (777, TIME_MS + 777, len(self.sent)), (first, end)
        return "777"

    def describe(self) -> str:
        assert self.topic in self.client.topics()
        assert self.client.partitions(self.topic) == 1
        assert self.group in self.client.groups()
        assert self.client.group(self.group) == ("Empty", 0), self.client.group(self.group)
        if self.client.delete_group(self.group):
            assert self.group not in self.client.groups()
        return self.group

    def delete(self) -> str:
        self.client.delete(self.topic)
        assert self.topic not in self.client.topics()
        return self.topic

    def many(self) -> str:
        topic, count = f"{self.topic}-many", self.records
        self.client.create(topic)
        values = [b"%0100d" % number for number in range(count)]
        start = time.monotonic()
        offsets = self.client.send(topic, "none", values, TIME_MS)
        in_s = time.monotonic() - start
        assert offsets == list(range(count))
        start = time.monotonic()
        consumer = self.client.consumer(topic, self.group)
        consumer.assign(0)
        received = 0
        while received < count:
            for record in wait_for("records", consumer.poll):
                assert (record.offset, record.value) == (received, values[received]), record
                received += 1
        out_s = time.monotonic() - start
        consumer.close()
        self.client.delete(topic)
        return f"{count} records: {count / in_s:.0f}/s in, {count / out_s:.0f}/s out"


def wait_for(what: str, condition: Callable[[], Result]) -> Result:
    """Return the first true value of `condition`, which waits by itself. Raises: TimeoutError."""
    deadline = time.monotonic() + WAIT_S
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {WAIT_S} s: {what}")


def main(client_of: type[Client]) -> None:
    """Run the steps with the client for the address of the command line, and exit; or print the client's version."""
    parser = argparse.ArgumentParser()
    parser.add_argument("address")
    parser.add_argument("--records", type=int, default=10_000)
    arguments = parser.parse_args()
    if arguments.address == "version":
        print(client_of.version())
        return
    sys.exit(Steps(client_of(arguments.address), arguments.records).run())
