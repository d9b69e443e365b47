"""`python -m interop.clients`: every client in every scenario, with amqpd and with RabbitMQ; prints the matrix.

The exit code is 1 if a cell is worse with amqpd than with RabbitMQ, and 2 if a broker or an installed client does not
start.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from amqpd.testing import BrokerFailed
from interop.bench.brokers import StartFailed
from interop.bench.rabbitmq import is_installed

from . import programs, report, scenarios
from .brokers import RABBITMQ, SIDES, make_certificates, sides
from .runner import Cell, Runner, differences, versions

PAGE: Final = Path(__file__).parents[2] / "docs" / "clients.md"


def run(
    client_names: Sequence[str], scenario_names: Sequence[str], side_names: Sequence[str], jobs: int
) -> report.Matrix:
    """Run the chosen cells; no names mean all. Raises RuntimeError if an installed client does not start."""
    clients = [each for each in programs.CLIENTS if not client_names or each.name in client_names]
    chosen = [each for each in scenarios.SCENARIOS if not scenario_names or each.name in scenario_names]
    cells: list[Cell] = []
    side_versions: dict[str, str] = {}
    client_versions: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="interop-") as folder:
        files = make_certificates(Path(folder))
        for side in sides(Path(folder), files):
            if side_names and side.name not in side_names:
                continue
            if side.name == RABBITMQ and not is_installed():
                side_versions[side.name] = "missing: not installed"
                cells += [Cell(c.name, s.name, side.name, "missing", "not installed") for c in clients for s in chosen]
                continue
            with side:
                runner = Runner(side, files, clients, jobs)
                client_versions = client_versions or versions(runner.commands)
                cells += runner.cells(chosen)
            side_versions[side.name] = side.version
    return report.Matrix(clients, chosen, side_versions, client_versions, cells)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the matrix as the arguments say, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m interop.clients", description=__doc__)
    parser.add_argument("--clients", default="", metavar="NAME,...", help=", ".join(programs.BY_NAME))
    parser.add_argument("--scenarios", default="", metavar="NAME,...", help="see interop/clients/README.md")
    parser.add_argument("--sides", default="", metavar="NAME,...", help=", ".join(SIDES))
    parser.add_argument("--jobs", type=int, default=6, help="programs at once (default: 6)")
    parser.add_argument("--out", type=Path, help="folder for matrix.md, matrix.html and matrix.json")
    parser.add_argument("--publish", action="store_true", help=f"write docs/{PAGE.name}")
    options = parser.parse_args(arguments)
    chosen = []
    for option, known in (("clients", programs.BY_NAME), ("scenarios", scenarios.BY_NAME), ("sides", SIDES)):
        names = [each for each in getattr(options, option).split(",") if each]
        unknown = [each for each in names if each not in known]
        if unknown:
            parser.error(f"--{option}: unknown: {', '.join(unknown)}; known: {', '.join(known)}")
        chosen.append(names)
    if options.publish and any(chosen):
        parser.error("--publish writes the page of the whole matrix: leave out --clients, --scenarios and --sides")
    try:
        matrix = run(*chosen, options.jobs)
    except (RuntimeError, BrokerFailed, StartFailed) as error:
        print(f"interop: {error}", file=sys.stderr)
        return 2
    print(report.text(matrix))
    if options.out:
        report.write(matrix, options.out)
    if options.publish:
        PAGE.write_text(report.markdown(matrix), "utf-8")
    return 1 if differences(matrix.cells) else 0


if __name__ == "__main__":
    sys.exit(main())
