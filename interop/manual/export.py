"""docs/reference/export.md: columns and options of `format("amqp")`, from storage/export and storage/spark.

The options are tables in the module docstrings of options.py and sink.py. An option of the code that the table lacks is
an error here. sink.py imports Spark, so both are parsed, not imported.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

from amqpd.storage.export.columns import BASE, COLUMNS
from interop.manual.markdown import MADE, cell, code, codes, table

STORAGE = Path(__file__).parents[2] / "storage"
HEAD = """\
# Columns and options of format("amqp")

What Spark's source and sink take and give; how they are used, and what happens when something is missing: [exports](../export.md).
An option that is not here, or has a value that it cannot have, is an error.

## Columns

"""
READ = """
## Options for reading

`spark.read.format("amqp").options(...)`, and `spark.readStream`.

"""
WRITTEN = """
## Columns for writing

"""
OPTIONS = """
## Options for writing

`rows.write.format("amqp").option(...)`, and `rows.writeStream`.

"""
ENTRY = re.compile(r"^ {4}(?P<names>\S.*?) {2,}(?P<meaning>\S.*)$")


def _story(name: str) -> tuple[str, tuple[str, ...]]:
    """Return the module's docstring and the names of its options."""
    tree = ast.parse((STORAGE / name).read_text("utf-8"))
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == "NAMES":
            return ast.get_docstring(tree, clean=False) or "", ast.literal_eval(node.value)
    raise ValueError(f"{name} has no NAMES")


def _rows(text: str) -> list[tuple[str, str]]:
    """Parse the table of a docstring: a name, two or more spaces, its meaning, continued on the following lines."""
    rows: list[tuple[str, str]] = []
    for line in text.splitlines():
        entry = ENTRY.match(line)
        if entry is not None:
            rows.append((entry["names"].strip(), entry["meaning"].strip()))
        elif line.startswith(" " * 8) and rows:
            rows[-1] = (rows[-1][0], f"{rows[-1][1]} {line.strip()}")
    return rows


def _table(head: str, rows: list[tuple[str, str]]) -> str:
    return table((head, ""), [(codes(re.split(r", | \| ", names)), cell(meaning)) for names, meaning in rows])


def _told(name: str, names: tuple[str, ...], rows: list[tuple[str, str]]) -> None:
    told = {each for each, _ in rows for each in re.split(r"[ ,|]+", each)}
    if missing := set(names) - told:
        raise ValueError(f"the story of {name} does not tell of {missing}")


def text() -> str:
    kinds = [(code(name), code(kind), "" if name in BASE else "if asked for") for name, kind in COLUMNS.items()]
    read, read_names = _story("export/options.py")
    options = _rows(read)
    _told("export/options.py", read_names, options)
    written, written_names = _story("spark/sink.py")
    columns, _, sink = written.partition("Options:")
    _told("spark/sink.py", written_names, _rows(sink))
    parts = [MADE, HEAD, table(("column", "type", ""), kinds), READ, _table("option", options)]
    parts += [WRITTEN, _table("column", _rows(columns)), OPTIONS, _table("option", _rows(sink))]
    return "".join(parts)
