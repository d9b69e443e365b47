"""Checks of Kafka before a node's first start: reachable, permissions sufficient, settings suitable.

`amqpctl check_cluster` runs this module as a program, with the settings of amqpd's command line and environment:

    python -m amqpd.cluster.check --config amqpd.toml

It prints a line for each check and exits with 0, or with 69 if one failed. Permissions are tested by using them:
the program creates a topic `amqpd.<cluster>.check` like a vhost's, writes, reads, empties and grows it, and deletes
it. A running cluster is not changed.

`wait_for_kafka` also runs at each start of a node.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from amqpd.config import SettingsError, load
from amqpd.kafka.admin import ClusterOptions, TopicAdmin, UnsafeTopic, cluster_options
from amqpd.kafka.config import InvalidKafkaConfig, KafkaAccess
from amqpd.kafka.connection import KafkaDisconnected, KafkaIncompatible, open_connection
from amqpd.kafka.consumer import KafkaReader
from amqpd.kafka.outages import AiokafkaLog
from amqpd.kafka.partition import UNKNOWN
from amqpd.kafka.producer import KafkaProducer, KafkaRefused, fetch_metadata, first_answer, take_over

if TYPE_CHECKING:
    from amqpd.kafka.requests import Metadata

logger = logging.getLogger(__name__)

EXIT_USAGE: Final = 64
EXIT_UNAVAILABLE: Final = 69
FIRST_LINE_S: Final = 4.0
LINE_S: Final = 10.0
PAUSE_S: Final = 1.0
CHECK: Final = "check"
"""Replaces a vhost's id, which has 32 hexadecimal digits."""
_GROUP_UNAUTHORIZED: Final = 30
_TROUBLE: Final = (KafkaDisconnected, KafkaRefused, KafkaIncompatible, UnsafeTopic, OSError)


# -- start of a node ---------------------------------------------------------------------------------------------------


async def wait_for_kafka(access: KafkaAccess, timeout_s: float) -> None:
    """Return when a broker answers. Log the tried addresses after 4 s and then every 10 s.

    Raises:
        KafkaDisconnected: no broker answered within `timeout_s`.
        KafkaIncompatible: a broker cannot be used, with the reason.
    """
    lines = asyncio.get_running_loop().create_task(_say_what_is_tried(access))
    try:
        async with asyncio.timeout(timeout_s):
            while True:
                try:
                    await first_answer(access, access.addresses, lambda connection: fetch_metadata(connection, []))
                    return
                except OSError:
                    await asyncio.sleep(PAUSE_S)
    except TimeoutError:
        raise KafkaDisconnected(f"no broker answered within {timeout_s:g} s: {_tried(access)}") from None
    finally:
        lines.cancel()
        await asyncio.gather(lines, return_exceptions=True)


async def _say_what_is_tried(access: KafkaAccess) -> None:
    pause = FIRST_LINE_S
    while True:
        await asyncio.sleep(pause)
        logger.warning("waiting for a Kafka broker: %s", _tried(access))
        pause = LINE_S


def _tried(access: KafkaAccess) -> str:
    found = []
    for host, port in access.addresses:
        name = f"{host}:{port}"
        found.append(f"{name}: {access.outages.failure_reason(name) or 'no answer'}")
    return "; ".join(found)


# -- checks ------------------------------------------------------------------------------------------------------------


class Checks:
    """The checks of one cluster.

    Attributes:
        failed: number of failed checks.
    """

    def __init__(self, options: ClusterOptions, print_line: Callable[[str], None]) -> None:
        self.options = options
        self.failed = 0
        self._print_line = print_line

    async def run(self) -> None:
        """Run all checks that are possible with the brokers that answer."""
        metadata = await self._reach()
        await self._this_node()
        if metadata is None:
            self._print_line("the other checks need a reachable broker")
            return
        count, wanted = len(metadata.brokers), self.options.replication_factor
        self._report(count >= wanted, f"{count} brokers; cluster.replication_factor needs {wanted}")
        async with TopicAdmin(self.options) as topics:
            await self._own_topics(topics)
            await self._rights(topics)
            await self._try(f"the group {self.options.group} can be joined", self._group(topics))

    def _report(self, good: bool, what: str, why: object = "") -> bool:
        self.failed += not good
        self._print_line(f"{'ok   ' if good else 'WRONG'}  {what}{f': {why}' if why else ''}")
        return good

    async def _try(self, what: str, work: Awaitable[Any]) -> bool:
        try:
            await work
        except _TROUBLE as error:
            return self._report(False, what, error)
        return self._report(True, what)

    async def _reach(self) -> Metadata | None:
        """Check each configured address, and each address that a broker advertises."""
        access = self.options.access
        found: Metadata | None = None
        for host, port in access.addresses:
            if await self._answers(f"{host}:{port} answers", host, port) and found is None:
                found = await first_answer(access, [(host, port)], lambda connection: fetch_metadata(connection, []))
        for number, (host, port) in sorted(found.brokers.items() if found is not None else ()):
            if (host, port) not in access.addresses:
                await self._answers(f"broker {number} answers at {host}:{port}, its advertised listener", host, port)
        return found

    async def _answers(self, what: str, host: str, port: int) -> bool:
        async def ask() -> None:
            connection = await open_connection(self.options.access, host, port)
            await connection.close()

        return await self._try(what, ask())

    async def _this_node(self) -> None:
        host, port = self.options.address
        resolved = asyncio.get_running_loop().getaddrinfo(host, port or None, type=socket.SOCK_STREAM)
        await self._try(f"cluster.address: the name {host} resolves", resolved)

    async def _own_topics(self, topics: TopicAdmin) -> None:
        """Check the topics of a cluster that already exists."""
        names = (self.options.meta_topic, self.options.settled_topic)
        try:
            found = await topics.describe(names)
        except _TROUBLE as error:
            self._report(False, f"topics {', '.join(names)}", error)
            return
        for name in names:
            if name not in found:
                self._report(True, f"topic {name} does not exist yet: the first node creates it")
                continue
            try:
                topics.check_slots(found[name])
                self._report(True, f"topic {name} has the settings that a confirm needs")
            except UnsafeTopic as error:
                self._report(False, f"topic {name}", error)

    async def _rights(self, topics: TopicAdmin) -> None:
        """Use a topic like a vhost's, from its creation to its deletion."""
        options = self.options
        name = options.queues_topic(CHECK)
        if not await self._try(f"topic {name} can be created", topics.prepare_queues(CHECK, 1)):
            return
        producer = KafkaProducer(options.access, delivery_timeout_s=20.0)
        reader = KafkaReader(options.access, timeout_s=20.0)
        try:
            partition = producer.open(name, 0, UNKNOWN)
            key = f"amqpd.{options.cluster}.{CHECK}"
            if await self._try("it can be written with a transactional id", take_over(producer, key, [partition])):
                end = int(partition.next_offset)
                await self._try("it can be read", _read(reader, name, end))
                await self._try("its records can be deleted", topics.delete_records(name, {0: end}))
            await self._try("it can get more partitions", topics.grow(name, 2))
        finally:
            await producer.close()
            await reader.close()
            await self._try("it can be deleted", topics.delete(name))

    async def _group(self, topics: TopicAdmin) -> None:
        """Send a heartbeat without a member: Kafka checks the permission before it checks the member."""
        from aiokafka.protocol.group import HeartbeatRequest

        code = await topics.ask_coordinator(self.options.group, HeartbeatRequest(self.options.group, -1, ""))
        if code == _GROUP_UNAUTHORIZED:
            raise KafkaRefused("GROUP_AUTHORIZATION_FAILED")


async def _read(reader: KafkaReader, topic: str, end: int) -> None:
    async for _ in reader.read(topic, 0, 0, end):
        pass


async def _checked(options: ClusterOptions) -> int:
    AiokafkaLog(options.access.outages).attach()
    checks = Checks(options, lambda line: print(line, flush=True))
    await checks.run()
    return checks.failed


def main(arguments: Sequence[str]) -> int:
    """Check the cluster of these settings and return the exit code."""
    logging.disable(logging.CRITICAL)  # failures are printed instead
    try:
        settings = load(arguments, os.environ).settings
        if not settings.cluster.kafka:
            print("cluster.kafka is not set: this is not a cluster node", file=sys.stderr)
            return EXIT_USAGE
        options = cluster_options(settings.cluster)
    except SettingsError as error:
        print(*error.problems, sep="\n", file=sys.stderr)
        return EXIT_USAGE
    except (InvalidKafkaConfig, OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return EXIT_USAGE
    failed = asyncio.run(_checked(options))
    print(f"failed checks: {failed}" if failed else "a node with these settings can start")
    return EXIT_UNAVAILABLE if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
