"""kill -9 and power cuts under load: a stream and a queue with clients of AMQP and Kafka.

The stream has four publishers and two readers of AMQP, four idempotent and two transactional producers and two groups
of Kafka (`kafka_load.py`). The queue has publishers, consumers and members of a share group (`kafka_work.py`).
`kafka_story.py` has the judges. `TEST_CRASH_CYCLES`, `TEST_CRASH_CUTS` and `TEST_CRASH_SEED` set other cycles.

A power cut needs root and a loop device, see `faults_disk.py`.
"""

from __future__ import annotations

import asyncio
import gc
import os
import random
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pamqp.encode
import pytest
from faults_disk import LoopDisk, skip_or_fail, stop_process
from kafka_load import ARGUMENTS, STREAM, KafkaLoad
from kafka_story import Group, KafkaStory, Reader, StoryTransaction, WorkStory
from kafka_work import QUEUE, WorkLoad
from quickclient import connect

from amqpd.testing import BrokerProcess

pytestmark = pytest.mark.filterwarnings(
    # kafka-python leaks the socket of a connection that it cannot make.
    "ignore::ResourceWarning",
    "ignore::pytest.PytestUnraisableExceptionWarning",
)


STORY_CYCLES = 20
"""Kills of one data directory: its judges read the whole log in each life."""


def free_port() -> int:
    """Return a port that no client gets by itself while the broker is down."""
    for port in range(20_000 + os.getpid() % 5000, 30_000):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError("there is no free port")


async def until_loaded(load: KafkaLoad, work: WorkLoad) -> None:
    """Wait until senders, readers and groups of both protocols have worked in this life."""
    story = load.story
    worked = dict(work.story.totals)
    before, answered = dict(story.totals), [group.answered for group in load.groups]
    deadline = time.monotonic() + 180
    while (
        story.totals["confirmed"] < before["confirmed"] + 300
        or story.totals["read"] < before["read"] + 300
        or story.totals["committed"] < before["committed"] + 3
        or any(work.story.totals[each] < worked[each] + 30 for each in ("confirmed", "delivered", "accepted"))
        or any(group.answered == old for group, old in zip(load.groups, answered, strict=True))
    ):
        assert time.monotonic() < deadline, f"the load does not start: {story.totals}, {work.story.totals}"
        load.check()
        work.check()
        await asyncio.sleep(0.02)


async def kill_cycles(data_dir: Path, cycles: int, seed: int, disk: LoopDisk | None = None) -> KafkaStory:
    """Load, kill and restart; every fifth life ends before the load is back. Then all is judged.

    disk: its power is cut instead of the kill.
    """
    chance = random.Random(seed)
    port = free_port()
    story, work_story = KafkaStory(), WorkStory()
    load = KafkaLoad(story, f"127.0.0.1:{port}", seed)
    work = WorkLoad(work_story, f"127.0.0.1:{port}", seed)
    settings = {"kafka.port": port, "kafka.host": "127.0.0.1", "log.level": "warning"}
    settings |= {"limits.disk_free_bytes": 1 << 20, "amqp.handshake_timeout_s": 120}
    broker = BrokerProcess(data_dir, settings=settings)
    try:
        for cycle in range(cycles + 1):
            await asyncio.to_thread(broker.start)
            if cycle == 0:
                link = await connect(broker.amqp_port)
                await link.declare_queue(STREAM, table=pamqp.encode.field_table(ARGUMENTS))
                await link.declare_queue(QUEUE)
                link.close()
                load.start()
            await load.begin_life(broker.amqp_port)
            await work.begin_life(broker.amqp_port)
            if cycle % 5 != 3 or cycle == cycles:
                try:
                    await until_loaded(load, work)
                except AssertionError as error:
                    error.add_note(broker.stderr)
                    raise
                await load.look()
            await asyncio.sleep(chance.uniform(0.0, 1.0))
            if cycle == cycles:
                break
            if disk is not None:
                await asyncio.to_thread(stop_process, broker.pid)
                await asyncio.to_thread(disk.cut)
            await asyncio.to_thread(broker.kill)
            await load.end_life()
            await work.end_life()
            if disk is not None:
                work_story.power_cut()
                await asyncio.to_thread(disk.unmount)
                await asyncio.to_thread(disk.mount)
                (data_dir / "boot-id").write_text(f"{cycle:032x}\n")
            assert "Traceback" not in broker.stderr, broker.stderr
            _assert_kept(story, work_story)
        await load.stop()
        await load.look()
        await work.drain()
        assert "Traceback" not in broker.stderr, broker.stderr
    finally:
        try:
            await asyncio.to_thread(broker.kill)
            await load.end_life()
            await work.end_life()
        finally:
            await load.abort()  # else threads of a producer keep the loop from closing
    ends = "kills" if disk is None else "power cuts"
    print(f"\nseed {seed}, {cycles} {ends}: {story.totals}, {work_story.totals}")
    _assert_kept(story, work_story)
    return story


def _assert_kept(*stories: KafkaStory | WorkStory) -> None:
    violations = [each for story in stories for each in story.violations]
    assert not violations, "\n".join(violations)


async def power_cuts(tmp_path: Path, cuts: int, seed: int) -> None:
    skip_or_fail("power cut", await asyncio.to_thread(LoopDisk.why_not))
    disk = LoopDisk(tmp_path, 512 << 20)
    disk.mount()
    try:
        await kill_cycles(disk.path / "data", cuts, seed, disk)
    finally:
        await asyncio.to_thread(disk.unmount)


@pytest.fixture(autouse=True)
def _close_sockets() -> Iterator[None]:
    """Close the sockets of refused connections, which kafka-python leaves open; otherwise a later test fails."""
    yield
    for each in gc.get_objects():
        is_open = isinstance(each, socket.socket) and each.fileno() >= 0 and each.family == socket.AF_INET
        if is_open and each.getsockname()[0] == "0.0.0.0":
            each.close()


@pytest.mark.slow
async def test_two_kills_keep_what_clients_of_both_protocols_were_answered(tmp_path: Path) -> None:
    await kill_cycles(tmp_path / "data", 2, seed=1)


@pytest.mark.ci_long
@pytest.mark.timeout(1700)
async def test_ten_kills_keep_what_clients_of_both_protocols_were_answered(tmp_path: Path) -> None:
    await kill_cycles(tmp_path / "data", 10, seed=20)


@pytest.mark.on_demand
@pytest.mark.timeout(0)
async def test_many_kills_keep_what_clients_of_both_protocols_were_answered(tmp_path: Path) -> None:
    cycles = int(os.environ.get("TEST_CRASH_CYCLES", "30"))
    seed = int(os.environ.get("TEST_CRASH_SEED", "50"))
    for first in range(0, cycles, STORY_CYCLES):
        await kill_cycles(tmp_path / f"data{first}", min(STORY_CYCLES, cycles - first), seed + first)


@pytest.mark.ci_long
@pytest.mark.timeout(1700)
async def test_three_power_cuts_keep_what_clients_of_both_protocols_were_answered(tmp_path: Path) -> None:
    await power_cuts(tmp_path, 3, seed=30)


@pytest.mark.on_demand
@pytest.mark.timeout(0)
async def test_many_power_cuts_keep_what_clients_of_both_protocols_were_answered(tmp_path: Path) -> None:
    cuts = int(os.environ.get("TEST_CRASH_CUTS", "10"))
    seed = int(os.environ.get("TEST_CRASH_SEED", "60"))
    for first in range(0, cuts, STORY_CYCLES):
        directory = tmp_path / str(first)
        directory.mkdir()
        await power_cuts(directory, min(STORY_CYCLES, cuts - first), seed + first)


# -- the judge


def story_of_three() -> tuple[KafkaStory, list[tuple[int, bytes]]]:
    story = KafkaStory()
    story.confirms(b"p:0", 0)
    story.confirms(b"a:0")
    story.confirms(b"p:1", 2)
    return story, [(0, b"p:0"), (1, b"a:0"), (2, b"p:1")]


def test_judge_accepts_kept_promises() -> None:
    story, records = story_of_three()
    group, reader = Group("g"), Reader("r")
    for offset, body in records:
        story.reads(reader, offset, body)
    story.commits(group, 2)
    story.reads_first(group, reader, 0)
    story.committed(group, 2)
    story.reads_first(group, reader, 2)
    story.found([*records, (3, b"unconfirmed:7")], story.place)
    assert not story.violations


@pytest.mark.parametrize(
    ("records", "words"),
    [
        ([(0, b"p:0"), (1, b"a:0")], "confirmed or read, and are lost"),
        ([(0, b"p:0"), (1, b"p:1"), (2, b"a:0")], "stands at 2 and at 1"),
        ([(0, b"p:0"), (1, b"a:0"), (2, b"p:1"), (3, b"p:1")], "stands at 2 and at 3"),
        ([(0, b"p:0"), (1, b"a:0"), (3, b"p:1")], "stands at 2 and at 3"),
        ([(0, b"p:0"), (2, b"p:1"), (1, b"a:0")], "offset 1 comes after 2"),
        ([(0, b"p:0"), (1, b"a:0"), (2, b"p:1"), (3, b"a:2"), (4, b"a:1")], "comes after number 2"),
    ],
)
def test_judge_reports_each_kind_of_wrong_log(records: list[tuple[int, bytes]], words: str) -> None:
    story, _ = story_of_three()
    story.found(records, list(story.place))
    assert any(words in each for each in story.violations), story.violations


def assert_violations(violations: list[str], words: list[str]) -> None:
    assert len(violations) == len(words), violations
    for each, text in zip(violations, words, strict=True):
        assert text in each


def test_judge_reports_each_kind_of_wrong_reader() -> None:
    story, records = story_of_three()
    group, reader = Group("g"), Reader("r")
    story.reads(reader, 1, b"a:0")
    story.reads(reader, 2, b"other:1")
    story.reads(reader, 1, b"a:0")
    story.commits(group, 3)
    story.finds(group, 2, "a look")
    story.committed(group, 3)
    story.reads_first(group, reader, 0)
    story.place.pop(b"other:1")
    story.at[2] = b"p:1"
    story.found(records, [])
    words = ["offset 2 showed", "was given 1, expected", "which no member committed", "is at 0, and 3 was answered"]
    assert_violations(story.violations, [*words, "r went on from 0 to 1, without b'p:0'"])


def test_readers_skip_markers_and_aborted_transactions() -> None:
    story, records = story_of_three()
    reader = Reader("r")
    for offset, body in (*records, (6, b"p:2")):
        story.reads(reader, offset, body)
    story.found([*records, (6, b"p:2")], story.place)
    assert not story.violations


def transaction_of(story: KafkaStory, first: int, *bodies: bytes) -> StoryTransaction:
    transaction = StoryTransaction()
    for offset, body in enumerate(bodies, first):
        story.writes(transaction, body)
        transaction.bodies[body] = offset
    return transaction


def test_judge_reports_each_kind_of_broken_transaction() -> None:
    story = KafkaStory()
    still_open = transaction_of(story, 0, b"t:0")
    story.reads(Reader("r"), 0, b"t:0")
    story.fenced(still_open)
    story.reads(Reader("r"), 0, b"t:0")
    committed = transaction_of(story, 2, b"u:0", b"u:1")
    story.ends(committed, True)
    story.ended(committed)
    undecided = transaction_of(story, 7, b"v:0", b"v:1")
    story.ends(undecided, True)
    story.fenced(undecided)
    story.found([(3, b"u:1"), (8, b"v:1")], [b"u:0"])
    words = ["its transaction is open", "its transaction is aborted", "1 records were confirmed", "1 of 2 records"]
    assert_violations(story.violations, words)


def test_an_undecided_transaction_that_was_absent_stays_absent() -> None:
    story = KafkaStory()
    transaction = transaction_of(story, 0, b"t:0", b"t:1")
    story.ends(transaction, True)
    story.fenced(transaction)
    story.found([], [])
    assert not story.violations
    story.reads(Reader("r"), 0, b"t:0")
    assert_violations(story.violations, ["its transaction is aborted"])


def test_judge_of_a_queue_reports_each_kind_of_violation() -> None:
    story = WorkStory()
    for body in (b"1", b"2", b"3"):
        story.confirms(body)
    story.delivers(b"1", False, "consumer")
    story.delivers(b"1", True, "member")
    story.delivers(b"2", True, "consumer")
    assert not story.violations
    assert story.missing() == [b"3"]
    story.delivers(b"2", False, "member")
    story.accepts(b"1")
    story.delivers(b"1", True, "consumer")
    assert_violations(story.violations, ["again, without a mark", "whose acknowledgement was answered"])
    story.power_cut()
    story.delivers(b"1", True, "consumer")
    assert len(story.violations) == 2
