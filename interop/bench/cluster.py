"""`python -m interop.bench.cluster` (make bench-cluster): three amqpd nodes over three Kafka brokers, and three
RabbitMQ nodes with quorum queues, side by side. `--help` lists the options, README.md has the results.

Both sides run all the time. Runs alternate between them, in changing order, while the other side is idle; its idle cost
is measured first and reported. Each side first runs everything once unmeasured, so that Java and Erlang have compiled.
Every delivery is checked. CPU is that of the three nodes, and separately with Kafka's three brokers.

Exit codes: 0 measured, with any figures; 1 nothing could be measured or a run failed; 130 on Ctrl-C or SIGTERM.
"""

from __future__ import annotations

import argparse
import shlex
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType

from . import cluster_report, generator, machine, rabbitmq
from .brokers import StartFailed
from .cluster_report import Found
from .generator import RunFailed
from .rounds import PAUSE_S, Run, add_round_options, parse_rounds, say
from .sides import OverKafka, Rabbits, Side

WARM_S = 1.0
IDLE_S = 5.0
SETTLE_S = 8.0


@dataclass(frozen=True)
class Scenario:
    """A scenario. preset: of amqpload. spread: clients at all nodes, else at the queue's node. longer: factor of the
    run's length.
    """

    name: str
    preset: str
    what: str
    spread: bool = True
    longer: float = 1.0


SCENARIOS = (
    Scenario("S3", "S3", "1 KiB persistent, confirms (window 1000), acks (prefetch 500, every 100), one queue; the "
             "consumer at the queue's node, the publisher at another"),
    Scenario("S3 one node", "S3", "the same, both at the queue's node", spread=False),
    Scenario("S3x200", "S3x200", "S3 over 200 queues with a consumer connection each, a third at each node", longer=2),
    Scenario("S3r", "S3r", "S3 at 1,000 messages a second: times from when a message is due", longer=3),
)  # fmt: skip


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    names = [each.name for each in SCENARIOS]
    parser = argparse.ArgumentParser(
        prog="python -m interop.bench.cluster", description="amqpd over Kafka beside RabbitMQ's quorum queues"
    )
    parser.add_argument("--scenarios", metavar="NAME,...", default=",".join(names), help=f"of: {', '.join(names)}")
    parser.add_argument("--warm-up", type=float, default=30.0, metavar="SECONDS", help="of each before (default: 30)")
    parser.add_argument("--synced", action="store_true", help="Kafka syncs each batch before it is confirmed")
    add_round_options(parser, 4.0, "per measurement")
    given = parse_rounds(parser, argv, "scenarios", names)
    given.chosen = [each for each in SCENARIOS if each.name in given.scenarios.split(",")]
    return given


def _terminate(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def main(argv: Sequence[str]) -> int:
    """Run the program."""
    given = _arguments(argv)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _terminate)
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="amqpd-bench-", dir=given.directory)))
        try:
            program = generator.build(directory)
            sides = _started(given, program, directory, stack)
        except (StartFailed, RunFailed) as error:
            say(f"cannot measure: {error}")
            return 1
        words = (Path(word).name if "/" in word else word for word in argv)
        found = Found(
            date=datetime.now(UTC).strftime("%Y-%m-%d"),
            command=shlex.join(["python", "-m", "interop.bench.cluster", *words]),
            machine=machine.facts(directory),
            versions=[side.version for side in sides],
            what={each.name: each.what for each in given.chosen},
        )
        return _measure(given, program, sides, found)


def _started(given: argparse.Namespace, program: Path, directory: Path, stack: ExitStack) -> list[Side]:
    """Start both sides and check that each keeps three copies. Raises: StartFailed, RunFailed."""
    sides: list[Side] = [OverKafka(directory / "amqpd", given.synced)]
    if not given.alone:
        if missing := rabbitmq.find_or_install(say):
            raise StartFailed(missing)
        sides.append(Rabbits(directory / "rabbitmq"))
    for side in sides:
        say(f"starting {side.name}")
        stack.callback(side.stop)
        side.start()
        side.prove(program)
    return sides


def _measure(given: argparse.Namespace, program: Path, sides: Sequence[Side], found: Found) -> int:
    code = 0
    try:
        for side in sides:
            say(f"{side.name} is warmed up for {given.warm_up:g} s")
            for scenario in given.chosen:
                _once(program, side, scenario, given.warm_up / len(given.chosen) / scenario.longer)
        time.sleep(SETTLE_S)
        for side in sides:
            found.idle_cores[side.name] = side.idle_cores(IDLE_S)
        _rounds(given, program, sides, found)
    except KeyboardInterrupt:
        found.notes.append("The run was interrupted before its end.")
        code = 130
    except RunFailed as error:
        say(f"cannot measure: {error}")
        return 1
    print(f"\n{cluster_report.markdown(found)}")
    if given.readme and not code:
        cluster_report.write(found, Path(__file__).with_name("README.md"))
    return code or int(any(run.error for run in found.runs))


def _rounds(given: argparse.Namespace, program: Path, sides: Sequence[Side], found: Found) -> None:
    until = time.monotonic() + given.limit * 60
    for number in range(1, given.rounds + 1):
        if number > 1 and time.monotonic() > until:
            found.notes.append(f"{number - 1} rounds instead of {given.rounds}: time was up.")
            return
        for scenario in given.chosen:
            for side in sides if number % 2 else sides[::-1]:
                run = Run(number, scenario.name, side.name)
                try:
                    run.result = _once(program, side, scenario, given.time)
                    said = cluster_report.line(run.result)
                except RunFailed as error:
                    run.error = said = str(error)
                found.runs.append(run)
                say(f"[round {number} of {given.rounds}] {scenario.name} {side.name}: {said}")
                time.sleep(PAUSE_S)


def _once(program: Path, side: Side, scenario: Scenario, seconds: float) -> generator.Result:
    timed = ["--time", f"{seconds * scenario.longer}", "--warm", f"{WARM_S * scenario.longer}", "--verify"]
    options = ["-s", scenario.preset, *timed, *side.options(scenario.spread)]
    return cluster_report.with_sums(generator.run(program, "127.0.0.1", 0, 0, options))


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
