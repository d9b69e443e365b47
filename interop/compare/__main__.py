"""`python -m interop.compare`: runs the conversations and the API calls with amqpd, prints differences from RabbitMQ's
recorded answers, and writes docs/compatibility.md.

`--record` starts a RabbitMQ and records its answers again; each conversation is run until two recordings agree.
"""

from __future__ import annotations

import argparse
import os
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TypeVar

from amqpd.testing import BrokerProcess
from interop.bench import machine
from interop.bench.rabbitmq import SERVER, RabbitMQ, find_or_install

from . import records
from .api import beside
from .conversations import ALL
from .differences import due, not_yet, told
from .page import whole
from .party import Address
from .programs import Installed, Workers
from .stage import Answers, Stage
from .steps import Conversation

T = TypeVar("T")

PLUGINS = (
    "rabbitmq_management",
    "rabbitmq_event_exchange",
    "rabbitmq_consistent_hash_exchange",
    "rabbitmq_random_exchange",
    "rabbitmq_recent_history_exchange",
    "rabbitmq_sharding",
    "rabbitmq_stream",
)
ROUNDS = 4
"""The number of recordings until two must agree; each listens longer than the one before."""


def rabbitmq(directory: Path, http_port: int) -> RabbitMQ:
    """Return a RabbitMQ, not started, with the plugins that the conversations use."""
    config = f"management.tcp.port = {http_port}\nmanagement.tcp.ip = 127.0.0.1\ncollect_statistics_interval = 200\n"
    config += f"stream.listeners.tcp.1 = 127.0.0.1:{machine.free_port()}\n"
    return RabbitMQ(directory, PLUGINS, config)


def amqpd(directory: Path) -> BrokerProcess:
    """Return an amqpd with the event exchange where RabbitMQ's plugin has it."""
    return BrokerProcess(directory, settings={"log.level": "warning", "event_exchange_vhost": "/"})


def address_of(process: BrokerProcess) -> Address:
    return Address("127.0.0.1", process.amqp_port, process.http_port, our_tools(process))


def our_tools(process: BrokerProcess) -> Workers:
    """amqpctl under RabbitMQ's names, over the broker's unix socket."""
    environment = {**os.environ, "AMQPD_DATA_DIR": str(process.data_dir), "PYTHONPATH": os.pathsep.join(sys.path)}
    return Workers(environment)


def their_tools(peer: RabbitMQ) -> Installed:
    return Installed(str(SERVER.parent), peer._environment())


def in_turn(chosen: Sequence[Conversation], one: Callable[[int], T], jobs: int) -> list[T]:
    """Run the conversations, several at once if allowed. Return the results in their order."""
    done: dict[int, T] = {}
    with ThreadPoolExecutor(jobs) as pool:
        together = [place for place, each in enumerate(chosen) if not each.alone]
        done.update(zip(together, pool.map(one, together), strict=True))
    for place, each in enumerate(chosen):
        if each.alone:
            done[place] = one(place)
    return [done[place] for place in range(len(chosen))]


def recorded(conversation: Conversation, address: Address, number: int) -> Answers:
    """Record until two recordings agree. Raises: AssertionError if none do."""
    before: list[Answers] = []
    for attempt in range(ROUNDS):
        with Stage(address, number * ROUNDS + attempt, slow=1 + 2 * (attempt // 2)) as stage:
            heard = stage.record(conversation)
        if heard in before:
            return heard
        before.append(heard)
    raise AssertionError(f"{conversation.name} was never heard twice alike:\n" + "\n".join(map(str, before)))


def record(chosen: Sequence[Conversation], address: Address, version: str, jobs: int) -> list[str]:
    """Return what could not be recorded."""
    failed: list[str] = []
    made: dict[str, tuple[Conversation, Answers]] = {}

    def one(place: int) -> None:
        try:
            made[chosen[place].name] = (chosen[place], recorded(chosen[place], address, place))
        except Exception as error:  # noqa: BLE001  # reported; the others continue
            failed.append(f"{chosen[place].name}: {error!r}")

    in_turn(chosen, one, jobs)
    records.save(version, made, ALL)
    return failed


def compare(chosen: Sequence[Conversation], address: Address, jobs: int = 8) -> dict[str, list[str]]:
    """Compare amqpd with the record, several at once because most of them wait. Return the differences by name, one per
    line.
    """
    kept = records.load()

    def one(place: int) -> list[str]:
        conversation = chosen[place]
        try:
            wanted = due(conversation.name, records.answers(kept, conversation))
        except records.Outdated as error:
            return [str(error)]
        try:
            with Stage(address, place) as stage:
                return told(conversation.name, wanted, stage.replay(conversation, wanted))
        except (AssertionError, OSError) as error:
            return [f"{conversation.name}: {error!r}"]

    found = in_turn(chosen, one, jobs)
    return {conversation.name: lines for conversation, lines in zip(chosen, found, strict=True)}


def again(chosen: Sequence[Conversation], address: Address, jobs: int = 8) -> dict[str, list[str]]:
    """Compare a live RabbitMQ with its record; no difference is allowed. A differing conversation is repeated slowly,
    as when it was recorded. Return the differences by name, one per line.
    """
    kept = records.load()

    def one(place: int) -> list[str]:
        conversation = chosen[place]
        wanted = records.answers(kept, conversation)
        lines: list[str] = []
        for attempt in range(ROUNDS):
            with Stage(address, place * ROUNDS + attempt, slow=2 * attempt - 1 if attempt else 1) as stage:
                heard = stage.record(conversation) if attempt else stage.replay(conversation, wanted)
            lines = told(conversation.name, wanted, heard)
            if not lines:
                break
        return lines

    return {each.name: lines for each, lines in zip(chosen, in_turn(chosen, one, jobs), strict=True)}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m interop.compare", description=__doc__)
    parser.add_argument("patterns", nargs="*", help="names of conversations, * allowed; all if none is given")
    parser.add_argument("--record", action="store_true", help="start RabbitMQ and write down anew what it answers")
    parser.add_argument("--missing", action="store_true", help="with --record: only what has no record of its steps")
    parser.add_argument("--rabbitmq", metavar="HOST:PORT:HTTP", help="record with the RabbitMQ that runs there")
    parser.add_argument("--jobs", type=int, default=4, help="conversations recorded side by side")
    parser.add_argument("--list", action="store_true", help="print the names and do nothing")
    parser.add_argument("--page", action="store_true", help="write docs/compatibility.md and hold nothing")
    options = parser.parse_args()
    if options.page:
        return page()
    patterns = options.patterns or ["*"]
    chosen = [each for each in ALL.values() if any(fnmatchcase(each.name, pattern) for pattern in patterns)]
    if options.list:
        print("\n".join(each.name for each in chosen))
        return 0
    if options.missing:
        kept = records.load()
        chosen = [each for each in chosen if kept.get(each.name, {}).get("steps") != each.fingerprint()]
    with tempfile.TemporaryDirectory(prefix="compare-") as folder:
        failed = recording(options, chosen, Path(folder)) if options.record and chosen else []
        with amqpd(Path(folder) / "amqpd") as ours:
            began = time.monotonic()
            address = address_of(ours)
            found = compare(chosen, address)
            address.tools.close()
            took_s = time.monotonic() - began
            lines = [*failed, *[line for name in found if not not_yet(name) for line in found[name]]]
            print(
                "".join(f"{name}: not yet, {not_yet(name)}\n" for name in found if not_yet(name) and found[name]),
                end="",
            )
            if "Traceback" in ours.stderr:
                lines.append(f"amqpd logged a traceback:\n{ours.stderr}")
        if not options.patterns:
            with amqpd(Path(folder) / "api") as ours:
                lines += beside.differing(beside.answers(Address("127.0.0.1", ours.amqp_port, ours.http_port)))
    print("\n".join(lines))
    print(f"{len(chosen)} conversations in {took_s:.1f} s: {len(lines)} lines of difference")
    return 1 if lines else page()


def page() -> int:
    """Return docs/compatibility.md, made from the record and the lists of differences."""
    print(f"docs/compatibility.md {'was written anew' if whole.write() else 'is what it was'}")
    return 0


def recording(options: argparse.Namespace, chosen: Sequence[Conversation], folder: Path) -> list[str]:
    if options.rabbitmq:
        host, port, http_port = options.rabbitmq.split(":")
        return record(chosen, Address(host, int(port), int(http_port)), "RabbitMQ", options.jobs)
    reason = find_or_install(print)
    if reason:
        return [f"nothing was recorded: {reason}"]
    http_port = machine.free_port()
    peer = rabbitmq(folder / "rabbitmq", http_port)
    try:
        peer.start()
        _await_http(http_port)
        return record(chosen, Address(peer.host, peer.port, http_port, their_tools(peer)), peer.version, options.jobs)
    finally:
        peer.stop()


def _await_http(port: int) -> None:
    """Wait for the management plugin, which listens a little later than AMQP."""
    deadline = time.monotonic() + 60
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


if __name__ == "__main__":
    sys.exit(main())
