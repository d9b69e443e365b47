"""Definitions: all declared objects as one JSON document, exported and imported. Format: docs/backup.md.

Texts and codes are rabbitmqctl's. Its other format, Erlang terms, is refused: no other program reads it.
"""

from __future__ import annotations

import json
from typing import Any, Final

from amqpd.cli.client import quoted
from amqpd.cli.command import Context, command
from amqpd.cli.errors import DATA, Failure, UsageError

GROUP: Final = "Definitions"
NAMES_SHOWN_MAX: Final = 10
_STAMPS: Final = frozenset({"rabbit_version", "rabbitmq_version", "product_name", "product_version"})
"""Keys about the program that wrote the document. They declare nothing."""


def _json_only(context: Context) -> None:
    kind = context.line.given.get("format", "json").lower()
    if kind == "erlang":
        raise UsageError("Bad argument: amqpctl reads and writes definitions as JSON only (--format json)", DATA)
    if kind != "json":
        raise UsageError("Bad argument: Format should be either json or erlang", DATA)


def _path(context: Context) -> str:
    """Return the path for all vhosts (rabbit), or for one with -p, which rabbitmqctl does not have."""
    return f"/api/definitions/{quoted(context.vhost)}" if "vhost" in context.line.given else "/api/definitions"


_FILE: Final = ('<file_path | "-">', "a file; - is standard input or output. Without -p: all vhosts, with users")


@command(
    GROUP,
    "Exports definitions in JSON: vhosts, users, permissions, policies, exchanges, queues, bindings",
    '[--vhost <vhost>] <file_path | "-"> [--format <json>] [--timeout <timeout>]',
    (_FILE,),
    examples=(
        ("export_definitions /backup/definitions.json", "all but messages; only the owner can read the file"),
        ("-q export_definitions -p shop -", "one vhost, to standard output"),
    ),
)
def export_definitions(context: Context) -> None:
    _json_only(context)
    name = context.operands[0]
    if name == "-":
        context.out.write(json.dumps(_exported(context), ensure_ascii=False) + "\n")
        return
    import os

    path = os.path.realpath(name)  # pathlib is 3 ms of start-up
    directory = os.path.dirname(path)  # noqa: PTH120
    if not os.path.isdir(directory):  # noqa: PTH112
        raise UsageError(f"Bad argument: Directory {directory} does not exist", DATA)
    context.info(f'Exporting definitions in JSON to a file at "{path}" ...')
    text = json.dumps(_exported(context), ensure_ascii=False, indent=2) + "\n"
    # The file has password hashes, and half a file looks like a whole one: write a new file and rename it. A pipe or
    # a device cannot be replaced.
    whole = not os.path.lexists(path) or os.path.isfile(path)  # noqa: PTH113
    coming = f"{path}.new" if whole else path
    try:
        flags = os.O_WRONLY | os.O_CREAT
        if whole:
            # In a directory where other users may write: never open their file or follow their link.
            flags |= os.O_EXCL
            if os.path.lexists(coming):
                os.unlink(coming)  # noqa: PTH108
        made = os.open(coming, flags, 0o600)
        with open(made, "w", encoding="utf-8") as file:  # noqa: PTH123 - a descriptor
            file.write(text)
        if whole:
            os.replace(coming, path)  # noqa: PTH105
    except OSError as error:
        raise Failure(DATA, f"{path} cannot be written: {error.strerror}") from None
    context.success()


def _exported(context: Context) -> Any:
    context.no_timeout()
    found = context.client.get(_path(context))
    names = [str(each.get("name")) for each in found.get("users", ()) if each.get("argon2id_hash")]
    if names:
        shown = ", ".join(names[:NAMES_SHOWN_MAX]) + (", ..." if len(names) > NAMES_SHOWN_MAX else "")
        context.warn(
            f"Warning: RabbitMQ cannot read the password hashes of {len(names)} users ({shown}), and will know them "
            f"without a password. Their passwords were set or first used on amqpd, which keeps argon2id hashes. With "
            f"auth.password_hashing = rabbit_password_hashing_sha256 it keeps hashes that RabbitMQ reads: of new "
            f"passwords at once, of others from the user's next login."
        )
    return found


@command(
    GROUP,
    "Imports definitions in JSON, all or none",
    '[--vhost <vhost>] [<file_path | "-">] [--format <json>] [--skip-if-unchanged] [--skip-unsupported] '
    "[--timeout <timeout>]",
    (_FILE,),
    examples=(
        ("import_definitions /backup/definitions.json", "exit code 65 and all errors, if it is not possible"),
        ("import_definitions --skip-if-unchanged d.json", "imports nothing if all objects exist already"),
        ("import_definitions --skip-unsupported d.json", "standard error has a list of skipped objects"),
    ),
)
def import_definitions(context: Context) -> None:
    _json_only(context)
    if context.operands and context.operands[0] != "-":
        import os

        path = os.path.abspath(context.operands[0])  # noqa: PTH100
        if not os.path.exists(path):  # noqa: PTH110
            raise UsageError(f"Bad argument: File {path} does not exist", DATA)
        if os.path.isdir(path):  # noqa: PTH112
            raise Failure(DATA, f"Path {path} is a directory")
        context.info(f'Importing definitions in JSON from a file at "{path}" ...')
        try:
            with open(path, encoding="utf-8") as file:  # noqa: PTH123 - pathlib is 3 ms of start-up
                text = file.read()
        except (OSError, UnicodeDecodeError) as error:
            raise Failure(DATA, f"{path} cannot be read: {error}") from None
    else:
        context.info("Importing definitions in JSON from standard input ...")
        text = context.stdin.read()
    try:
        document = json.loads(text)
    except ValueError as error:
        raise Failure(DATA, f"Failed to parse definitions as JSON: {error}") from None
    if not isinstance(document, dict):
        raise Failure(DATA, "Failed to parse definitions: they are a JSON object")
    if "skip-if-unchanged" in context.line.given and _is_there(document, _exported(context)):
        context.info("Definitions are there already, nothing was imported")
        context.success()
        return
    context.no_timeout()
    asked = "skip_unsupported=true" if "skip-unsupported" in context.line.given else "report=true"
    answer = context.client.send("POST", f"{_path(context)}?{asked}", document)
    if not answer.ok:
        raise Failure(DATA if answer.status < 500 else answer.failure().exit_code, answer.reason)
    _tell(context, answer.data or {})
    context.info("Definitions were imported")
    context.success()


def _tell(context: Context, report: dict[str, Any]) -> None:
    """Report items that were not imported as the file says."""
    unknown, skipped = report.get("unknown", []), report.get("skipped", [])
    for path in unknown:
        context.warn(f"Ignored: {path} is unknown")
    for each in skipped:
        context.warn(f"Skipped: {each['path']}: {' '.join(each['reason'].split())}")
    more = report.get("unknown_count", 0) + report.get("skipped_count", 0) - len(unknown) - len(skipped)
    if more > 0:
        context.warn(f"... and {more} more")


def _is_there(document: dict[str, Any], exported: dict[str, Any]) -> bool:
    """Return whether each item of the document exists with the same values. Keys that the document lacks may differ."""
    for name, items in document.items():
        if name in _STAMPS:
            continue
        present = exported.get(name)
        if not isinstance(items, list) or not isinstance(present, list):
            return False
        known: dict[str, list[Any]] = {}
        for each in present:
            known.setdefault(_key(each), []).append(each)
        if not all(any(_agrees(item, each) for each in known.get(_key(item), ())) for item in items):
            return False
    return True


def _key(item: Any) -> str:
    """Return the names that identify an item."""
    if not isinstance(item, dict):
        return ""
    names = ("name", "vhost", "user", "source", "destination", "routing_key", "component", "exchange")
    return json.dumps([item.get(name) for name in names])


def _agrees(item: Any, there: Any) -> bool:
    if isinstance(item, dict) and isinstance(there, dict):
        return all(name in there and _agrees(value, there[name]) for name, value in item.items())
    return bool(item == there)
