"""`python -m interop.clients`: every client in every scenario, with amqpd and the broker beside it; prints the matrix.

The exit code is 1 if a cell is worse with amqpd than with RabbitMQ or Kafka, and 2 if a broker or an installed client
does not start.
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

from . import report
from .brokers import KAFKA, PEERS, RABBITMQ, SIDES, Certificates, Side, make_certificates, sides
from .kafka_brokers import AmqpdForKafka, ApacheKafka, KafkaSide
from .kafka_runner import KafkaRunner
from .programs import Missing
from .runner import Cell, Runner, differences, missing_cells, versions
from .tables import TABLES, Table

PAGE: Final = Path(__file__).parents[2] / "docs" / "clients.md"


class Run:
    """The results of a run, which grow side by side."""

    def __init__(self, tables: Sequence[Table]) -> None:
        self._tables = tables
        self._cells: dict[str, list[Cell]] = {each.name: [] for each in tables}
        self._versions: dict[str, dict[str, str]] = {}
        self._sides: dict[str, dict[str, str]] = {each.name: {} for each in tables}

    def add(self, table: Table, side: Side | KafkaSide, runner: Runner | KafkaRunner) -> None:
        """Run the table's cells with this side."""
        if table.name not in self._versions:
            self._versions[table.name] = versions(runner.commands, table.scenarios[0].group)
        self._cells[table.name] += runner.cells(table.scenarios)
        self._sides[table.name][side.name] = side.version

    def add_missing(self, table: Table, side: str, why: str) -> None:
        """Note that this broker is missing."""
        self._sides[table.name][side] = f"missing: {why}"
        self._cells[table.name] += missing_cells({each.name: why for each in table.clients}, table.scenarios, side)

    def matrices(self) -> list[report.Matrix]:
        """Return the finished tables."""
        return [
            report.Matrix(each, self._sides[each.name], self._versions.get(each.name, {}), self._cells[each.name])
            for each in self._tables
        ]


def run(tables: Sequence[Table], jobs: int) -> list[report.Matrix]:
    """Run all cells of the tables. Raises RuntimeError if an installed client does not start."""
    done = Run(tables)
    with tempfile.TemporaryDirectory(prefix="interop-") as name:
        folder = Path(name)
        files = make_certificates(folder)
        for side in sides(folder, files):
            chosen = [each for each in tables if side.name in each.sides and each.peer != KAFKA]
            if side.name == RABBITMQ and not is_installed():
                for table in chosen:
                    done.add_missing(table, side.name, "not installed")
            elif chosen:
                with side:
                    for table in chosen:
                        done.add(table, side, Runner(side, files, table, jobs))
        for table in tables:
            if table.peer == KAFKA:
                _run_kafka(done, table, files, folder, jobs)
    return done.matrices()


def _run_kafka(done: Run, table: Table, files: Certificates, folder: Path, jobs: int) -> None:
    for kind in (AmqpdForKafka, ApacheKafka):
        if kind.name in table.sides:
            try:
                side = kind(folder / f"{kind.name}-for-kafka", files)
            except Missing as reason:
                done.add_missing(table, kind.name, str(reason))
            else:
                with side:
                    done.add(table, side, KafkaRunner(side, files, table, jobs))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the matrix as the arguments say, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m interop.clients", description=__doc__)
    known = {
        "tables": [each.name for each in TABLES],
        "clients": [client.name for each in TABLES for client in each.clients],
        "scenarios": sorted({scenario.name for each in TABLES for scenario in each.scenarios}),
        "sides": [*SIDES, *(each for each in PEERS if each not in SIDES)],
    }
    for option, names in known.items():
        shown = "see interop/clients/README.md" if option == "scenarios" else ", ".join(names)
        parser.add_argument(f"--{option}", default="", metavar="NAME,...", help=shown)
    parser.add_argument("--jobs", type=int, default=6, help="programs at once (default: 6)")
    parser.add_argument("--out", type=Path, help="folder for matrix.md, matrix.html and matrix.json")
    parser.add_argument("--publish", action="store_true", help=f"write docs/{PAGE.name}")
    options = parser.parse_args(arguments)
    chosen: dict[str, list[str]] = {}
    for option, names in known.items():
        chosen[option] = [each for each in getattr(options, option).split(",") if each]
        unknown = [each for each in chosen[option] if each not in names]
        if unknown:
            parser.error(f"--{option}: unknown: {', '.join(unknown)}; known: {', '.join(names)}")
    if options.publish and any(chosen.values()):
        parser.error("--publish writes the page of the whole matrix: choose no tables, clients, scenarios or sides")
    parts = (each.part(chosen["clients"], chosen["scenarios"], chosen["sides"]) for each in TABLES)
    tables = [
        each
        for each in parts
        if each.clients and each.scenarios and each.sides and each.name in (chosen["tables"] or known["tables"])
    ]
    if not tables:
        parser.error("no table has the chosen clients, scenarios and sides together")
    try:
        matrices = run(tables, options.jobs)
    except (RuntimeError, BrokerFailed, StartFailed) as error:
        print(f"interop: {error}", file=sys.stderr)
        return 2
    print(report.text(matrices))
    if options.out:
        report.write(matrices, options.out)
    if options.publish:
        PAGE.write_text(report.markdown(matrices), "utf-8")
    return 1 if any(differences(each.cells) for each in matrices) else 0


if __name__ == "__main__":
    sys.exit(main())
