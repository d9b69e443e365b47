"""The report of `kafka.py`: its tables, the verdicts, and the part of README.md with the last results.

Figures are medians of the rounds, ratios medians of the rounds' ratios, as in `report.py`. A ratio is amqpd's figure
divided by Kafka's.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from .report import OURS, median, ratio, replace_between, table
from .rounds import Run

BEGIN, END = "<!-- bench-kafka:begin -->", "<!-- bench-kafka:end -->"
PEER, SYNCED = "kafka", "kafka, synced"
COLUMNS = (OURS, PEER, SYNCED)
BUSY_CORES = 0.3


class Target(NamedTuple):
    """A ratio to Kafka that must be reached.

    Attributes:
        scenario: the first word of the rows that it is for.
        at_least: the ratio is a minimum; otherwise it is a maximum.
    """

    scenario: str
    figure: str
    what: str
    bound: float
    at_least: bool


TARGETS: Final = (
    Target("produce", "rate", "records/s", 1.0, True),
    Target("produce", "cpu_us", "CPU per record", 0.7, False),
    Target("fetch", "rate", "records/s", 1.0, True),
    Target("fetch", "cpu_us", "CPU per record", 0.7, False),
    Target("share", "rate", "records/s", 2.0, True),
    Target("latency", "p50_us", "p50", 0.5, False),
    Target("memory", "rss_mb", "RSS after the loads", 0.2, False),
    Target("start", "start_ms", "time to an answer", 0.1, False),
)


@dataclass
class Found:
    """A complete run. what: scenarios and their descriptions."""

    date: str
    command: str
    machine: dict[str, str]
    versions: list[str]
    what: dict[str, str]
    runs: list[Run] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def _shown(value: float | None, form: Callable[[float], str]) -> str:
    return "-" if value is None else form(value)


def _count(value: float) -> str:
    return f"{value / 1e3:,.0f} k" if value >= 10_000 else f"{value:,.0f}"


def _factor(value: float) -> str:
    return f"{value:.2f}x" if value < 10 else f"{value:.0f}x"


def _names(runs: Sequence[Run], figure: str) -> list[str]:
    return list(dict.fromkeys(run.scenario for run in runs if figure in run.result))


def _figures(runs: Sequence[Run], name: str, figure: str, form: Callable[[float], str]) -> list[str]:
    """Return amqpd's figure, then that of each other column with the ratio."""
    cells = [_shown(median(runs, name, OURS, figure), form)]
    for column in COLUMNS[1:]:
        cells.append(_shown(median(runs, name, column, figure), form))
        cells.append(_shown(ratio(runs, name, OURS, column, figure), _factor))
    return cells


def _table(runs: Sequence[Run], head: str, figures: Sequence[tuple[str, str, Callable[[float], str]]]) -> str:
    """Return a table with a row for each scenario and figure. figures: (figure, its name in the row, its form)."""
    rows = [[head, OURS, PEER, "ratio", SYNCED, "ratio"]]
    for figure, shown, form in figures:
        for name in _names(runs, figure):
            cells = _figures(runs, name, figure, form)
            if any(cell != "-" for cell in cells[1:]):
                rows.append([f"{name}{shown}", *cells])
    return table(rows) if len(rows) > 1 else ""


def rates(runs: Sequence[Run]) -> str:
    """Return the table of records a second."""
    return _table(runs, "records/s", [("rate", "", _count)])


def costs(runs: Sequence[Run]) -> str:
    """Return the table of the broker's CPU per record, in us."""
    return _table(runs, "CPU us/record", [("cpu_us", "", "{:.2f}".format)])


def others(runs: Sequence[Run]) -> str:
    """Return the table of latencies, memory and starts."""
    figures: list[tuple[str, str, Callable[[float], str]]] = [
        ("p50_us", ", p50 us", "{:,.0f}".format),
        ("p99_us", ", p99 us", "{:,.0f}".format),
        ("rss_mb", ", RSS MB", "{:,.0f}".format),
        ("pss_mb", ", PSS MB", "{:,.0f}".format),
        ("start_ms", ", ms", "{:,.0f}".format),
    ]
    return _table(runs, "", figures)


def verdicts(runs: Sequence[Run]) -> str:
    """Return the required results, and whether they are reached: each target once for each of its scenarios."""
    rows = [["beside Kafka with its defaults", "found", "must", "verdict"]]
    for target in TARGETS:
        for name in _names(runs, target.figure):
            found = ratio(runs, name, OURS, PEER, target.figure)
            if name.split()[0] != target.scenario or found is None:
                continue
            reached = found >= target.bound if target.at_least else found <= target.bound
            bound = f"{'at least' if target.at_least else 'at most'} {target.bound:g}x"
            rows.append([f"{name}: {target.what}", _factor(found), bound, "reached" if reached else "SHORT"])
    return table(rows) if len(rows) > 1 else ""


def line(run: Run) -> str:
    """Return one line about a run, for the terminal."""
    return run.error or ", ".join(f"{figure} {value:,.2f}" for figure, value in run.result.items())


def _remarks(found: Found) -> str:
    said = list(found.notes)
    busy = [run.result["other_cores"] for run in found.runs if "other_cores" in run.result]
    if busy and statistics.median(busy) > BUSY_CORES:
        said.append(
            f"The machine was busy with other work ({statistics.median(busy):.1f} cores, {max(busy):.1f} at most): "
            "rates, latencies and starts say little."
        )
    said += [f"Failed: round {run.round}, {run.scenario}, {run.broker}: {run.error}" for run in found.runs if run.error]
    return "\n".join(f"- {' '.join(each.split())}" for each in said)


def markdown(found: Found) -> str:
    """Return the whole report."""
    where = f"{found.date}, {found.machine['cpu']}, {found.machine['system']}, {found.machine['filesystem']}; "
    head = f"{where}{'; '.join(found.versions)}. Command: `{found.command}`."
    what = "\n".join(f"- {name}: {text}" for name, text in found.what.items())
    tables = [rates(found.runs), costs(found.runs), others(found.runs), verdicts(found.runs)]
    return "\n\n".join(part for part in (head, what, *tables, _remarks(found)) if part)


def write(found: Found, readme: Path) -> None:
    """Write the report between its markers. Raises: ValueError without markers."""
    replace_between(readme, BEGIN, END, markdown(found))
