"""The matrix as text, Markdown, HTML and JSON: a table for each protocol."""

from __future__ import annotations

import html
import json
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NamedTuple

from .programs import Client
from .runner import Cell, differences
from .scenarios import Scenario
from .tables import Table

SIGNS: Final = {"pass": "pass", "fail": "FAIL", "not offered": "–", "missing": "?"}
LEGEND: Final = (
    "A cell with one word: the same with all brokers of its table. Several: one for each, in this order. "
    "–: the client does not offer it, or its program cannot show it. ?: it could not be tried."
)
LETTERS: Final = {"pass": "p", "FAIL": "F"}
LETTERS_LEGEND: Final = "p: pass. F: failure."
COLUMNS_MAX: Final = 8
"""Clients in one table of the page: a wider one does not fit a screen."""

HEAD: Final = """\
# Clients

This page shows which client libraries, frameworks and tools were tried with amqpd, and what each of them did.
`make interop` runs [programs of each](../interop/clients/README.md) in each scenario: with amqpd under its own name,
with amqpd as RabbitMQ (the setting `compat`), and with RabbitMQ; Kafka's clients with amqpd and with Apache Kafka. It
fails if a cell is worse with amqpd than with the other broker.
"""


class Matrix(NamedTuple):
    """A finished run of one table. sides and versions: name -> version, of brokers and of clients."""

    table: Table
    sides: dict[str, str]
    versions: dict[str, str]
    cells: Sequence[Cell]

    @property
    def clients(self) -> Sequence[Client]:
        return self.table.clients

    @property
    def scenarios(self) -> Sequence[Scenario]:
        return self.table.scenarios

    def verdicts(self, client: str, scenario: str) -> list[Cell]:
        """Return the cells of this place, in the order of the sides."""
        found = {each.side: each for each in self.cells if (each.client, each.scenario) == (client, scenario)}
        return [found[side] for side in self.sides]

    def sign(self, client: str, scenario: str) -> str:
        """Return the words of a place: one if all sides agree, or else one for each side."""
        signs = [SIGNS[each.verdict] for each in self.verdicts(client, scenario)]
        return signs[0] if len(set(signs)) == 1 else " ".join(signs)


def groups(clients: Sequence[Client]) -> list[list[Client]]:
    """Return the clients by language, joined to groups of at most COLUMNS_MAX."""
    languages: dict[str, list[Client]] = {}
    for client in clients:
        languages.setdefault(client.language, []).append(client)
    found: list[list[Client]] = [[]]
    for members in languages.values():
        for start in range(0, len(members), COLUMNS_MAX):
            part = members[start : start + COLUMNS_MAX]
            if len(found[-1]) + len(part) > COLUMNS_MAX:
                found.append([])
            found[-1] += part
    return found


def brokers(matrix: Matrix) -> str:
    return ", ".join(f"{name} {version}" for name, version in matrix.sides.items())


def counts(matrix: Matrix) -> str:
    """Return the number of cells by verdict for each side."""
    lines = []
    for side in matrix.sides:
        found = Counter(each.verdict for each in matrix.cells if each.side == side)
        lines.append(f"{side}: " + ", ".join(f"{found[verdict]} {verdict}" for verdict in SIGNS))
    return "; ".join(lines)


def reasons(matrix: Matrix, verdict: str) -> list[str]:
    """Return a line for each reason of this verdict: clients, scenarios, reason. The sides are not repeated."""
    found: dict[tuple[str, str], list[str]] = {}
    for each in matrix.cells:
        if each.verdict == verdict:
            names = found.setdefault((each.client, each.text), [])
            if each.scenario not in names:
                names.append(each.scenario)
    whole = len(matrix.scenarios)
    joined: dict[tuple[str, str], list[str]] = {}
    for (client, text), names in found.items():
        joined.setdefault(("every scenario" if len(names) == whole else ", ".join(names), text), []).append(client)
    return [f"{', '.join(clients)}: {names}: {text}" for (names, text), clients in joined.items()]


def text(matrices: Sequence[Matrix]) -> str:
    """Return the tables for a terminal: a line for each scenario, a column for each client; then what went wrong.

    30 clients have 140 columns of a terminal, because a verdict is one letter.
    """
    return "\n".join([LEGEND, LETTERS_LEGEND, *(_table_as_text(each) for each in matrices)])


def _table_as_text(matrix: Matrix) -> str:
    def letters(client: Client, scenario: Scenario) -> str:
        return "".join(LETTERS.get(word, word) for word in matrix.sign(client.name, scenario.name).split())

    numbered = [
        f"{n:>3} {c.name} {matrix.versions.get(c.name, '(missing)')}, {c.language}"
        for n, c in enumerate(matrix.clients, 1)
    ]
    width = max([2, *(len(letters(c, s)) for c in matrix.clients for s in matrix.scenarios)])
    lines = ["", f"{matrix.table.title}, with {brokers(matrix)}", *numbered, ""]
    lines.append(" " * 19 + " ".join(f"{n:>{width}}" for n in range(1, len(matrix.clients) + 1)))
    for scenario in matrix.scenarios:
        signs = (letters(client, scenario) for client in matrix.clients)
        lines.append(f"{scenario.name:<19}" + " ".join(f"{sign:>{width}}" for sign in signs))
    lines.append("")
    for verdict in ("not offered", "missing"):
        lines += [f"{verdict}: {line}" for line in reasons(matrix, verdict)]
    lines += [f"FAIL: {line}" for line in reasons(matrix, "fail")]
    lines.append(counts(matrix))
    worse = differences(matrix.cells)
    peer = matrix.table.peer
    kind = (
        f"are worse with amqpd than with {peer}" if peer in matrix.sides else f"fail with amqpd; {peer} was not tried"
    )
    lines.append(f"{len(worse)} cells {kind}")
    for each in worse:
        lines += ["", f"{each.client}, {each.scenario}, {each.side}:", each.output[-3000:].strip()]
    return "\n".join(lines)


def markdown(matrices: Sequence[Matrix]) -> str:
    """Return the page docs/clients.md."""
    lines = [HEAD, f"Last run: {datetime.now(UTC).date()}. {LEGEND}", ""]
    lines += ["| table | clients | scenarios | brokers |", "|---|---|---|---|"]
    for each in matrices:
        lines.append(f"| {each.table.title} | {len(each.clients)} | {len(each.scenarios)} | {brokers(each)} |")
    for each in matrices:
        lines += ["", *_table_as_markdown(each)]
    return "\n".join(lines) + "\n"


def _table_as_markdown(matrix: Matrix) -> list[str]:
    lines = [
        f"## {matrix.table.title}",
        "",
        "| client | version | language | pass | not offered | missing | fail |",
        "|---|---|---|---|---|---|---|",
    ]
    for client in matrix.clients:
        found = Counter(each.verdict for each in matrix.cells if each.client == client.name and each.side == "amqpd")
        numbers = " | ".join(str(found[verdict]) for verdict in ("pass", "not offered", "missing", "fail"))
        lines.append(
            f"| {client.name} | {matrix.versions.get(client.name, 'missing')} | {client.language} | {numbers} |"
        )
    for group in groups(matrix.clients):
        if len(matrix.clients) > COLUMNS_MAX:
            lines += ["", f"### {', '.join(dict.fromkeys(client.language for client in group))}"]
        lines += ["", "| scenario | " + " | ".join(client.name for client in group) + " |"]
        lines.append("|---" * (len(group) + 1) + "|")
        for scenario in matrix.scenarios:
            signs = (matrix.sign(client.name, scenario.name) for client in group)
            lines.append(f"| {scenario.name} | " + " | ".join(signs) + " |")
    lines += ["", "### The scenarios", "", "| scenario | what the program shows |", "|---|---|"]
    lines += [f"| {each.name} | {each.text} |" for each in matrix.scenarios]
    for title, verdict in (("Not offered", "not offered"), ("Missing", "missing"), ("Failed", "fail")):
        found_reasons = reasons(matrix, verdict)
        if found_reasons:
            lines += ["", f"{title}:", "", *(f"- {line}" for line in found_reasons)]
    return lines


def page(matrices: Sequence[Matrix]) -> str:
    """Return the matrix as one HTML page without other files; a cell's reason is its tooltip."""
    style = (
        "body{font:14px sans-serif}td,th{padding:2px 6px;text-align:left}.pass{background:#cfc}.fail{background:#f99}"
        ".client{writing-mode:vertical-rl}"
    )
    return (
        f"<!doctype html><meta charset=utf-8><title>Clients of amqpd</title><style>{style}</style>"
        f"<h1>Clients of amqpd</h1><p>{datetime.now(UTC):%Y-%m-%d %H:%M} UTC. {LEGEND}</p>"
        + "".join(_table_as_html(each) for each in matrices)
    )


def _table_as_html(matrix: Matrix) -> str:
    head = "".join(
        f"<th class=client>{html.escape(c.name)} {html.escape(matrix.versions.get(c.name, 'missing'))}</th>"
        for c in matrix.clients
    )
    rows = []
    for scenario in matrix.scenarios:
        row = [f"<th title='{html.escape(scenario.text, True)}'>{html.escape(scenario.name)}</th>"]
        for client in matrix.clients:
            found = matrix.verdicts(client.name, scenario.name)
            kind = "fail" if any(each.verdict == "fail" for each in found) else found[0].verdict.replace(" ", "-")
            why = "\n".join(f"{each.side}: {each.verdict} {each.text}" for each in found)
            row.append(
                f"<td class='{kind}' title='{html.escape(why, True)}'>{matrix.sign(client.name, scenario.name)}</td>"
            )
        rows.append(f"<tr>{''.join(row)}</tr>")
    return (
        f"<h2>{html.escape(matrix.table.title)}</h2><p>{html.escape(brokers(matrix))}</p>"
        f"<table><tr><th></th>{head}</tr>{''.join(rows)}</table><p>{html.escape(counts(matrix))}</p>\n"
    )


def document(matrices: Sequence[Matrix]) -> str:
    """Return the tables as JSON: date, versions and every cell, with the output of those that failed."""
    tables = {}
    for each in matrices:
        clients = {c.name: {"language": c.language, "version": each.versions.get(c.name)} for c in each.clients}
        tables[each.table.name] = {
            "brokers": each.sides,
            "clients": clients,
            "scenarios": {scenario.name: scenario.text for scenario in each.scenarios},
            "cells": [cell._asdict() for cell in each.cells],
            "differences": [[cell.client, cell.scenario, cell.side] for cell in differences(each.cells)],
        }
    content = {"date": datetime.now(UTC).isoformat(timespec="seconds"), "tables": tables}
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def write(matrices: Sequence[Matrix], folder: Path) -> None:
    """Write matrix.md, matrix.html and matrix.json."""
    folder.mkdir(parents=True, exist_ok=True)
    for suffix, content in (("md", markdown(matrices)), ("html", page(matrices)), ("json", document(matrices))):
        (folder / f"matrix.{suffix}").write_text(content, "utf-8")
