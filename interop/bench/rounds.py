"""The measurement: rounds over scenarios over brokers, so that compared runs are within the same half minute.

The order of the brokers changes with every round. A failed run (wrong delivery, stall, refusal) is recorded as an
error, and its broker is restarted empty, so that the next run finds no leftovers. A broker that cannot be restarted is
left out. A round that would not end in time is not begun.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from . import generator, machine
from .brokers import Broker, Echo, StartFailed
from .generator import Result, RunFailed
from .scenarios import scenario

ECHO_RATE = 1000
"""Messages a second of S7, as in amqpload.c."""

PAUSE_S = 0.3
"""The pause between runs, in which a broker cleans up."""


@dataclass
class Run:
    """One measurement. error: why there is no result."""

    round: int
    scenario: str
    broker: str
    result: Result = field(default_factory=dict)
    error: str = ""


@dataclass(frozen=True)
class Plan:
    """Parameters of a run. seconds: per measurement; count, cold_count: messages of S4 (and ST) and S4cold."""

    program: Path
    seconds: float
    count: int
    cold_count: int
    verify: bool


def add_round_options(parser: argparse.ArgumentParser, seconds: float, what: str) -> None:
    """Add the options of all benchmarks of two sides. seconds: default of --time; what: its help."""
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--time", type=float, default=seconds, metavar="SECONDS", help=f"{what} (default: {seconds:g})")
    parser.add_argument("--alone", action="store_true", help="amqpd only")
    parser.add_argument("--limit", type=float, default=20.0, metavar="MINUTES", help="no round begins later")
    parser.add_argument("--directory", type=Path, help="where data is kept meanwhile (default: a temporary one)")
    parser.add_argument("--readme", action="store_true", help="the result goes into interop/bench/README.md too")


def parse_rounds(
    parser: argparse.ArgumentParser, argv: Sequence[str], option: str, names: Sequence[str]
) -> argparse.Namespace:
    """Return the arguments; those of `option`, names separated by commas, and --directory are checked."""
    given = parser.parse_args(argv)
    if wrong := set(getattr(given, option).split(",")) - set(names):
        parser.error(f"--{option}: there is no {', '.join(sorted(wrong))}; there are {', '.join(names)}")
    if given.directory is not None and not given.directory.is_dir():
        parser.error(f"--directory: there is no directory {given.directory}")
    return given


def say(text: str) -> None:
    """Print progress on standard error."""
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def warm_s(plan: Plan, name: str) -> float:
    """Return the warm-up seconds of a timed scenario."""
    return min(1.0, plan.seconds / 2) * scenario(name).longer


def options(plan: Plan, name: str) -> list[str]:
    """Return the generator's options for a timed scenario, the same for every broker."""
    chosen = ["-s", name, "--time", f"{plan.seconds * scenario(name).longer}", "--warm", f"{warm_s(plan, name)}"]
    if coalesce_us := scenario(name).coalesce_us:
        chosen += ["--coalesce", f"{coalesce_us}"]
    return [*chosen, "--verify"] if plan.verify else chosen


def measure(plan: Plan, broker: Broker, group: str) -> dict[str, Result]:
    """Run one group on one broker. Return scenario -> result. Raises: RunFailed, StartFailed."""
    if isinstance(broker, Echo):
        seconds = plan.seconds * scenario(group).longer
        return {group: generator.echo(plan.program, seconds, warm_s(plan, group), ECHO_RATE)}
    if group == "S4":
        return _backlog(plan, broker)
    if group == "S4cold":
        return _cold(plan, broker)
    if group == "ST":
        return _stream(plan, broker)
    return {group: generator.run(plan.program, broker.host, broker.port, broker.pid, options(plan, group))}


def _step(plan: Plan, broker: Broker, name: str, count: int, timeout_s: float = generator.RUN_TIMEOUT_S) -> Result:
    chosen = ["-s", name, "--count", f"{count}", *(["--verify"] if plan.verify else [])]
    return generator.run(plan.program, broker.host, broker.port, broker.pid, chosen, timeout_s)


def _backlog(plan: Plan, broker: Broker) -> dict[str, Result]:
    published = _step(plan, broker, "S4pub", plan.count)
    time.sleep(PAUSE_S)
    return {"S4pub": published, "S4drain": _step(plan, broker, "S4drain", plan.count)}


def _stream(plan: Plan, broker: Broker) -> dict[str, Result]:
    published = _step(plan, broker, "STpub", plan.count)
    time.sleep(PAUSE_S)
    one = _step(plan, broker, "ST1", plan.count)
    time.sleep(PAUSE_S)
    return {"STpub": published, "ST1": one, "ST10": _step(plan, broker, "ST10", plan.count)}


def long_backlog(plan: Plan, broker: Broker, count: int, timeout_s: float) -> Result:
    """Publish `count` messages, then drain them; `timeout_s` for each part. Raises: RunFailed."""
    published = _step(plan, broker, "S4pub", count, timeout_s)
    say(f"published at {published['rate']:,.0f}/s, peak RSS {published['anon_peak_mb']:.0f} MB; now drained")
    drained = _step(plan, broker, "S4drain", count, timeout_s)
    highest = {key: max(published[key], drained[key]) for key in ("anon_peak_mb", "rss_peak_mb")}
    return {"messages": count, "published_rate": published["rate"], "drained_rate": drained["rate"]} | highest


def _cold(plan: Plan, broker: Broker) -> dict[str, Result]:
    _step(plan, broker, "S4pub", plan.cold_count)
    broker.stop()
    dropped = machine.drop_page_cache()
    broker.start()
    drained = _step(plan, broker, "S4drain", plan.cold_count)
    return {"S4cold": drained | {"page_cache_dropped": float(dropped)}}


def run_rounds(
    plan: Plan,
    brokers: Sequence[Broker],
    groups: Sequence[str],
    rounds: int,
    only: dict[str, set[str]],
    until: float,
    runs: list[Run],
    notes: list[str],
    after_round: Callable[[], None],
) -> None:
    """Fill `runs` and `notes` step by step, so that an interruption keeps the results so far.

    brokers: the first is amqpd. only: broker -> groups, if not all. until: a time of the monotonic clock. Raises:
    StartFailed if amqpd cannot be restarted.
    """
    there = list(brokers)
    began, longest_s = time.monotonic(), 0.0
    for round_number in range(1, rounds + 1):
        round_began = time.monotonic()
        if round_number > 1 and round_began + longest_s > until:
            notes.append(f"{round_number - 1} rounds instead of {rounds}: another one would not have ended in time.")
            say(notes[-1])
            return
        for index, group in enumerate(groups):
            among = [broker for broker in there if _takes(broker, group, only)]
            for broker in among[::-1] if round_number % 2 == 0 else among:
                if time.monotonic() > until:
                    notes.append(f"Time was up in round {round_number}, at {group}: what comes after it is missing.")
                    say(notes[-1])
                    return
                done = round_number - 1 + index / len(groups)
                left = f", {(time.monotonic() - began) * (rounds / done - 1) / 60:.0f} min left" if done else ""
                progress = f"[round {round_number} of {rounds}, {index + 1}/{len(groups)}{left}]"
                if not _one(plan, broker, group, round_number, runs, progress) and not _renewed(broker, notes):
                    if broker is brokers[0]:
                        raise StartFailed(notes[-1])
                    there.remove(broker)
                time.sleep(PAUSE_S)
        longest_s = max(longest_s, time.monotonic() - round_began)
        after_round()


def _takes(broker: Broker, group: str, only: dict[str, set[str]]) -> bool:
    """S4cold needs a broker started here, because it is restarted."""
    return group in only.get(broker.name, {group}) and (group != "S4cold" or broker.can_restart())


def _one(plan: Plan, broker: Broker, group: str, round_number: int, runs: list[Run], progress: str) -> bool:
    try:
        results = measure(plan, broker, group)
    except (RunFailed, StartFailed) as error:
        runs.append(Run(round_number, group, broker.name, error=str(error)))
        say(f"{progress} {group} {broker.name}: FAILED: {error}")
        return False
    for name, result in results.items():
        runs.append(Run(round_number, name, broker.name, result))
        figures = [f"{result['rate']:,.0f}/s"]
        if "cpu_us" in result:
            figures.append(f"{result['cpu_us']:.2f} us CPU")
        if "p99_us" in result:
            figures.append(f"p50 {result['p50_us']:.0f} p99 {result['p99_us']:.0f} us")
        if "anon_peak_mb" in result:
            figures.append(f"{result['anon_peak_mb']:.0f} MB")
        if "other_cores" in result:
            figures.append(f"{result['other_cores']:.1f} cores busy elsewhere")
        say(f"{progress} {name} {broker.name}: {', '.join(figures)}")
    return True


def _renewed(broker: Broker, notes: list[str]) -> bool:
    try:
        broker.renew()
    except StartFailed as error:
        why = " ".join(str(error).split())
        notes.append(f"{broker.name} failed and did not come back, so it is missing from there on: {why}")
        say(notes[-1])
        return False
    return True
