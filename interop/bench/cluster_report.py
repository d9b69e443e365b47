"""The report of `cluster.py`: its tables, and the part of README.md with the last results.

Figures are medians of the rounds, ratios medians of the rounds' ratios, as in `report.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from .generator import Result
from .report import OURS, median, ratio, replace_between, table
from .rounds import Run

BEGIN, END = "<!-- bench-cluster:begin -->", "<!-- bench-cluster:end -->"
PEER = "rabbitmq"
MUST = 3.0
"""Required ratio of messages per CPU second to the peer, without Kafka's share."""
JUDGED = ("S3", "S3x200")
BUSY_CORES = 0.3


@dataclass
class Found:
    """A complete run. what: scenarios and their descriptions; idle_cores: CPU of each side without clients."""

    date: str
    command: str
    machine: dict[str, str]
    versions: list[str]
    what: dict[str, str]
    runs: list[Run] = field(default_factory=list)
    idle_cores: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def with_sums(result: Result) -> Result:
    """Add CPU and memory including Kafka's share: `whole_cpu_us`, `whole_anon_peak_mb`."""
    return result | {
        f"whole_{figure}": result[figure] + result.get(f"beside_{figure}", 0.0) for figure in ("cpu_us", "anon_peak_mb")
    }


def line(result: Result) -> str:
    """Return one line about a run, for the terminal."""
    said = [f"{result['rate']:,.0f}/s", f"{result['cpu_us']:.1f} us CPU, with Kafka {result['whole_cpu_us']:.1f}"]
    if "confirm_p50_us" in result:
        said.append(f"confirms p50 {result['confirm_p50_us']:,.0f} p99 {result['confirm_p99_us']:,.0f} us")
    return ", ".join([*said, f"{result['other_cores']:.1f} cores busy elsewhere"])


def _names(runs: Sequence[Run], timed: bool) -> list[str]:
    """Return the scenarios with figures, in order. timed: those at a fixed rate."""
    return [
        name for name in dict.fromkeys(run.scenario for run in runs if run.result)
        if any("confirm_p50_us" in run.result for run in runs if run.scenario == name) == timed
    ]  # fmt: skip


def _cell(value: float | None, shown: Callable[[float], str]) -> str:
    return "-" if value is None else shown(value)


def _factor(value: float) -> str:
    return f"{value:.1f}x"


def throughput(runs: Sequence[Run]) -> str:
    """Return the table of messages, CPU and memory. A ratio says how many times better amqpd is."""
    rows = [["scenario", "amqpd /s", PEER, "ratio", "CPU us/msg", PEER, "ratio", "with Kafka", "ratio"]]
    for name in _names(runs, timed=False):
        row = [name]
        for figure, shown in (("rate", _count), ("cpu_us", _cost)):
            row += [_cell(median(runs, name, side, figure), shown) for side in (OURS, PEER)]
            row.append(_cell(gain(runs, name, figure), _factor))
        whole = median(runs, name, OURS, "whole_cpu_us")
        rows.append([*row, _cell(whole, _cost), _cell(gain(runs, name, "whole_cpu_us"), _factor)])
    return table(rows) if len(rows) > 1 else ""


def memory(runs: Sequence[Run]) -> str:
    """Return the table of peak RssAnon of all three nodes and of Kafka's brokers."""
    rows = [["peak memory of three", "amqpd", PEER, "Kafka's brokers"]]
    for name in [*_names(runs, timed=False), *_names(runs, timed=True)]:
        figures = ((OURS, "anon_peak_mb"), (PEER, "anon_peak_mb"), (OURS, "beside_anon_peak_mb"))
        rows.append([name, *(_cell(median(runs, name, side, figure), "{:,.0f} MB".format) for side, figure in figures)])
    return table(rows) if len(rows) > 1 else ""


def times(runs: Sequence[Run]) -> str:
    """Return the table of latencies at a fixed rate."""
    what = "p50/p99/p999 ms"
    rows = [["at a fixed rate", "/s", f"confirm {what}", f"delivery {what}", "CPU us/msg", "with Kafka"]]
    for name in _names(runs, timed=True):
        for side in (OURS, PEER):
            if (rate := median(runs, name, side, "rate")) is None:
                continue
            costs = [_cell(median(runs, name, side, figure), _cost) for figure in ("cpu_us", "whole_cpu_us")]
            spans = [_span(runs, name, side, kind) for kind in ("confirm_", "")]
            rows.append([f"{name} {side}", _count(rate), *spans, *costs])
    return table(rows) if len(rows) > 1 else ""


def gain(runs: Sequence[Run], name: str, figure: str) -> float | None:
    """Return how many times better amqpd is: a higher rate, or a lower value of other figures."""
    sides = (OURS, PEER) if figure == "rate" else (PEER, OURS)
    return ratio(runs, name, *sides, figure)


def verdicts(runs: Sequence[Run]) -> str:
    """Return the required results and whether they are reached."""
    said = []
    for name in JUDGED:
        if (reached := gain(runs, name, "cpu_us")) is not None:
            word = "reached" if reached >= MUST else "SHORT"
            said.append(f"- {name}: {reached:.1f}x in messages per CPU second without Kafka; must {MUST:g}x: {word}")
    return "\n".join(said)


def _span(runs: Sequence[Run], name: str, side: str, kind: str) -> str:
    found = [median(runs, name, side, f"{kind}{part}_us") for part in ("p50", "p99", "p999")]
    return " / ".join(_cell(value, lambda us: f"{us / 1000:.1f}") for value in found)


def _count(value: float) -> str:
    return f"{value / 1e3:.1f} k" if value >= 10_000 else f"{value:,.0f}"


def _cost(value: float) -> str:
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _remarks(found: Found) -> str:
    said = list(found.notes)
    if found.idle_cores:
        idle = ", ".join(f"{side} {cores:.2f}" for side, cores in found.idle_cores.items())
        said.append(f"Cores taken by each while nobody asked anything of it (amqpd's with Kafka's): {idle}.")
    # The idle cost of the other side counts as other work too.
    busy = max((run.result["other_cores"] for run in found.runs if "other_cores" in run.result), default=0.0)
    if busy > BUSY_CORES + sum(found.idle_cores.values()):
        said.append(f"The machine was busy with other work ({busy:.1f} cores at most): rates and times say little.")
    said += [f"Failed: round {run.round}, {run.scenario}, {run.broker}: {run.error}" for run in found.runs if run.error]
    return "\n".join(f"- {each}" for each in said)


def markdown(found: Found) -> str:
    """Return the whole report."""
    where = f"{found.date}, {found.machine['cpu']}, {found.machine['system']}, {found.machine['filesystem']}; "
    head = f"{where}{'; '.join(found.versions)}. Command: `{found.command}`."
    what = "\n".join(f"- {name}: {text}" for name, text in found.what.items())
    tables = [throughput(found.runs), verdicts(found.runs), times(found.runs), memory(found.runs)]
    return "\n\n".join(part for part in (head, what, *tables, _remarks(found)) if part)


def write(found: Found, readme: Path) -> None:
    """Write the report between its markers. Raises: ValueError without markers."""
    replace_between(readme, BEGIN, END, markdown(found))
