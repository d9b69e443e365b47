"""Profiles of the broker's CPU time, in a few lines.

Compiled: `perf record` during a scenario. It needs Linux perf and permission to use it (root, or
kernel.perf_event_paranoid <= 1). Compiled modules show their functions by name; interpreted code appears as the
interpreter.

Interpreted: CPython 3.11 gives perf no names of Python functions, so a separate broker runs under sampler.py.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from . import generator
from .brokers import Amqpd, Broker
from .generator import RunFailed
from .rounds import Plan, options, warm_s
from .scenarios import SCENARIOS

NOT_PROFILED = frozenset({"S4cold", "window10", "window100"})
"""S4cold restarts its broker; the small windows are like window1."""
COUNTED = frozenset({"S4pub", "S4drain", "STpub", "ST1", "ST10"})
"""Scenarios measured over a number of messages, not over a time."""

SAMPLER = Path(__file__).resolve().parent / "sampler.py"
SHOWN, SHOWN_SHORT = 9, 3
SECONDS_MIN = 2.0
LINE = re.compile(r"^\s*(?P<share>[\d.]+)%\s+(?P<dso>\S+)\s+\[(?P<where>.)\]\s+(?P<symbol>.+?)(?:\s+-\s+-)?\s*$")
AREAS = (
    ("kernel", "kernel"),
    ("_hot__mypyc", "compiled amqpd"),
    ("libpython", "interpreter"),
    ("python", "interpreter"),
    ("loop.", "uvloop"),
    ("libuv", "uvloop"),
    ("crc32c", "CRC-32C"),
    ("libc.so", "libc"),
    ("librt", "librt"),
)


@dataclass(frozen=True)
class Profile:
    """areas: owner of the code and its share in percent; functions: share, area, name. Largest first."""

    areas: list[tuple[str, float]]
    functions: list[tuple[float, str, str]]

    def _owners(self) -> str:
        return ", ".join(f"{owner} {share:.0f} %" for owner, share in self.areas if share >= 1)

    def _heaviest(self, count: int) -> str:
        return ", ".join(f"`{name}` {share:.1f}" for share, _, name in self.functions[:count])

    def lines(self) -> list[str]:
        """Return the lines for the report."""
        return [f"- by owner: {self._owners()}", f"- by function: {self._heaviest(SHOWN)}"]

    def short(self) -> str:
        """Return one line for a summary."""
        return f"{self._owners()}; {self._heaviest(SHOWN_SHORT)}"


def chosen(groups: Sequence[str]) -> list[str]:
    """Return the scenarios of those groups that are profiled."""
    return [each.name for each in SCENARIOS if each.run_with in groups and each.name not in NOT_PROFILED]


def unavailable() -> str:
    """Return why there can be no profile, or ""."""
    if shutil.which("perf") is None:
        return "no profiles: perf is not installed (on Debian: apt install linux-perf)"
    probe = ["perf", "record", "-o", "/dev/null", "-F", "99", sys.executable, "-S", "-c", ""]
    allowed = subprocess.run(probe, capture_output=True, check=False).returncode == 0
    return "" if allowed else "no profiles: this user may not use perf"


def readable(symbol: str) -> str:
    """Return the Python name for mypyc's C name."""
    name = re.sub(r"^CPyDef_|^CPyPy_", "", symbol)
    return symbol if name == symbol else name.replace("___", ".").replace("amqpd.", "")


def area(dso: str) -> str:
    """Return the owner of a shared object's code."""
    for part, name in AREAS:
        if part in dso:
            return name
    return dso


def parse(text: str) -> tuple[dict[str, float], list[tuple[float, str, str]]]:
    """Parse `perf report --stdio`. Return the share of each area, and (share, area, function) by weight."""
    areas: dict[str, float] = defaultdict(float)
    functions = []
    for line in text.splitlines():
        if found := LINE.match(line):
            share, owner = float(found["share"]), "kernel" if found["where"] == "k" else area(found["dso"])
            areas[owner] += share
            functions.append((share, owner, readable(found["symbol"])))
    return dict(areas), functions


def profile(plan: Plan, broker: Broker, name: str, directory: Path) -> Profile:
    """Run one scenario under perf. Raises: RunFailed."""
    plan = replace(plan, seconds=max(SECONDS_MIN, plan.seconds))
    data = directory / "perf.data"
    before = {"S4drain": "S4pub", "ST1": "STpub", "ST10": "STpub"}.get(name)
    if before:
        _load(plan, broker, ["-s", before, "--count", f"{plan.count}"])
    if name in COUNTED:
        how, delay_s = ["-s", name, "--count", f"{plan.count}"], 0.1
    else:
        how, delay_s = options(plan, name), warm_s(plan, name) + 0.3
    recorder = subprocess.Popen(
        ["perf", "record", "-q", "-F", "2000", "-p", f"{broker.pid}", "-o", str(data), "-D", f"{delay_s * 1000:.0f}"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        _load(plan, broker, how)
    finally:
        recorder.terminate()
        recorder.wait(30)
    if behind := {"S4pub": "S4drain", "STpub": "ST10", "ST1": "ST10"}.get(name):  # drain the backlog that it leaves
        _load(plan, broker, ["-s", behind, "--count", f"{plan.count}"])
    sort = ["--no-children", "-g", "none", "--sort", "dso,symbol", "--percent-limit", "0.05"]
    told = subprocess.run(
        ["perf", "report", "--stdio", "-i", str(data), *sort], capture_output=True, text=True, check=False
    )
    areas, functions = parse(told.stdout)
    if not functions:
        raise RunFailed(f"perf report says nothing: {told.stderr.strip()[-200:]}")
    return Profile(sorted(areas.items(), key=lambda item: -item[1]), functions[:SHOWN])


def _load(plan: Plan, broker: Broker, how: list[str]) -> None:
    generator.run(plan.program, broker.host, broker.port, broker.pid, how)


def sampled(plan: Plan, broker: Amqpd, name: str, directory: Path) -> Profile:
    """Run one scenario on `broker`, started under the sampler and stopped afterwards. Raises: RunFailed,
    StartFailed.
    """
    plan = replace(plan, seconds=max(SECONDS_MIN, plan.seconds))
    answer = directory / "samples.json"
    broker.program = [str(SAMPLER), str(answer)]
    try:
        broker.start()
        _load(plan, broker, options(plan, name))
    finally:
        broker.stop()
    return of_samples(json.loads(answer.read_text("utf-8")))


def of_samples(counts: dict[str, int]) -> Profile:
    """counts: "module function" -> samples. The area is the package. Raises: RunFailed without samples."""
    total = sum(counts.values())
    if not total:
        raise RunFailed("the sampler has seen nothing")
    areas: dict[str, float] = defaultdict(float)
    functions = []
    for where, count in sorted(counts.items(), key=lambda item: -item[1]):
        module, _, function = where.partition(" ")
        share = 100 * count / total
        parts = module.removeprefix("amqpd.").split(".")
        owner = ".".join(parts[:-1]) or parts[0] if module.startswith("amqpd.") else "libraries"
        areas[owner] += share
        name = "event loop" if function == "Runner.run" else f"{parts[-1]}.{function}"
        functions.append((share, owner, name))
    return Profile(sorted(areas.items(), key=lambda item: -item[1]), functions[:SHOWN])
