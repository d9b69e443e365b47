"""The performance guard: the broker's cost per message of S1 and S3, compared with its record.

    python -m interop.bench.guard            compare; exit code 1: more than 15 % more expensive, 2: cannot tell
    python -m interop.bench.guard --record   record today's cost for later comparisons

User-space instructions are counted if perf can count them on this processor, otherwise CPU time; never wall time. Four
measures keep other load on the machine out of the CPU time:

- Broker and generator share one processor and take turns, so that the messages per turn do not depend on other load.
- The cheapest of several short runs counts, because load can only add to a cost.
- A fixed piece of work is timed between the runs, and the cost is scaled by it: a slower processor slows both.
- The data is in memory if there is a tmpfs, because the cost of a disk depends on other writers.

A cost over the limit is measured a second time. If the machine was busy with other work all the time, the answer is
"cannot tell": under load a good result is valid, but a bad one is not.

guard.json has one entry per kind of machine (processor, Python, compiled or not, file system, unit), because costs of
two kinds are not comparable. On a machine without an entry the first run records it.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TypedDict

from . import generator, machine
from .brokers import Amqpd, StartFailed
from .generator import RunFailed
from .rounds import Plan, options, say

RECORD = Path(__file__).resolve().parent / "guard.json"
LIMIT = 0.15
GUARDED = ("S1", "S3")
BUSY_CORES = 0.5
MEMORY, MEMORY_NEEDED_BYTES = Path("/dev/shm"), 2 << 30
INSTRUCTIONS, CPU_TIME = "instructions", "CPU microseconds"


class Record(TypedDict):
    """An entry of guard.json. costs: per message; reference_ms: 0 if instructions are counted."""

    recorded: str
    costs: dict[str, float]
    reference_ms: float


@dataclass
class Costs:
    """The runs of each scenario per message, and the times of the reference work between them (ms; none for
    instructions).
    """

    unit: str
    runs: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in GUARDED})
    reference_ms: list[float] = field(default_factory=list)
    other_cores: list[float] = field(default_factory=list)

    def busy(self) -> float:
        """Return the cores used by other programs meanwhile; 0 for instructions, which are not affected."""
        return statistics.median(self.other_cores or [0.0])

    def cheapest(self) -> dict[str, float]:
        return {name: round(min(values), 4) for name, values in self.runs.items()}

    def scaled_to(self, recorded_ms: float) -> dict[str, float]:
        """Return the cheapest costs, scaled to the processor speed of the record."""
        factor = recorded_ms / min(self.reference_ms) if self.reference_ms and recorded_ms else 1.0
        return {name: cost * factor for name, cost in self.cheapest().items()}


def reference_ms() -> float:
    """Return the CPU milliseconds of a fixed piece of work with interpreter, dicts and copied bytes."""
    data = bytes(range(256)) * 4096
    began = time.thread_time()
    for _ in range(20):
        pieces, seen = [], {}
        for number in range(8000):
            at = number * 131 % 1_000_000
            piece = data[at : at + 100]
            seen[piece[:20]] = number
            pieces.append(piece)
        if len(b"".join(pieces)) != 800_000 or not seen:
            raise AssertionError("the reference work has gone wrong")
    return (time.thread_time() - began) * 1000


def too_dear(recorded: dict[str, float], now: dict[str, float]) -> list[str]:
    """Return the scenarios that cost more than the limit allows."""
    return [name for name, cost in now.items() if name in recorded and cost > recorded[name] * (1 + LIMIT)]


def counts_instructions(pid: int) -> bool:
    """Return True if perf can count a process's instructions here (virtual machines often hide the counters)."""
    return _instructions_in(["sleep", "0.05"], pid) is not None


def _instructions_in(command: Sequence[str], pid: int) -> float | None:
    """Return the user-space instructions of process `pid` while `command` runs, or None if perf cannot count."""
    stat = ["perf", "stat", "-x", ",", "-e", "instructions:u", "-p", str(pid), "--", *command]
    try:
        told = subprocess.run(stat, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return None
    found = re.search(r"^(\d+),[^,]*,instructions:u", told.stderr, re.MULTILINE)
    return float(found[1]) if found else None


def measure(plan: Plan, broker: Amqpd, runs: int, costs: Costs) -> None:
    """Add `runs` runs of each guarded scenario to `costs`. Raises: RunFailed."""
    for number in range(runs):
        for name in GUARDED:
            if costs.unit == CPU_TIME:
                costs.reference_ms.append(reference_ms())
                answer = generator.run(plan.program, broker.host, broker.port, broker.pid, options(plan, name))
                cost = answer["cpu_us"]
                costs.other_cores.append(answer["other_cores"])
            else:
                cost = _instructions_per_message(plan, broker, name)
            costs.runs[name].append(cost)
            say(f"[{number + 1}/{runs}] {name}: {cost:.3f} {costs.unit} a message")


def _instructions_per_message(plan: Plan, broker: Amqpd, name: str) -> float:
    """Run a fixed number of messages under perf. The set-up is included; it is only a few hundred commands."""
    count = 300_000
    run = [str(plan.program), *options(plan, name), "--warm", "0", "--count", f"{count}"]
    told = _instructions_in([*run, "--port", f"{broker.port}", "--pid", f"{broker.pid}"], broker.pid)
    if told is None:
        raise RunFailed("perf counted no instructions")
    return told / count


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m interop.bench.guard", description="cost per message")
    parser.add_argument("--record", action="store_true", help="take today's cost as the one to compare with")
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--time", type=float, default=0.6, metavar="SECONDS", help="per run (default: 0.6)")
    given = parser.parse_args(argv)
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})  # inherited by all processes started here
    in_memory = MEMORY if MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > MEMORY_NEEDED_BYTES else None
    with tempfile.TemporaryDirectory(prefix="amqpd-guard-", dir=in_memory) as name:
        directory = Path(name)
        broker = Amqpd(directory / "amqpd")
        try:
            broker.start()
            plan = Plan(generator.build(directory), given.time, 0, 0, verify=False)
            return _guard(given, plan, broker, directory)
        except (StartFailed, RunFailed) as error:
            say(f"cannot measure: {error}")
            return 2
        finally:
            broker.stop()


def _guard(given: argparse.Namespace, plan: Plan, broker: Amqpd, directory: Path) -> int:
    costs = Costs(INSTRUCTIONS if counts_instructions(broker.pid) else CPU_TIME)
    facts = machine.facts(directory)
    key = f"{facts['cpu']}, {facts['python']}, {broker.build}, {facts['filesystem']}, {costs.unit} a message"
    records: dict[str, Record] = json.loads(RECORD.read_text("utf-8")) if RECORD.exists() else {}
    measure(plan, broker, given.runs, costs)
    if given.record or key not in records:
        records[key] = {
            "recorded": datetime.now(UTC).strftime("%Y-%m-%d"),
            "costs": costs.cheapest(),
            "reference_ms": round(min(costs.reference_ms, default=0.0), 2),
        }
        RECORD.write_text(json.dumps(records, indent=1) + "\n", "utf-8")
        print(f"recorded for {key}: {costs.cheapest()}")
        if costs.busy() > BUSY_CORES:
            print(f"Other work kept {costs.busy():.1f} cores busy: record again when the machine is quiet.")
        return 0
    record = records[key]
    if too_dear(record["costs"], costs.scaled_to(record["reference_ms"])):
        say("dearer than allowed; once more, in case the machine was busy")
        measure(plan, broker, given.runs, costs)
    return judge(record, costs)


def judge(record: Record, costs: Costs) -> int:
    """Print the verdict; return the exit code."""
    known, known_ms = record["costs"], record["reference_ms"]
    now = costs.scaled_to(known_ms)
    dear = too_dear(known, now)
    if costs.reference_ms:
        print(f"reference work: {min(costs.reference_ms):.1f} ms, recorded {known_ms:.1f} ms; costs are scaled by it")
    for name, cost in now.items():
        change = (cost / known[name] - 1) * 100
        word = f"more than {LIMIT * 100:.0f} % dearer" if name in dear else "good"
        print(f"{name}: {cost:.3f} {costs.unit} a message, recorded {known[name]:.3f}: {change:+.1f} %: {word}")
    if dear and costs.busy() > BUSY_CORES:
        print(
            f"CANNOT TELL: other work kept {costs.busy():.1f} cores busy. Run it again when the machine is quiet "
            f"(less than {BUSY_CORES} cores)."
        )
        return 2
    if dear:
        print(
            f"DEARER: a message of {' and '.join(dear)} has become dearer since {record['recorded']}. `make bench "
            f'BENCH_ARGS="--alone --scenarios {",".join(dear)}"` shows where the time goes; if it is meant to be so: '
            "`make bench-guard BENCH_ARGS=--record`."
        )
    return 1 if dear else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
