"""`python -m interop.bench`: amqpd and RabbitMQ side by side. `--help` lists the options, README.md explains them.

Exit codes: 0 measured, with any figures; 1 nothing could be measured or a run failed; 130 after Ctrl-C or SIGTERM.
After a signal the benchmark still reports the complete rounds and stops every broker.
"""

from __future__ import annotations

import argparse
import shlex
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TypeVar

from . import generator, machine, picture, profiles, rabbitmq, report, rounds
from .brokers import Amqpd, Broker, Echo, Peer, StartFailed, start_and_answer_ms
from .generator import RunFailed
from .rounds import Plan, say
from .scenarios import SCENARIOS, scenario, select

Found = TypeVar("Found")
HERE = Path(__file__).resolve().parent
LONG_BACKLOG = 10_000_000
RECORD_BYTES = 1100


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m interop.bench", description="amqpd beside RabbitMQ, in interleaved rounds"
    )
    parser.add_argument(
        "--peer", metavar="HOST:PORT", help="a broker that runs already, instead of RabbitMQ from Debian's package"
    )
    parser.add_argument("--alone", action="store_true", help="amqpd only")
    parser.add_argument(
        "--interpreted", metavar="PYTHON", help="measure a second amqpd (S1, S3), of that interpreter's environment"
    )
    parser.add_argument("--scenarios", metavar="NAME,...", default="", help="comma-separated (default: all)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--time", type=float, default=3.0, metavar="SECONDS", help="per measurement (default: 3)")
    parser.add_argument("--count", type=int, default=500_000, help="messages of S4 and ST (default: 500000)")
    parser.add_argument("--cold-count", type=int, default=200_000, help="messages of S4cold (default: 200000)")
    parser.add_argument(
        "--backlog",
        type=int,
        metavar="N",
        help=f"at the end, let amqpd hold N messages (default: {LONG_BACKLOG} when all scenarios run, else 0: do not)",
    )
    parser.add_argument(
        "--limit", type=float, default=22.0, metavar="MINUTES", help="ends by then, with fewer rounds (default: 22)"
    )
    parser.add_argument(
        "--verify",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="check every delivery: tag, order, header, body",
    )
    parser.add_argument(
        "--profile", action=argparse.BooleanOptionalAction, default=True, help="perf profiles at the end"
    )
    parser.add_argument(
        "--start", action=argparse.BooleanOptionalAction, default=True, help="time 20 starts, 20 amqpctl answers"
    )
    parser.add_argument(
        "--directory", type=Path, help="where the brokers keep their data meanwhile (default: the temporary directory)"
    )
    parser.add_argument("--out", type=Path, default=HERE, help="where the report goes (default: interop/bench)")
    parser.add_argument(
        "--report", action=argparse.BooleanOptionalAction, default=True, help="write report, data and picture"
    )
    given = parser.parse_args(argv)
    names = [name for name in given.scenarios.split(",") if name]
    if given.backlog is None:
        given.backlog = 0 if names else LONG_BACKLOG
    try:
        given.groups = select(names or [each.name for each in SCENARIOS])
    except ValueError as error:
        parser.error(str(error))
    for option, path in (("--out", given.out), ("--directory", given.directory)):
        if path is not None and not path.is_dir():
            parser.error(f"{option}: there is no directory {path}")
    given.profiled = profiles.chosen(given.groups) if given.profile else []
    return given


def _peer(given: argparse.Namespace, outcome: report.Outcome, directory: Path) -> Broker | None:
    if given.alone:
        return None
    if given.peer:
        return Peer(given.peer)
    if missing := rabbitmq.find_or_install(say):
        outcome.note(f"No RabbitMQ beside it: {missing}. amqpd was measured alone.")
        return None
    return rabbitmq.RabbitMQ(directory / "rabbitmq")


def _shown_command(argv: Sequence[str]) -> str:
    """Return the command as other users would type it: paths shortened to their names."""
    return shlex.join(["python", "-m", "interop.bench", *(Path(word).name if "/" in word else word for word in argv)])


def _terminate(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def main(argv: Sequence[str]) -> int:
    given = _arguments(argv)
    for number in (signal.SIGINT, signal.SIGTERM):  # a shell starts background processes with SIGINT ignored
        signal.signal(number, _terminate)
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="amqpd-bench-", dir=given.directory)))
        try:
            outcome = _prepare(given, argv, directory)
            program = generator.build(directory)
            plan = Plan(program, given.time, given.count, given.cold_count, given.verify)
            return _measure(given, plan, outcome, directory, stack)
        except (StartFailed, RunFailed) as error:
            say(f"cannot measure: {error}")
            return 1


def _prepare(given: argparse.Namespace, argv: Sequence[str], directory: Path) -> report.Outcome:
    return report.Outcome(
        date=datetime.now(UTC).strftime("%Y-%m-%d"),
        command=_shown_command(argv),
        machine=machine.facts(directory),
        versions={},
        peer="",
        settings={"rounds": given.rounds, "time": given.time, "count": given.count, "cold_count": given.cold_count},
        runs=[],
        profiles={},
        notes=[],
    )


def _measure(given: argparse.Namespace, plan: Plan, outcome: report.Outcome, directory: Path, stack: ExitStack) -> int:
    ends = time.monotonic() + given.limit * 60
    if outcome.machine["filesystem"] == "tmpfs":
        outcome.note("The data lay on a tmpfs, so a sync cost nothing: S3 and S4 say little. Use --directory.")
    ours = Amqpd(directory / "amqpd")
    brokers = _started(given, outcome, ours, directory, stack)
    only = {report.INTERPRETED: {each.name for each in SCENARIOS if each.interpreted}, report.ECHO: {"S7"}}
    until = ends - _afterwards_s(given, plan)
    rounds_done = 0

    def after_round() -> None:
        nonlocal rounds_done
        rounds_done += 1
        _write(given, outcome)

    code = 0
    try:
        rounds.run_rounds(
            plan, brokers, given.groups, given.rounds, only, until, outcome.runs, outcome.notes, after_round
        )
        for broker in brokers[1:]:
            broker.stop()
        _afterwards(given, plan, outcome, ours, directory, ends)
    except KeyboardInterrupt:
        outcome.note("The run was interrupted before its end.")
        code = 130
    except StartFailed as error:
        outcome.note(f"The run ended early: {error}")
        code = 1
    if any(not run.result.get("page_cache_dropped", 1.0) for run in outcome.runs):
        outcome.notes.append("S4cold: this user may not drop the page cache; the backlog was read from memory.")
    print(f"\n{report.figures(outcome)}\n\n{report.target_table(outcome)}")
    for problem in report.problems(outcome):
        print(f"failed: {problem}")
        code = code or 1
    if rounds_done or code != 130:  # an incomplete first round is not reported
        _write(given, outcome)
    return code


def _started(
    given: argparse.Namespace, outcome: report.Outcome, ours: Amqpd, directory: Path, stack: ExitStack
) -> list[Broker]:
    """Start amqpd first, then the other brokers. Return those that are ready. Raises: StartFailed if amqpd is not."""
    beside: list[Broker] = []
    if peer := _peer(given, outcome, directory):
        beside.append(peer)
    if given.interpreted:
        beside.append(Amqpd(directory / "interpreted", given.interpreted, report.INTERPRETED))
    brokers: list[Broker] = []
    for broker in (ours, *beside):
        say(f"starting {broker.name}")
        stack.callback(broker.stop)
        try:
            broker.start()
        except StartFailed as error:
            if broker is ours:
                raise
            outcome.note(f"{broker.name} is not measured: {error}")
            continue
        brokers.append(broker)
        outcome.versions[broker.name] = broker.version
        if broker is peer:
            outcome.peer = broker.name
    if "S7" in given.groups:
        brokers.append(Echo())
    if ours.build != "compiled":
        outcome.note("This amqpd is not compiled: its figures are those of the interpreted sources.")
    return brokers


def _write(given: argparse.Namespace, outcome: report.Outcome) -> None:
    if given.report and any(run.result for run in outcome.runs):
        say(f"report: {report.write(outcome, given.out, picture.draw)}")


def _afterwards_s(given: argparse.Namespace, plan: Plan) -> float:
    """Return a cautious estimate of the seconds needed after the rounds."""
    profiled, backlog = len(given.profiled), int(given.backlog)
    return profiled * (plan.seconds + 8) + (40 if given.start else 0) + backlog * 18e-6


def _afterwards(
    given: argparse.Namespace, plan: Plan, outcome: report.Outcome, ours: Amqpd, directory: Path, ends: float
) -> None:
    """Measure starts, profiles and the long backlog of amqpd; no other broker runs meanwhile."""
    if given.start and (
        times := _attempt(outcome, "20 starts, 20 answers of amqpctl", partial(start_and_answer_ms, ours, 20))
    ):
        outcome.start_ms, outcome.control_ms = times
    if given.profiled:
        _profile(given, plan, outcome, ours, directory)
    if not given.backlog:
        return
    free = shutil.disk_usage(directory).free
    if free < given.backlog * RECORD_BYTES * 1.5:
        outcome.note(f"No backlog of {given.backlog:,} messages: only {free / 1e9:.0f} GB of the disk are free.")
        return
    hold = partial(rounds.long_backlog, plan, ours, given.backlog, max(60.0, ends - time.monotonic()))
    outcome.backlog = _attempt(outcome, f"a backlog of {given.backlog:,} messages", hold) or {}


def _profile(given: argparse.Namespace, plan: Plan, outcome: report.Outcome, ours: Amqpd, directory: Path) -> None:
    missing = profiles.unavailable()
    if missing:
        outcome.note(missing)
    for name in [] if missing else given.profiled:
        if found := _attempt(outcome, f"profile of {name}", partial(profiles.profile, plan, ours, name, directory)):
            outcome.profiles[name] = found
    for name in given.profiled if given.interpreted else ():
        if scenario(name).interpreted is None:
            continue
        broker = Amqpd(directory / "sampled", given.interpreted, report.INTERPRETED)
        if found := _attempt(
            outcome, f"profile of {name}, interpreted", partial(profiles.sampled, plan, broker, name, directory)
        ):
            outcome.profiles[f"{name} interpreted"] = found


def _attempt(outcome: report.Outcome, what: str, do: Callable[[], Found]) -> Found | None:
    """Run one part. A failure becomes a remark of the report; the other parts are kept."""
    say(what)
    try:
        return do()
    except (RunFailed, StartFailed, OSError) as error:
        outcome.note(f"Not measured: {what}: {error}")
        return None


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
