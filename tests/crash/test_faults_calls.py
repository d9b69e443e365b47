"""Failing system calls: every confirmed message is there, no failed sync is repeated, other queues keep working.

With a simulated file system, a script runs once for each of its calls, which fails with EIO or ENOSPC, and once with
only short writes. Then the process is killed or the power is cut.

With a real process, strace lets the n-th call of a running broker fail under publishes with confirms. Then: kill -9, a
start without faults, and a count.
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from faults_disk import Injector, skip_or_fail
from numbered import Publisher
from quickclient import Gone, connect
from simulated_filesystem import SimulatedClock, SimulatedFileSystem

from amqpd.storage.journal import BLOCK_SIZE
from amqpd.storage.local_log import LocalLog
from amqpd.storage.log.record import RecordRoute
from amqpd.storage.queue_log import LogFailed
from amqpd.storage.storage import Storage
from amqpd.testing import BrokerFailed, BrokerProcess

ROUTE = RecordRoute(b"orders", b"eu.new")
DURABLE = b"\x10\x00\x02"


class HalfWrites(SimulatedFileSystem):
    """A file system whose writes write half of the given bytes."""

    def write(self, fd: int, data: bytes) -> int:
        return super().write(fd, data[: (len(data) + 1) // 2])

    def pwrite(self, fd: int, data: bytes, position: int) -> int:
        return super().pwrite(fd, data[: (len(data) + 1) // 2], position)


class Script:
    """Two queues with appends, acks, segment rolls and a transaction.

    fault: returns the error of each call, given its number and name, or None. turns: the length; 12 turns are about 320
    calls. journal: commits of both queues use a journal.
    """

    def __init__(
        self,
        fault: Callable[[int, str], OSError | None],
        turns: int = 12,
        *,
        half: bool = False,
        journal: bool = False,
    ) -> None:
        self.journal = journal
        self.turns = turns
        kind = HalfWrites if half else SimulatedFileSystem
        self.filesystem = kind(fault=self._count)
        self.count = 0
        self.bad: tuple[str, str] | None = None
        self.synced_after_failure: list[str] = []
        self.confirmed: dict[str, set[bytes]] = {"q": set(), "r": set()}
        self.settled: dict[str, set[bytes]] = {"q": set(), "r": set()}
        self.failed: set[str] = set()
        self.start_failed = False
        self._fault = fault
        self._posted: list[tuple[Callable[..., object], tuple[Any, ...]]] = []
        self._waiting: dict[str, list[tuple[int, bytes]]] = {"q": [], "r": []}
        self._number = 0

    def _count(self, name: str, path: str) -> OSError | None:
        if path.endswith("/reserve.swap"):  # skip the megabyte, which only takes time
            return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.count += 1
        if self.bad is not None and self.bad[0] == "fdatasync" and name == "fdatasync" and path == self.bad[1]:
            self.synced_after_failure.append(path)
        if self.bad is not None and name == "unlink" and path == self.bad[1]:
            self.bad = ("unlink", path)  # the next file with this path is another file
        error = self._fault(self.count, name)
        if error is not None:
            self.bad = (name, path)
        return error

    def run(self) -> None:
        try:
            storage = self.start(self.filesystem)
        except OSError:
            self.start_failed = True  # a broker that did not start has confirmed nothing
            return
        storage.commits.on_commit = self._committed
        self.storage = storage
        self.stores = {name: storage.open_queue("v", name, name, "/") for name in ("q", "r")}
        for turn in range(self.turns):
            for name, store in self.stores.items():
                self._append(name, store, turn)
            self._turn()
            if turn % 3 == 2:
                self._settle("q")
            if turn == 7:
                self._transaction()
        storage.commits.flush()
        self._loop()

    def start(self, filesystem: SimulatedFileSystem, boot: int = 1) -> Storage:
        return Storage(
            "/data",
            post=lambda function, *arguments: self._posted.append((function, arguments)),
            clock=SimulatedClock(),
            filesystem=filesystem,
            segment_size_bytes=6000 if self.journal else 1500,  # a commit with a new segment does not use the journal
            boot_id=f"{boot:032x}",
            inline=True,
            journal_size_bytes=10 * BLOCK_SIZE if self.journal else 0,
            journal_from=2,
        )

    def _append(self, name: str, store: LocalLog, turn: int) -> None:
        for size in (20, 200 if turn % 2 else 700):
            self._number += 1
            body = (b"%s%d." % (name.encode(), self._number)).ljust(size, b"-")
            try:
                offset = store.append_parts(ROUTE, DURABLE, body, True)
            except LogFailed:
                self.failed.add(name)
                continue
            except OSError:
                continue  # the log could not be opened for reading: nothing was appended
            self._waiting[name].append((self.storage.commits.generation, body))
            assert offset >= 0

    def _transaction(self) -> None:
        store = self.stores["q"]
        try:
            store.begin_transaction()
        except (LogFailed, OSError):
            return
        self._append("q", store, 0)
        store.end_transaction()
        self._turn()

    def _settle(self, name: str) -> None:
        store = self.stores[name]
        try:
            records = store.cursor.read(0, 1 << 20).records[:3]
        except OSError:
            return
        for record in records:
            store.mark_delivered(record.offset)
            store.ack(record.offset, len(record.body))
            self.settled[name].add(record.body)
        self._turn()

    def _turn(self) -> None:
        self.storage.commits.end_of_turn()
        self._loop()

    def _loop(self) -> None:
        for _ in range(50):  # failed writes are retried for ever, here without the pause of 50 ms
            if not self._posted:
                return
            function, arguments = self._posted.pop(0)
            function(*arguments)
        self._posted.clear()

    def _committed(self, generation: int, failed: list[LocalLog]) -> None:
        for name, waiting in self._waiting.items():
            done = [each for each in waiting if each[0] <= generation]
            self._waiting[name] = [each for each in waiting if each[0] > generation]
            if self.stores[name] in failed:
                self.failed.add(name)  # all of these are nacked
            else:
                self.confirmed[name] |= {body for _, body in done}

    def check(self, filesystem: SimulatedFileSystem, boot: int) -> None:
        """Assert that every message that was confirmed and not acked is there.

        An acked message may count as lost: if there is no space even for acks, a drained log is dropped without them.
        """
        filesystem.fault = lambda name, path: OSError(errno.ENOSPC, "") if path.endswith("/reserve.swap") else None
        storage = self.start(filesystem, boot)
        for name in ("q", "r"):
            store = storage.open_queue("v", name, name, "/")
            bodies = [record.body for record in store.cursor.read(0, 1 << 30).records]
            assert len(bodies) == len(set(bodies)), f"{name}: a message is there twice"
            lost = self.confirmed[name] - set(bodies) - self.settled[name]
            assert not lost, f"{name}: confirmed and not there: {sorted(lost)[:3]}"
        storage.close(clean=False)


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC], ids=["EIO", "ENOSPC"])
@pytest.mark.parametrize("again", [False, True], ids=["once", "from-then-on"])
@pytest.mark.usefixtures("quiet")
@pytest.mark.timeout(900)
def test_failure_of_sampled_calls_loses_no_confirmed_message(number: int, again: bool) -> None:
    sweep(number, again, 10)


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC], ids=["EIO", "ENOSPC"])
@pytest.mark.parametrize("again", [False, True], ids=["once", "from-then-on"])
@pytest.mark.parametrize("step", [11, pytest.param(1, marks=pytest.mark.ci_long)], ids=["sampled", "each"])
@pytest.mark.usefixtures("quiet")
@pytest.mark.timeout(900)
def test_failure_of_calls_with_a_journal_loses_no_confirmed_message(number: int, again: bool, step: int) -> None:
    sweep(number, again, step, journal=True)


@pytest.mark.ci_long
@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC], ids=["EIO", "ENOSPC"])
@pytest.mark.parametrize("again", [False, True], ids=["once", "from-then-on"])
@pytest.mark.usefixtures("quiet")
@pytest.mark.timeout(900)
def test_failure_of_each_call_loses_no_confirmed_message(number: int, again: bool) -> None:
    sweep(number, again, 1)


@pytest.mark.usefixtures("quiet")
def test_short_writes_are_continued() -> None:
    all_answered, script = Script(lambda count, name: None), Script(lambda count, name: None, half=True)
    all_answered.run()
    script.run()
    assert not script.failed and script.confirmed == all_answered.confirmed and script.settled == all_answered.settled
    assert script.count > all_answered.count + 100
    script.check(script.filesystem.killed(), 1)
    script.check(script.filesystem.crashed(1), 2)


@pytest.mark.on_demand
@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC], ids=["EIO", "ENOSPC"])
@pytest.mark.parametrize("again", [False, True], ids=["once", "from-then-on"])
@pytest.mark.usefixtures("quiet")
@pytest.mark.timeout(0)
def test_failure_of_each_call_of_long_script_loses_no_confirmed_message(number: int, again: bool) -> None:
    assert sweep(number, again, int(os.environ.get("TEST_CRASH_STEP", "1")), turns=90) >= 2000


def sweep(number: int, again: bool, step: int, turns: int = 12, *, journal: bool = False) -> int:
    """Fail every `step`-th call. Return the number of calls of the script."""
    fault_free = Script(lambda count, name: None, turns, journal=journal)
    fault_free.run()
    assert not fault_free.failed and len(fault_free.confirmed["q"]) == 2 * turns + 2 * (turns > 7)
    assert fault_free.storage.journal.frame_count > (3 if journal else -1)
    failures = confirmed = 0
    chosen = range(1 + number % step, fault_free.count + 1, step)
    for bad in chosen:

        def fault(count: int, name: str, bad: int = bad) -> OSError | None:
            if count == bad or (again and count > bad and name in {"write", "pwrite", "fdatasync"}):
                return OSError(number, os.strerror(number))
            return None

        script = Script(fault, turns, journal=journal)
        where = f"call {bad} of {fault_free.count}"
        try:
            script.run()
            where += f", {script.bad}"
            if not again:
                assert not script.synced_after_failure, "a file whose sync failed was synced again"
                assert len(script.failed) <= 1 or (script.bad is not None and script.bad[0] == "syncfs")
            script.check(script.filesystem.killed(), 1)
            script.check(script.filesystem.crashed(bad), 2)
        except AssertionError as error:
            raise AssertionError(f"{where}: {error}") from error
        failures += script.bad is not None
        confirmed += len(script.confirmed["q"]) + len(script.confirmed["r"])
    assert failures == len(chosen)
    print(f"\n{failures} failing calls, {confirmed} confirmed nevertheless, 0 false confirms")
    return fault_free.count


# -- with a real process


CALLS = (
    ("fdatasync", "EIO", 12),
    ("fdatasync", "ENOSPC", 12),
    ("fallocate", "ENOSPC", 3),
    ("mkdir", "EIO", 3),
    ("mkdir", "ENOSPC", 3),
    ("rename", "ENOSPC", 2),
    ("fsync", "EIO", 6),
    ("openat", "EMFILE", 12),
    ("writev", "EIO", 12),
    ("writev", "ENOSPC", 12),
)
"""Calls that three new queues and their publishes make: call, error, and the least number of such calls."""
TURNS, TURNS_MAX = 20, 200
"""Turns of three publishes: after TURNS the load ends if the fault was hit, at the latest after TURNS_MAX."""


async def failing_calls(tmp_path: Path, count: int, seed: int) -> None:
    """Inject three faults into each data directory, each in a fresh process.

    A connection that breaks because the write to its socket failed is no violation.
    """
    reason = await asyncio.to_thread(Injector.why_not)
    skip_or_fail("failing calls", reason)
    rng = random.Random(seed)
    hits = nacked = acked = unanswered = others = 0
    settings = {"storage.segment_size_bytes": 1 << 16}
    broker = BrokerProcess(tmp_path / "none", settings=settings)
    for number in range(count):
        call, error, when_max = CALLS[number % len(CALLS)]
        when = rng.randint(1, when_max)
        queues = [f"q{number}.{each}" for each in range(3)]
        fault = f"{call}:error={error}:when={when}"
        try:
            if number % 3 == 0:
                await asyncio.to_thread(broker.kill)
                broker = BrokerProcess(tmp_path / f"data{number}", settings=settings)
                await asyncio.to_thread(broker.start)
            link = await connect(broker.amqp_port)
            for queue in queues:
                await link.declare_queue(queue)
            await link.confirm_select()
            publisher = Publisher(link)
            hits += await publish_under_fault(broker.pid, publisher, queues, fault, tmp_path / f"trace{number}")
            published_after = {publisher.publish(queue) for queue in queues}
            all_answered = await publisher.answered()
            message_if_unanswered = f"{fault}: {publisher.unanswered} publishes without an answer\n{broker.stderr}"
            assert all_answered or link.gone.is_set() or call == "writev", message_if_unanswered
            unanswered += not all_answered
            if all_answered:
                items: Any = broker.api("GET", "/api/queues")
                sick = {item["name"] for item in items if item["state"] == "down"}
                live = {publisher.queue_of[each] for each in published_after & publisher.acked}
                assert live == set(queues) - sick, f"{fault}: {live} live, {sick} are down"
                # strace counts per thread: one call of the event loop and one of the fsync thread may have failed.
                assert len(sick) <= 2, f"{fault}: at most two calls failed, but {sick} are down"
                others += len(live) if sick else 0
            assert broker.running, f"{fault}: the broker ended\n{broker.stderr}"
            assert "Traceback" not in broker.stderr, f"{fault}\n{broker.stderr}"
            await asyncio.to_thread(broker.kill)
            await link.gone.wait()
            await asyncio.to_thread(broker.start)
            there = await drain(broker.amqp_port, queues)
            lost = [each for each in publisher.acked if each not in there.get(publisher.queue_of[each], ())]
            assert not lost, f"{fault}: confirmed and lost: {lost[:5]} of {len(publisher.acked)}"
            assert not publisher.doubled, f"{fault}: answered twice: {publisher.doubled[:5]}"
            nacked += len(publisher.nacked)
            acked += len(publisher.acked)
        except BaseException:
            await asyncio.to_thread(broker.kill)
            raise
    await asyncio.to_thread(broker.kill)
    assert hits >= count * 9 // 10, f"only {hits} of {count} faults were hit"
    print(
        f"\n{count} runs, {hits} failing calls, seed {seed}: {acked} acked, {nacked} nacked, 0 false confirms; "
        f"{unanswered} connections broken; other queues kept working {others} times"
    )


async def publish_under_fault(pid: int, publisher: Publisher, queues: list[str], fault: str, trace: Path) -> bool:
    """Publish while strace lets a call of the broker fail. Return whether a call failed."""
    injector = await asyncio.to_thread(Injector, pid, fault, trace)
    try:
        for turn in range(TURNS_MAX):  # strace counts per thread, and the thread that makes the call is not known
            if turn >= TURNS and injector.hits():
                break
            for queue in queues:
                publisher.publish(queue)
            if not await publisher.answered():
                break
    finally:
        await asyncio.to_thread(injector.end)
    return injector.hits() > 0


async def drain(port: int, queues: list[str]) -> dict[str, set[int]]:
    link = await connect(port)
    there: dict[str, set[int]] = {}
    for queue in queues:
        numbers = there.setdefault(queue, set())
        while (message := await link.get(queue, no_ack=True)) is not None:
            text, _, rest = message.body.partition(b";")
            assert rest == bytes(int(text) % 3000), f"another body of {text!r}"
            assert int(text) not in numbers
            numbers.add(int(text))
    link.close()
    await link.gone.wait()
    return there


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_20_failing_calls_lose_no_confirmed_message(tmp_path: Path) -> None:
    await failing_calls(tmp_path, 20, seed=1)


@pytest.mark.ci_long
@pytest.mark.timeout(1700)
async def test_150_failing_calls_lose_no_confirmed_message(tmp_path: Path) -> None:
    """Three brokers run at the same time, since most of the time is spent in starts."""
    for lane in range(3):
        (tmp_path / str(lane)).mkdir()
    await asyncio.gather(*(failing_calls(tmp_path / str(lane), 50, seed=300 + lane) for lane in range(3)))


def amqpctl(broker: BrokerProcess, *arguments: str) -> str:
    command = [sys.executable, "-P", "-m", "amqpd.cli", "--data-dir", str(broker.data_dir), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout


@pytest.mark.slow
async def test_failed_sync_marks_queue_down_and_raises_alarm(tmp_path: Path) -> None:
    """The queue refuses publishes but serves its synced messages; other queues keep working."""
    reason = await asyncio.to_thread(Injector.why_not)
    skip_or_fail("failing sync", reason)
    broker = BrokerProcess(tmp_path / "data")
    injector: Injector | None = None
    try:
        await asyncio.to_thread(broker.start)
        link = await connect(broker.amqp_port)
        for queue in ("sick", "well"):
            await link.declare_queue(queue)
        await link.confirm_select()
        publisher = Publisher(link)
        safe = publisher.publish("sick")
        publisher.publish("well")
        assert await publisher.answered()
        trace = tmp_path / "trace"
        injector = await asyncio.to_thread(Injector, broker.pid, "fdatasync:error=EIO:when=1", trace)
        bad = publisher.publish("sick")
        assert await publisher.answered()
        assert bad in publisher.nacked
        for _ in range(3):
            bad = publisher.publish("sick")
            good = publisher.publish("well")
            assert await publisher.answered()
            assert bad in publisher.nacked and good in publisher.acked
        await asyncio.to_thread(injector.end)
        injector = None
        syncs = [line for line in trace.read_text(errors="replace").splitlines() if "fdatasync(" in line]
        (failed,) = [line for line in syncs if "(INJECTED)" in line]
        path = failed.partition("<")[2].partition(">")[0]
        assert [line for line in syncs if path in line] == [failed], "a file whose sync failed was synced again"
        assert any(path not in line for line in syncs), "the other queue was not synced"
        states = {item["name"]: item["state"] for item in broker.api("GET", "/api/queues")}  # type: ignore[attr-defined]
        assert states == {"sick": "down", "well": "running"}
        with pytest.raises(BrokerFailed, match="503"):
            broker.api("GET", "/api/health/checks/alarms")
        listed = await asyncio.to_thread(amqpctl, broker, "list_queues", "name", "state", "--formatter", "json")
        assert {item["name"]: item["state"] for item in json.loads(listed)} == {"sick": "down", "well": "running"}
        assert "the log of queue 'sick' in vhost '/' failed" in await asyncio.to_thread(amqpctl, broker, "status")
        assert broker.says("accepts nothing more") and "sick" in broker.stderr
        message = await link.get("sick", no_ack=True)
        assert message is not None and message.body.startswith(b"%d;" % safe)
        rest = await link.get("sick", no_ack=True)  # a nacked message may be served or not
        assert rest is None or int(rest.body.partition(b";")[0]) in publisher.nacked
        link.close()
        await asyncio.to_thread(broker.kill)
        await asyncio.to_thread(broker.start)
        again = await connect(broker.amqp_port)
        again.on_confirm = None
        await again.confirm_select()
        publisher = Publisher(again)
        publisher.publish("sick")
        assert await publisher.answered() and publisher.acked == {1}, "the queue does not work after a restart"
        again.close()
    except Gone as error:
        raise AssertionError(f"the connection ended: {error}\n{broker.stderr}") from error
    finally:
        if injector is not None:
            await asyncio.to_thread(injector.end)
        await asyncio.to_thread(broker.kill)
