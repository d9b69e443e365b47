r"""Formatters of lists: table, pretty_table, json, json_stream, csv, erlang; aligned columns on a terminal.

A row is a list of JSON values, in the order of the columns. The formats are rabbitmqctl 3.10's:

- `table` (the default): cells separated by tabs, with a header row. A list without rows has no header.
- `pretty_table`: the same with box characters. rabbitmqctl writes the terminal's line-drawing escapes; here they are
  Unicode characters, which are also right in a file.
- `json`: an array with one object per line; `json_stream`: only the objects.
- `csv`: every cell in quotes.
- `erlang`: a list of property lists, one row per line. Texts are binaries, a missing value is `undefined`.

Field tables (`arguments`, `client_properties`) are Erlang terms, `[{"x-max-length",10}]`, as scripts and client suites
expect; in `json` they are objects. Control characters in names would break a table's columns or control the reader's
terminal, so tables show escapes (`\t`, `\x1b`); `json` and `csv` keep the characters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

from amqpd.cli.erlang import atom, erlang, field_table, term
from amqpd.cli.terminal import visible, width

Row = Sequence[Any]

FIELD_TABLES: Final = frozenset({"arguments", "client_properties", "effective_policy_definition"})


def table(columns: Sequence[str], rows: Sequence[Row], headers: bool) -> str:
    if not rows:
        return ""
    lines = ["\t".join(columns)] if headers else []
    lines += ["\t".join(visible(cell(column, value)) for column, value in _cells(columns, row)) for row in rows]
    return "\n".join(lines) + "\n"


def pretty_table(columns: Sequence[str], rows: Sequence[Row], headers: bool) -> str:
    if not rows:
        return ""
    lines = [list(columns)] if headers else []
    lines += [[visible(cell(column, value)) for column, value in _cells(columns, row)] for row in rows]
    widths = [max(width(line[number]) for line in lines) for number in range(len(columns))]

    def rule(left: str, middle: str, right: str) -> str:
        return left + middle.join("─" * (size + 2) for size in widths) + right

    def boxed(line: list[str]) -> str:
        padded = (f" {text}{' ' * (size - width(text))} " for text, size in zip(line, widths, strict=True))
        return "│" + "│".join(padded) + "│"

    text = f"\n{rule('├', '┼', '┤')}\n".join(boxed(line) for line in lines)
    return f"{rule('┌', '┬', '┐')}\n{text}\n{rule('└', '┴', '┘')}\n"


def json_rows(columns: Sequence[str], rows: Sequence[Row], headers: bool) -> str:
    """Return an array with an object per line. A missing value is "", as in rabbitmqctl. `headers` has no effect."""
    objects = _objects(columns, rows)
    return "[\n" + "\n,".join(objects) + ("\n]\n" if objects else "]\n")


def json_lines(columns: Sequence[str], rows: Sequence[Row]) -> str:
    """Return an object per line, for `json_stream`."""
    return "".join(f"{one}\n" for one in _objects(columns, rows))


def _objects(columns: Sequence[str], rows: Sequence[Row]) -> list[str]:
    return [compact({name: "" if value is None else value for name, value in _cells(columns, row)}) for row in rows]


def csv(columns: Sequence[str], rows: Sequence[Row], headers: bool) -> str:
    """Return CSV. `headers` has no effect (rabbit: only a table can be without)."""
    if not rows:
        return ""
    return csv_lines(
        [list(columns), *([cell(column, value) for column, value in _cells(columns, row)] for row in rows)]
    )


def csv_lines(rows: Iterable[Sequence[str]]) -> str:
    """Return one line of CSV for each row."""
    import csv as library
    import io

    text = io.StringIO()
    library.writer(text, quoting=library.QUOTE_ALL, lineterminator="\n").writerows(rows)
    return text.getvalue()


def erlang_rows(columns: Sequence[str], rows: Sequence[Row], headers: bool) -> str:
    """Return Erlang terms. `headers` has no effect."""
    lines = [
        "[" + ",".join(f"{{{atom(column)},{_typed(column, value)}}}" for column, value in _cells(columns, row)) + "]"
        for row in rows
    ]
    return "[" + ",\n ".join(lines) + "]\n"


def aligned(columns: Sequence[str], rows: Sequence[Row], headers: bool, bold: Callable[[str], str]) -> str:
    """Return aligned columns for a terminal: two spaces between them, numbers to the right, the header in bold."""
    if not rows:
        return ""
    lines = [[visible(cell(column, value)) for column, value in _cells(columns, row)] for row in rows]
    numbers = [all(isinstance(row[place], int | float | None) for row in rows) for place in range(len(columns))]
    widths = [
        max(width(line[place]) for line in [*lines, list(columns) if headers else [""] * len(columns)])
        for place in range(len(columns))
    ]

    def spread(line: Sequence[str]) -> str:
        parts = []
        for text, size, number in zip(line, widths, numbers, strict=True):
            space = " " * (size - width(text))
            parts.append(space + text if number else text + space)
        return "  ".join(parts).rstrip()

    shown = [spread(line) for line in lines]
    return "\n".join([bold(spread(columns)), *shown] if headers else shown) + "\n"


BY_NAME: Final[dict[str, Callable[[Sequence[str], Sequence[Row], bool], str]]] = {
    "table": table,
    "pretty_table": pretty_table,
    "json": json_rows,
    "csv": csv,
    "erlang": erlang_rows,
}
_ATOMS: Final = frozenset({"destination_kind", "source_kind", "state", "type"})
"""Columns whose values are atoms in RabbitMQ."""


def compact(value: object) -> str:
    import json

    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def json_cell(value: Any) -> Any:
    """Return objects and lists as JSON, for a cell; other values as they are."""
    return compact(value) if isinstance(value, dict | list) else value


def cell(column: str, value: Any) -> str:
    """Return one value as a cell of a table."""
    if value is None:
        return ""
    if column in FIELD_TABLES:
        return erlang(value or {})
    if isinstance(value, list):
        return f"[{', '.join(str(one) for one in value)}]"
    if isinstance(value, dict):
        return f"[{', '.join(f'{{{name}, {one}}}' for name, one in value.items())}]"
    return value if isinstance(value, str) else erlang(value)


def _typed(column: str, value: Any) -> str:
    if column in FIELD_TABLES:
        return field_table(value or {})
    if column == "tags" and isinstance(value, list):
        return "[" + ",".join(atom(str(one)) for one in value) + "]"
    return atom(value) if column in _ATOMS and isinstance(value, str) else term(value)


def _cells(columns: Sequence[str], row: Row) -> Iterator[tuple[str, Any]]:
    return zip(columns, row, strict=True)
