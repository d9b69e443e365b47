"""The cost of an export for the broker beside it: S3 with and without an export, as rows of `make bench-export`.

    python -m interop.bench.export [--rounds 6] [--time 4]

The broker gets a backlog of records of 1 KiB in a second queue. A separate process on local[2] exports that queue to
Parquet again and again. It is resumed and suspended in turn (SIGSTOP, all of its processes), so that runs with and
without it alternate. The figure is the broker's CPU time per message of S3: the median of the cheapest half of the runs
of either kind, because other load on the machine can only add to it.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from . import generator
from .brokers import Amqpd, StartFailed
from .generator import RunFailed
from .rounds import Plan, options, say

QUEUE = "perfS4.q0"
"""The queue in which amqpload's S4pub leaves its messages."""
LIMIT = 0.10
READY = "ready"
ROOT = str(Path(__file__).parents[2])
# The checkout is last on the path, so the installed amqpd is used.
DECODE = (
    f"import runpy, sys; sys.path.append({ROOT!r}); "
    "runpy.run_module('interop.bench.export_decode', run_name='__main__')"
)


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m interop.bench.export", description="S3 beside an export")
    parser.add_argument("--rounds", type=int, default=6, help="pairs of runs (default: 6)")
    parser.add_argument("--time", type=float, default=4.0, metavar="SECONDS", help="per run (default: 4)")
    parser.add_argument("--records", type=int, default=300_000, help="in the queue that is exported (default: 300,000)")
    given = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="amqpd-bench-") as name:
        directory = Path(name)
        broker = Amqpd(directory / "amqpd")
        try:
            broker.start()
            plan = Plan(generator.build(directory), given.time, 0, 0, verify=False)
            backlog = ["-s", "S4pub", "--body", "1024", "--count", str(given.records)]
            generator.run(plan.program, broker.host, broker.port, broker.pid, backlog)
            with exporting(broker.data_dir, directory / "lake") as session:
                return _judge(plan, broker, session, given.rounds)
        except (StartFailed, RunFailed) as error:
            say(f"cannot measure: {error}")
            return 2
        finally:
            broker.stop()


def _judge(plan: Plan, broker: Amqpd, session: int, rounds: int) -> int:
    found: dict[bool, list[float]] = {False: [], True: []}
    rates: dict[bool, list[float]] = {False: [], True: []}
    for number in range(rounds):
        for beside in (False, True) if number % 2 else (True, False):
            if beside:
                _signal(session, signal.SIGCONT)
            try:
                result = generator.run(plan.program, broker.host, broker.port, broker.pid, options(plan, "S3"))
            finally:
                _signal(session, signal.SIGSTOP)
            found[beside].append(result["cpu_us"])
            rates[beside].append(result["rate"])
            say(f"[{number + 1}/{rounds}] {'beside an export' if beside else 'alone'}: {result['cpu_us']:.3f} us")
    alone, beside_it = (cheapest_half(found[beside]) for beside in (False, True))
    print("| S3 | broker's CPU microseconds per message | messages/s, median |\n|---|---|---|")
    print(f"| alone | {alone:.3f} | {statistics.median(rates[False]):,.0f} |")
    print(f"| beside an export of another queue | {beside_it:.3f} | {statistics.median(rates[True]):,.0f} |")
    change = beside_it / alone - 1
    print(f"\nAn export costs the broker {change * 100:+.1f} % per message; {LIMIT * 100:.0f} % is what it may.")
    return int(change > LIMIT)


def cheapest_half(costs: Sequence[float]) -> float:
    """Return the median of the cheapest half of the runs, at least one run."""
    return statistics.median(sorted(costs)[: max(1, len(costs) // 2)])


@contextmanager
def exporting(data_dir: Path, target: Path) -> Iterator[int]:
    """Start an endless export, suspended. Yield the session of its processes. Raises: RunFailed."""
    bench = [sys.executable, "-P", "-c", DECODE, "--forever", str(data_dir), QUEUE, str(target)]
    process = subprocess.Popen(bench, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        assert process.stdout is not None
        if process.stdout.readline().strip() != READY:
            raise RunFailed("the export did not start")
        _signal(process.pid, signal.SIGSTOP)
        yield process.pid
    finally:
        _signal(process.pid, signal.SIGKILL)
        process.wait()


def _signal(session: int, number: signal.Signals) -> None:
    """Signal every process of the session: Spark's workers have their own process groups."""
    for entry in Path("/proc").glob("[0-9]*"):
        pid = int(entry.name)
        try:
            if os.getsid(pid) == session:
                os.kill(pid, number)
        except ProcessLookupError:
            continue


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
