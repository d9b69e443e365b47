"""`amqpctl sql`: DuckDB's SQL over the durable queues of a virtual host.

Each queue that the statement names is a table. DuckDB asks it for the columns and the filter of the query
(storage/export/queue_dataset.py), so a table costs nothing until it is read. The result is written as it arrives,
except with `pretty_table`, whose columns need all rows.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, date, datetime, time
from importlib.util import find_spec
from math import isfinite
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

from amqpd.cli.command import Context, command
from amqpd.cli.errors import DATA, UNAVAILABLE, Failure, UsageError
from amqpd.cli.export import missing_packages, payload_options, read_source
from amqpd.cli.formatters import cell, compact, csv_lines, json_cell

if TYPE_CHECKING:
    from amqpd.storage.export.payload import PayloadFormat, PayloadOptions
    from amqpd.storage.export.queue_dataset import QueueDataset

PACKAGES: Final = {"duckdb": "duckdb>=1.1", "pyarrow": "pyarrow>=18"}
"""The extra `sql` of pyproject.toml."""
SETTINGS: Final = {"memory_limit": "512MB", "python_enable_replacements": "false"}
"""DuckDB's own memory: with more it writes temporary files. Replacements would make our variables tables."""
WORD: Final = re.compile(r'"((?:[^"]|"")+)"|(\w+)')
"""A quoted name or a word of SQL."""
TEXT: Final = re.compile(r"""("(?:[^"]|"")+")|'(?:[^']|'')*'|--[^\n]*|/\*.*?\*/""", re.DOTALL)
"""A quoted name, which may have single quotes in it; or a text or comment, which may have double quotes in it."""
ROWS: Final = 4096
NAMES_MAX: Final = 20


@command(
    "Queues",
    "Runs SQL on durable queues, without consuming their messages",
    "[--vhost <vhost>] [<statement>] [--include-settled] [--allow-data-loss] "
    "[--payload <format> [--payload-schema <file>] [--schema-registry <url>]]",
    (("<statement>", "a statement of DuckDB; without it, the list of all tables"),),
    own_options=(
        "include-settled",
        "allow-data-loss",
        "no-table-headers",
        "payload",
        "payload-schema",
        "payload-message",
        "schema-registry",
        "schema-registry-password-file",
    ),
    examples=(
        ("sql", "the tables: one for each durable queue"),
        ('sql "SELECT routing_key, count(*) FROM orders GROUP BY 1"', "counts by routing key"),
        ("sql --payload json 'SELECT sum(payload.price) FROM orders'", "a sum over a field of JSON bodies"),
        ("""sql --formatter json 'SELECT * FROM "my-queue" ORDER BY "offset" DESC LIMIT 3'""", "a quoted name"),
    ),
    needs_app=False,
    has_json_errors=True,
)
def sql(context: Context) -> None:
    missing = [wanted for name, wanted in PACKAGES.items() if find_spec(name) is None]
    if missing:
        raise Failure(UNAVAILABLE, f"sql needs {missing_packages(missing, 'sql')}")
    from amqpd.storage.export.files import SourceError
    from amqpd.storage.export.options import BadOption
    from amqpd.storage.export.plan import DataLoss

    try:
        if context.operands:
            _query(context, context.operands[0])
        else:
            _list(context)
    except BrokenPipeError:
        raise  # the reader of the output has ended
    except (SourceError, OSError) as error:
        raise Failure(UNAVAILABLE, str(error)) from None
    except (BadOption, DataLoss) as error:
        raise Failure(DATA, str(error).replace("failOnDataLoss=false", "--allow-data-loss")) from None


def _list(context: Context) -> None:
    """List the tables: one per durable queue of the vhost."""
    from amqpd.storage.export.queue_dataset import ORDER

    context.info(f"Tables of vhost '{context.vhost}'; each has the columns {', '.join(ORDER)}:")
    context.show(["table"], [[name] for name in quoted_names(_queues(context))])


def _queues(context: Context) -> list[str]:
    options = _options(context, queuePattern=".*")
    return [each.queue for each in options.queues()]


def _options(context: Context, **selection: str) -> Any:
    """Return the options to read queues. Raises: SourceError."""
    from amqpd.storage.export.options import parse

    given = context.line.given
    flags = {
        "includeSettled": str("include-settled" in given).lower(),
        "failOnDataLoss": str("allow-data-loss" not in given).lower(),
    }
    return parse({**read_source(context), "vhost": context.vhost, **flags, **selection})


def quoted_names(names: Sequence[str]) -> list[str]:
    """Return queues' names as SQL needs them."""
    import duckdb

    query = "SELECT keyword_name FROM duckdb_keywords() WHERE keyword_category <> 'unreserved'"
    with duckdb.connect() as connection:
        reserved = {word for (word,) in connection.execute(query).fetchall()}
    plain = re.compile(r"[a-z_][a-z0-9_]*")
    return [
        name if plain.fullmatch(name) and name not in reserved else '"' + name.replace('"', '""') + '"'
        for name in names
    ]


def _query(context: Context, statement: str) -> None:
    import tempfile  # slow to import for all commands

    import duckdb

    queues = _queues(context)
    with _signals() as seen, tempfile.TemporaryDirectory(prefix="amqpctl-sql-") as directory:
        settings = {**SETTINGS, "temp_directory": directory}
        with duckdb.connect(config=settings) as connection:
            connection.execute("SET TimeZone = 'UTC'")
            tables = _register(context, connection, statement, queues)
            try:
                result = connection.sql(statement)
                if result is not None:
                    to_reader = getattr(result, "to_arrow_reader", None) or result.fetch_arrow_reader  # duckdb < 1.4
                    _write(context, to_reader(ROWS))
            except (duckdb.Error, OSError, RuntimeError, ValueError) as error:
                if seen:
                    raise KeyboardInterrupt from None  # DuckDB has replaced it by an error of its own
                for table in tables:
                    if table.error is not None:
                        raise table.error from None
                if not isinstance(error, duckdb.Error) and "Error: " not in str(error):
                    raise  # not from DuckDB, whose errors pyarrow raises as its own
                raise Failure(DATA, _explained(context, str(error), queues)) from None


@contextmanager
def _signals() -> Iterator[list[int]]:
    """End a query at SIGINT and SIGTERM by a KeyboardInterrupt, so that temporary files are removed.

    Yields: The signals that have arrived.
    """
    seen: list[int] = []

    def interrupt(number: int, frame: FrameType | None) -> None:
        seen.append(number)
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield seen
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _register(context: Context, connection: Any, statement: str, queues: list[str]) -> list[QueueDataset]:
    """Make the queues whose names are words of the statement tables; all of them if there is none, as in `SHOW TABLES`.

    Raises: Failure, if DuckDB cannot tell two of these queues from each other.
    """
    from amqpd.storage.export.queue_dataset import QueueDataset

    words = words_of(statement)
    lower = {word.lower() for word in words}
    named = [queue for queue in queues if queue.lower() in lower]
    chosen: dict[str, str] = {}
    for queue in sorted(named or queues, key=lambda each: each not in words):  # the same case first
        other = chosen.setdefault(queue.lower(), queue)
        if other != queue and queue in words:
            raise Failure(DATA, f"DuckDB does not distinguish '{other}' and '{queue}': query one queue at a time")
    payload = payload_options(context)
    found = []
    for queue in chosen.values():
        options = _options(context, queue=queue)
        bodies = None if payload is None else _payload(context, options, payload, warns=bool(named))
        table = QueueDataset(options, bodies)
        connection.register(queue, table)
        found.append(table)
    return found


def words_of(statement: str) -> set[str]:
    """Return all words and quoted names of a statement, and perhaps more: parts of its texts and comments."""
    found: set[str] = set()
    for each in (statement, TEXT.sub(lambda match: match[1] or " ", statement)):
        found |= {plain or quoted.replace('""', '"') for quoted, plain in WORD.findall(each)}
    return found


def _payload(context: Context, options: Any, payload: PayloadOptions, *, warns: bool) -> PayloadFormat | None:
    """Return the format of a queue's bodies; None if its schema cannot be inferred.

    Raises: UsageError, SourceError, DataLoss, OSError.
    """
    from amqpd.storage.export.offsets import batch_parts
    from amqpd.storage.export.payload import BadSchema
    from amqpd.storage.export.payload_schema import format_of, sample

    try:
        return format_of(payload, sample(options, batch_parts(options)))
    except BadSchema as error:
        if payload.schema:
            raise UsageError(f"--payload-schema: {error}") from None
        if warns:
            context.warn(f"{options.names[0]} has no column payload: {error}")
        return None


def _explained(context: Context, text: str, queues: list[str]) -> str:
    """Return the first line of DuckDB's error; for an unknown table also the tables that exist."""
    line = text.strip().partition("\n")[0]
    if "Table with name" in line:
        names = ", ".join(quoted_names(queues[:NAMES_MAX])) or "none"
        more = f" and {len(queues) - NAMES_MAX} more (amqpctl sql)" if len(queues) > NAMES_MAX else ""
        line += f" Tables of vhost '{context.vhost}': {names}{more}"
    return line


def _write(context: Context, reader: Any) -> None:
    """Write the rows as they arrive."""
    columns = _distinct(reader.schema.names)
    chunks = (_rows(batch) for batch in reader if batch.num_rows)
    line = context.line
    if line.formatter == "json":
        _write_objects(context, columns, chunks)
        return
    flat = ([[json_cell(each) for each in row] for row in rows] for rows in chunks)
    if line.formatter in ("pretty_table", "erlang"):
        context.show(columns, [row for rows in flat for row in rows])
        return
    for number, rows in enumerate(flat):
        if line.formatter == "csv" and number:
            context.out.write(csv_lines([[cell("", each) for each in row] for row in rows]))
            continue
        context.with_line(line).show(columns, rows)
        if line.formatter == "table":
            line = line._replace(given={**line.given, "no-table-headers": ""})


def _write_objects(context: Context, columns: list[str], chunks: Iterator[list[list[Any]]]) -> None:
    before, after = ("", "\n") if context.line.stream else ("[\n", "")
    for rows in chunks:
        for row in rows:
            context.out.write(before + compact(dict(zip(columns, row, strict=True))) + after)
            before = before and "\n,"
    if not context.line.stream:
        context.out.write("[\n]\n" if before == "[\n" else "\n]\n")


def _rows(batch: Any) -> list[list[Any]]:
    """Return the rows of a record batch as values of JSON. Raises: Failure, if Python does not have a time."""
    try:
        columns = [_maps(column) if str(column.type).startswith("map<") else column.to_pylist() for column in batch]
    except (OverflowError, ValueError) as error:
        text = f"{error}: times must be microseconds, of the years 1 to 9999; cast others to VARCHAR"
        raise Failure(DATA, text) from None
    return [[_json_value(each) for each in row] for row in zip(*columns, strict=True)]


def _maps(column: Any) -> list[dict[Any, Any] | None]:
    """Return maps as dicts: pyarrow makes lists of pairs, and an empty one has nothing of a map."""
    return [None if pairs is None else dict(pairs) for pairs in column.to_pylist()]


def _distinct(names: list[str]) -> list[str]:
    """Return the names with a number behind those that repeat: JSON objects need distinct names."""
    found: list[str] = []
    for name in names:
        number, chosen = 1, name
        while chosen in found:
            number += 1
            chosen = f"{name}_{number}"
        found.append(chosen)
    return found


def _json_value(value: Any) -> Any:
    """Return a value of Arrow as one of JSON. Bytes that are not UTF-8 are written as \\xff."""
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if isfinite(value) else str(value)
        case bytes():
            return value.decode("utf-8", "backslashreplace")
        case datetime():
            unit = "microseconds" if value.microsecond % 1000 else "milliseconds"
            if value.tzinfo is None:
                return value.isoformat(timespec=unit)
            return value.astimezone(UTC).isoformat(timespec=unit).removesuffix("+00:00") + "Z"
        case date() | time():
            return value.isoformat()
        case dict():
            return {str(name): _json_value(each) for name, each in value.items()}
        case list() if value and all(isinstance(each, tuple) and len(each) == 2 for each in value):  # a map
            return {str(_json_value(name)): _json_value(each) for name, each in value}
        case list():
            return [_json_value(each) for each in value]
        case (int(months), int(days), int(nanoseconds)):  # an interval
            return _interval(months, days, nanoseconds // 1000)
    if hasattr(value, "to_integral_value"):  # Decimal: slow to import for all commands
        number = int(value) if value == value.to_integral_value() else float(value)
        return number if type(value)(repr(number)) == value else str(value)
    return str(value)


def _interval(months: int, days: int, microseconds: int) -> str:
    """Return an interval as DuckDB writes it, for instance `1 year 2 months 3 days 04:05:06.5`."""
    sign = -1 if months < 0 else 1
    counts = ((sign * (abs(months) // 12), "year"), (sign * (abs(months) % 12), "month"), (days, "day"))
    parts = [f"{count} {name}{'s' if abs(count) != 1 else ''}" for count, name in counts if count]
    if microseconds or not parts:
        seconds, rest = divmod(abs(microseconds), 1_000_000)
        minus, fraction = "-" if microseconds < 0 else "", f".{rest:06d}".rstrip("0") if rest else ""
        parts.append(f"{minus}{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}{fraction}")
    return " ".join(parts)
