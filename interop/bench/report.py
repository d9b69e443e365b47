"""The results: tables, verdicts, the dated report, and the summary in README.md.

Every figure is the median of its rounds. A ratio is the median of the rounds' ratios, each of two figures of the same
half minute, so a slow phase of the machine affects both.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from .profiles import Profile
from .rounds import Run, say
from .scenarios import RATE, SCENARIOS, Scenario, Target

BUSY_CORES = 0.3
BEGIN, END = "<!-- bench:begin -->", "<!-- bench:end -->"
OURS = "amqpd"
ECHO = "echo"
INTERPRETED = "interpreted"
PROFILE_METHOD = (
    "`perf record` at 2,000 Hz while the scenario runs; shares of the process, all its threads. Interpreted: a "
    "sampler in the process; what C code does counts for the Python function that called it."
)
NAMES = {RATE: "messages/s", "p50_us": "p50", "p99_us": "p99", "anon_peak_mb": "peak memory"}


@dataclass
class Outcome:
    """A complete run.

    versions: broker -> version; peer: its key there, empty if amqpd ran alone; profiles: scenario -> CPU profile;
    start_ms, control_ms: medians, 0 if not measured; backlog: rates and memory of a long backlog, if requested.
    """

    date: str
    command: str
    machine: dict[str, str]
    versions: dict[str, str]
    peer: str
    settings: dict[str, float]
    runs: list[Run]
    profiles: dict[str, Profile]
    notes: list[str]
    start_ms: float = 0.0
    control_ms: float = 0.0
    backlog: dict[str, float] = field(default_factory=dict)

    def note(self, text: str) -> None:
        """Add a remark to the report and print it."""
        self.notes.append(" ".join(text.split()))
        say(text)


def median(runs: Sequence[Run], scenario: str, broker: str, figure: str) -> float | None:
    """Return the median of the rounds with this figure, or None."""
    found = [
        run.result[figure] for run in runs if run.scenario == scenario and run.broker == broker and figure in run.result
    ]
    return statistics.median(found) if found else None


def ratio(runs: Sequence[Run], scenario: str, ours: str, peer: str, figure: str) -> float | None:
    """Return the median of ours / peer within a round, or None if no round has both."""
    of = {
        (run.broker, run.round): run.result[figure] for run in runs if run.scenario == scenario and figure in run.result
    }
    found = [value / of[peer, at] for (broker, at), value in of.items() if broker == ours and of.get((peer, at))]
    return statistics.median(found) if found else None


def verdict(target: Target, value: float) -> str:
    """Return `aim`, `must` or `short`."""
    if target.more_is_better:
        return "aim" if value >= target.aim else "must" if value >= target.must else "SHORT"
    return "aim" if value <= target.aim else "must" if value <= target.must else "SHORT"


def _count(value: float | None) -> str:
    if value is None:
        return "-"
    if value >= 999_500:
        return f"{value / 1e6:.2f} M"
    return f"{value / 1e3:.1f} k" if value >= 10_000 else f"{value:,.0f}"


def _cost(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}" if value < 10 else f"{value:.1f}"


def _memory(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f} MB"


def _factor(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.0f}x" if value >= 20 else f"{value:.1f}x" if value >= 1 else f"{value:.2f}x"


def _share(value: float) -> str:
    return f"1/{1 / value:.0f}" if value < 0.3 else f"{value:.2f}"


def _percentiles(runs: Sequence[Run], scenario: str, broker: str) -> list[float]:
    """Return p50, p99 and p999 in us, or an empty list if not measured."""
    values = [median(runs, scenario, broker, figure) for figure in ("p50_us", "p99_us", "p999_us")]
    return [value for value in values if value is not None]


def _joined(values: Sequence[float]) -> str:
    return " / ".join(f"{value:,.0f}" for value in values)


def table(rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table with aligned columns, also readable on a terminal. The first row is the head."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]

    def line(cells: Sequence[str]) -> str:
        padded = [
            cells[0].ljust(widths[0]),
            *(cell.rjust(width) for cell, width in zip(cells[1:], widths[1:], strict=True)),
        ]
        return f"| {' | '.join(padded)} |"

    rule = [":" + "-" * (widths[0] - 1), *("-" * (width - 1) + ":" for width in widths[1:])]
    return "\n".join([line(rows[0]), f"| {' | '.join(rule)} |", *(line(row) for row in rows[1:])])


def figures(outcome: Outcome) -> str:
    """Return messages a second, CPU and memory, by scenario."""
    runs, peer = outcome.runs, outcome.peer
    has_latency = any("p50_us" in run.result for run in runs)
    head = ["scenario", "amqpd /s"] + ([f"{peer} /s", "ratio"] if peer else [])
    head += ["CPU us/msg"] + ([f"{peer}", "ratio"] if peer else []) + ["peak RSS"] + ([f"{peer}"] if peer else [])
    rows = [head + (["p50/p99/p999 us"] + ([f"{peer}"] if peer else []) if has_latency else [])]
    for name, broker, shown in _rows(runs):
        row = [shown]
        render: list[tuple[str, Callable[[float | None], str], bool]] = [
            (RATE, _count, True),
            ("cpu_us", _cost, True),
            ("anon_peak_mb", _memory, False),
        ]
        for figure, text, with_ratio in render:
            row.append(text(median(runs, name, broker, figure)))
            if peer:
                row.append(text(median(runs, name, peer, figure)))
                if with_ratio:
                    row.append(_factor(_shown_ratio(runs, name, broker, peer, figure)))
        if has_latency:
            row.append(_joined(_percentiles(runs, name, broker)))
            if peer:
                row.append(_joined(_percentiles(runs, name, peer)))
        rows.append(row)
    return table(rows)


def _rows(runs: Sequence[Run]) -> list[tuple[str, str, str]]:
    """Return scenario, amqpd version and row name of all rows with figures."""
    found = [(each.name, OURS, each.name) for each in SCENARIOS if any(run.scenario == each.name for run in runs)]
    for each in SCENARIOS:
        if any(run.scenario == each.name and run.broker == INTERPRETED and run.result for run in runs):
            found.append((each.name, INTERPRETED, f"{each.name} interpreted"))
    return found


def _shown_ratio(runs: Sequence[Run], scenario: str, ours: str, peer: str, figure: str) -> float | None:
    """Return how many times better amqpd is; the ratio of a cost is inverted."""
    value = ratio(runs, scenario, ours, peer, figure)
    return value if value is None or figure == RATE else 1 / value if value else None


def echo_lines(outcome: Outcome) -> str:
    """Return the machine's share of a latency and what each broker adds; "" without the echo's figures."""
    lines = []
    for name in [each.name for each in SCENARIOS]:
        floor = _percentiles(outcome.runs, name, ECHO)
        if not floor:
            continue
        parts = [f"a process that only sends on what it reads (echo.c), in the same minutes: {_joined(floor)} us"]
        for broker in (OURS, outcome.peer):
            if found := _percentiles(outcome.runs, name, broker):
                above = [value - least for value, least in zip(found, floor, strict=True)]
                parts.append(f"{broker} adds {_joined(above)}")
        lines.append(f"{name}, p50 / p99 / p999: {'; '.join(parts)}.")
    return "\n".join(lines)


def targets(outcome: Outcome) -> list[list[str]]:
    """Return one row per measured target: name, ratio, must, aim, verdict."""
    rows = []
    for each in SCENARIOS:
        for target in each.targets:
            rows += _target_row(outcome, each, target, OURS, each.name)
        if each.interpreted is not None:
            rows += _target_row(outcome, each, each.interpreted, INTERPRETED, f"{each.name}, interpreted")
    waiting = _count(outcome.backlog.get("messages"))
    for what, value, must, aim, unit in (
        ("start to accepting, median of 20", outcome.start_ms, 600, 300, "ms"),
        ("amqpctl list_vhosts, median of 20", outcome.control_ms, 150, 100, "ms"),
        (f"{waiting} messages waiting: peak memory", outcome.backlog.get("anon_peak_mb"), 400, 200, "MB"),
    ):
        if value:
            word = "aim" if value <= aim else "must" if value <= must else "SHORT"
            rows.append([what, f"{value:.0f} {unit}", f"{must} {unit}", f"{aim} {unit}", word])
    return rows


def _target_row(outcome: Outcome, each: Scenario, target: Target, ours: str, name: str) -> list[list[str]]:
    value = ratio(outcome.runs, each.name, ours, outcome.peer, target.figure) if outcome.peer else None
    if value is None:
        return []
    text = _factor if target.more_is_better else _share
    return [
        [f"{name}: {NAMES[target.figure]}", text(value), text(target.must), text(target.aim), verdict(target, value)]
    ]


def target_table(outcome: Outcome) -> str:
    """Return the table with the must and aim columns of issue 3; "" without a peer."""
    rows = targets(outcome)
    return table([["against the peer, same round", "reached", "must", "aim", "verdict"], *rows]) if rows else ""


def problems(outcome: Outcome) -> list[str]:
    """Return the runs that gave no figure."""
    return [
        f"round {run.round}, {run.scenario}, {run.broker}: {' '.join(run.error.split())}"
        for run in outcome.runs
        if run.error
    ]


def backlog_line(backlog: dict[str, float]) -> str:
    """Return one sentence about the backlog."""
    return (
        f"{_count(backlog['messages'])} messages of 1 KiB, published at {_count(backlog['published_rate'])}/s, drained "
        f"at {_count(backlog['drained_rate'])}/s, peak RSS {_memory(backlog['anon_peak_mb'])} (with mapped files "
        f"{_memory(backlog['rss_peak_mb'])})."
    )


def busy_elsewhere(runs: Sequence[Run]) -> float:
    """Return the median of the cores used by other programs during the measurements."""
    return statistics.median([run.result["other_cores"] for run in runs if "other_cores" in run.result] or [0.0])


def _remarks(outcome: Outcome) -> list[str]:
    busy = busy_elsewhere(outcome.runs)
    disturbed = (
        f"The machine was busy with other work ({busy:.1f} cores): rates, latencies and starts say little, "
        "CPU per message is what to trust."
    )
    return [*([disturbed] if busy > BUSY_CORES else []), *outcome.notes, *problems(outcome)]


def _method(outcome: Outcome) -> str:
    of = outcome.settings
    rounds = max((run.round for run in outcome.runs), default=0)
    checked = sum(run.result.get("checked", 0.0) for run in outcome.runs)
    return (
        f"{rounds} rounds, {of['time']:g} s a measurement (S4 {of['count']:,.0f} messages, S4cold "
        f"{of['cold_count']:,.0f}). Figures are medians of the rounds, ratios medians of the rounds' ratios. "
        f"{_count(checked)} deliveries were checked: tag, order, content header, every byte of the body. During a "
        f"measurement other processes kept {busy_elsewhere(outcome.runs):.2f} cores busy (median). CPU is the "
        "broker's, all its threads, kernel included. Peak RSS is anonymous memory (RssAnon)."
    )


def markdown(outcome: Outcome, picture: str) -> str:
    """Return the dated report."""
    facts = [f"- {key}: {value}" for key, value in outcome.machine.items()]
    facts += [f"- {name}: {version}" for name, version in outcome.versions.items()]
    parts = [
        f"# Benchmark of {outcome.date}",
        f"`{outcome.command}`",
        "\n".join(facts),
        _method(outcome),
        figures(outcome),
        echo_lines(outcome),
        target_table(outcome),
        f"![ratios]({picture})" if outcome.peer else "",
        "## Scenarios\n\n" + "\n".join(f"- **{each.name}** {each.what}" for each in SCENARIOS),
    ]
    if outcome.profiles:
        parts.append(f"## Where amqpd's CPU goes\n\n{PROFILE_METHOD}")
        parts += [f"**{name}**\n\n" + "\n".join(found.lines()) for name, found in outcome.profiles.items()]
    if outcome.backlog:
        parts.append(f"## A long backlog\n\n{backlog_line(outcome.backlog)}")
    if remarks := _remarks(outcome):
        parts.append("## Remarks\n\n" + "\n".join(f"- {remark}" for remark in remarks))
    return "\n\n".join(part for part in parts if part) + "\n"


def summary(outcome: Outcome, report: str) -> str:
    """Return the part of README.md between the markers."""
    versions = "; ".join(outcome.versions.values())
    where = f"{outcome.date}, {outcome.machine['cpu']}, {outcome.machine['system']}; {versions}."
    said = f"{where} Command: `{outcome.command}`. Whole report, with profiles: [{report}]({report})."
    parts = [said, figures(outcome), echo_lines(outcome), target_table(outcome)]
    if outcome.backlog:
        parts.append(backlog_line(outcome.backlog))
    if outcome.profiles:
        parts.append("Where amqpd's CPU goes, and its heaviest functions (percent):")
        parts.append("\n".join(f"- {name}: {found.short()}" for name, found in outcome.profiles.items()))
    if remarks := _remarks(outcome):
        parts.append("\n".join(f"- {remark}" for remark in remarks))
    return "\n\n".join(part for part in parts if part)


def write(outcome: Outcome, directory: Path, draw: Callable[[Outcome], str]) -> Path:
    """Write report, data and picture into `directory`, and the summary into its README.md if that has the markers.

    A later run on the same day replaces an earlier one. Return the report's path.
    """
    stem = f"report-{outcome.date}"
    (directory / f"{stem}.json").write_text(json.dumps(asdict(outcome), indent=1) + "\n", "utf-8")
    picture = directory / f"{stem}.svg"
    if outcome.peer:
        picture.write_text(draw(outcome), "utf-8")
    path = directory / f"{stem}.md"
    path.write_text(markdown(outcome, picture.name), "utf-8")
    readme = directory / "README.md"
    if readme.exists() and BEGIN in readme.read_text("utf-8"):
        replace_between(readme, BEGIN, END, summary(outcome, path.name))
    return path


def replace_between(path: Path, begin: str, end: str, text: str) -> None:
    """Replace what a file has between two markers. Raises: ValueError without them."""
    content = path.read_text("utf-8")
    if begin not in content or end not in content:
        raise ValueError(f"{path} has no {begin}")
    before, _, rest = content.partition(begin)
    path.write_text(f"{before}{begin}\n\n{text}\n\n{end}{rest.partition(end)[2]}", "utf-8")
