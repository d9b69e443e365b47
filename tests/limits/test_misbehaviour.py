"""One client's misbehaviour must not be the others' delay.

The witness publishes 100 messages a second and takes them back over a connection of its own; a round trip counts from
the moment the message was due to be published, so a stall counts for every message that fell into it. The misbehaviour
runs in a process of its own. The bound of issue 2, 50 ms at the 99th percentile over 30 s, is tried on demand: only a
quiet machine can say. The short form, with the best of ATTEMPTS, finds what is ten times worse.
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from misbehave import KINDS, fill
from quickclient import connect
from slow import BOUND_MS, LAX_MS, RATE, Machine, percentile, round_trips

from amqpd.testing import BrokerProcess

ATTEMPTS: Final = 3
LONG_S: Final = 30.0
MISBEHAVIOURS: Final = ["half_frame", "not_reading", "large_body", "channels", "logins"]
"""Issue 2's. `large_bodies`, all the time, goes beyond it and is tried on demand alone."""
CONSUMER_MAX_MB: Final = 2.4
"""The 2 MiB of output that it may have waiting, and what the allocator keeps beside them."""


@contextlib.contextmanager
def misbehaving(kind: str, port: int, seconds: float) -> Iterator[subprocess.Popen[str]]:
    script = Path(__file__).parent / "misbehave.py"
    process = subprocess.Popen(
        [sys.executable, "-P", str(script), kind, str(port), str(seconds)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n", "the misbehaviour did not begin"
        yield process
    finally:
        process.kill()
        process.communicate()


async def witness(data_dir: Path, kind: str, seconds: float) -> tuple[list[float], float]:
    """The round trips, and how late the machine woke somebody meanwhile at worst, in milliseconds."""
    assert kind in KINDS
    broker = BrokerProcess(data_dir, settings={"log.level": "error"})
    try:
        await asyncio.to_thread(broker.start)
        alone = await round_trips(broker.amqp_port, 1.0)
        with misbehaving(kind, broker.amqp_port, seconds + 3.0) as process:
            machine = Machine(broker.pid)
            took, _ = await asyncio.gather(round_trips(broker.amqp_port, seconds), machine.watch(seconds))
            assert process.poll() is None, "the misbehaviour ended before the measurement"
            assert process.stdout is not None
            what = (await asyncio.to_thread(process.stdout.readline)).strip()
            assert what.startswith("end:"), "the misbehaving client failed"
        p99 = percentile(took, 0.99)
        print(
            f"\n{kind}, {seconds:g} s: p50 {percentile(took, 0.5):.1f}, p99 {p99:.1f}, worst {max(took):.1f} ms; "
            f"alone p99 {percentile(alone, 0.99):.1f} ms; {what}"
        )
        assert "Traceback" not in broker.stderr, broker.stderr
        return took, machine.worst_ms
    finally:
        await asyncio.to_thread(broker.kill)


@pytest.mark.parametrize("kind", MISBEHAVIOURS)
async def test_the_others_go_on(tmp_path: Path, kind: str) -> None:
    """A single body is over in less than the short form takes, so what it delays is counted as a part of 30 s."""
    late_max = int((LONG_S if kind == "large_body" else 5.0) * RATE / 100)
    late = []
    for attempt in range(ATTEMPTS):
        took, worst_ms = await witness(tmp_path / f"data{attempt}", kind, 5.0)
        late.append(sum(each >= LAX_MS + 2 * worst_ms for each in took))
        if late[-1] < late_max:
            break
    assert min(late) < late_max, f"{kind}: {late} of {len(took)} round trips took {LAX_MS} ms or more than the machine"


@pytest.mark.compiled_only
@pytest.mark.on_demand
@pytest.mark.parametrize("kind", [*MISBEHAVIOURS, "large_bodies"])
async def test_the_others_go_on_for_thirty_seconds(tmp_path: Path, kind: str) -> None:
    took, _ = await witness(tmp_path / "data", kind, LONG_S)
    p99 = percentile(took, 0.99)
    assert p99 < BOUND_MS, f"{kind}: the 99th percentile is {p99:.1f} ms"


def rss_mb(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise AssertionError(f"process {pid} has no VmRSS")


@pytest.mark.parametrize("size", [1024, 65536])
async def test_memory_of_consumers_that_do_not_read(tmp_path: Path, size: int) -> None:
    """Fifty of them, to whom 256 MiB are due: what each may have waiting, and no more."""
    broker = BrokerProcess(tmp_path / "data", settings={"log.level": "error"})
    try:
        await asyncio.to_thread(broker.start)
        await fill(broker.amqp_port, "due", (256 << 20) // size, size)
        with misbehaving("slow_consumers", broker.amqp_port, 20.0) as process:
            await asyncio.sleep(0.5)
            before = rss_mb(broker.pid)
            assert process.stdin is not None and process.stdout is not None
            process.stdin.write("go\n")
            process.stdin.flush()
            assert await asyncio.to_thread(process.stdout.readline) == "consuming\n"
            highest = before
            for _ in range(20):
                await asyncio.sleep(0.1)
                highest = max(highest, rss_mb(broker.pid))
            link = await connect(broker.amqp_port)
            _, left, consumers = await link.declare_queue("due", passive=True)
            link.close()
            await link.gone.wait()
        assert consumers == 50
        assert left < (256 << 20) // size, "nothing was delivered"
        each = (highest - before) / 50
        print(
            f"\n{size} B: {before:.0f} MB before, {highest:.0f} at most: {each:.2f} MB for each consumer; {left} left"
        )
        assert each <= CONSUMER_MAX_MB
    finally:
        await asyncio.to_thread(broker.kill)
