"""`amqpctl import`: messages of files to a broker, by AMQP.

The job is storage/export/import_job.py; this module translates command line and result.
"""

from __future__ import annotations

import time
from importlib.util import find_spec
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from amqpd.cli.checks import listeners_of
from amqpd.cli.command import Context, command
from amqpd.cli.errors import DATA, UNAVAILABLE, USAGE, Failure, UsageError
from amqpd.cli.export import PYARROW, StopRequest, missing_packages, progress_text
from amqpd.cli.formatters import compact
from amqpd.cli.terminal import StatusLine

if TYPE_CHECKING:
    from amqpd.storage.export.import_job import ImportOptions, MessageImportReport
    from amqpd.storage.export.publisher import SinkTarget


@command(
    "Queues",
    "Publishes messages of Parquet, JSON or CSV files, each once",
    "<path>... [--to <url>] [--vhost <vhost>] [--to-queue <queue> | --to-exchange <exchange> "
    "[--routing-key <key>]] [--format <name>] [--checkpoint <dir>] [--at-least-once] "
    "[--on-refused <stop|skip|save>]",
    (
        ("<path>", "a file, or a directory of files, as amqpctl export writes them"),
        ("<url>", "amqp://user:password@host:5672/vhost; default: the AMQP listener of --uri or --data-dir"),
    ),
    own_name="import",
    examples=(
        ("import ./lake", "all files below ./lake, each message to its own exchange with its own routing key"),
        ("import orders.parquet --to-queue replayed", "into one queue"),
        ("import ./lake --on-refused save", "messages that a full queue refuses are kept in rejected.json"),
        ("import a.csv b.csv --to amqp://u:p@host/shop --to-exchange events", "to another broker's exchange"),
    ),
    has_json_errors=True,
)
def import_messages(context: Context) -> None:
    options = _options(context)
    from amqpd.storage.export.checkpoint import CheckpointError
    from amqpd.storage.export.import_files import BadFile
    from amqpd.storage.export.import_job import BadImport, ImportJob
    from amqpd.storage.export.publisher import PublishError

    stopped = StopRequest("stopping; once more to stop at once (a rerun loses and repeats nothing)")
    progress = _ImportProgress(context)
    try:
        report = ImportJob(options, progress.show, stopped).run()
    except (BadImport, CheckpointError) as error:
        raise Failure(USAGE, str(error)) from None
    except BadFile as error:
        raise Failure(DATA, str(error)) from None
    except (PublishError, OSError) as error:
        raise Failure(UNAVAILABLE, f"{error}. A rerun continues") from None
    finally:
        progress.close()
        stopped.restore()
    rejected = report.rejected + report.rejected_before
    where = str(options.checkpoint / "rejected.json")
    if context.line.formatter == "json":
        found = {
            "messages": report.messages,
            "rejected": report.rejected,
            "rejected_before": report.rejected_before,
            "refused": report.refused,
            "rejected_file": where if rejected else None,
            "files": report.files,
            "waiting": report.waiting,
            "seconds": round(report.seconds, 3),
        }
        context.out.write(compact(found) + "\n")
    else:
        rate = report.messages / max(report.seconds, 0.001)
        took = f"{report.files} files in {report.seconds:.1f} s ({rate:,.0f} messages/s)"
        waiting = f"; {report.waiting} files wait" if report.waiting else ""
        refused = f"; {report.refused:,} were refused" if report.refused else ""
        context.out.write(f"Imported {report.messages:,} messages, {took}{refused}{waiting}\n")
    if rejected:
        what = "reached no queue, or were refused" if options.on_refused == "save" else "reached no queue"
        before = f" ({report.rejected_before:,} in earlier runs)" if report.rejected_before else ""
        raise Failure(
            DATA,
            f"{rejected:,} messages {what}{before}. They are in {where}: bind queues, then import that file, "
            "with another --checkpoint",
        )


class _ImportProgress:
    """A bar in the last line of a terminal; nothing elsewhere."""

    def __init__(self, context: Context) -> None:
        self._status = StatusLine(context.err)
        self._is_shown = context.err.isatty() and not context.line.quiet
        self._started = self._status.written_at = time.monotonic()

    def show(self, report: MessageImportReport) -> None:
        if self._is_shown and self._status.is_due:
            waiting = round(report.messages * (1 - report.share) / max(report.share, 0.001))
            self._status.write(progress_text(report.messages, waiting, time.monotonic() - self._started))

    def close(self) -> None:
        self._status.close()


def _options(context: Context) -> ImportOptions:
    """Return the job's options for the command line. Raises: UsageError, Failure."""
    given = context.line.given
    kind = given.get("format", "")
    if kind not in ("", "parquet", "json", "csv"):
        raise UsageError(f"--format {kind}: expected parquet, json or csv")
    if "to-queue" in given and ("to-exchange" in given or "routing-key" in given):
        raise UsageError("--to-queue : excludes --to-exchange and --routing-key")
    for path in context.operands:
        if "://" in path:
            raise UsageError(f"{path}: expected a local file or directory; copy objects of a store to one first")
    on_refused = given.get("on-refused", "stop")
    if on_refused not in ("stop", "skip", "save"):
        raise UsageError(f"--on-refused {on_refused}: expected stop, skip or save")
    if find_spec("pyarrow") is None:
        raise Failure(UNAVAILABLE, f"the import needs {missing_packages([PYARROW], 'export')}")
    from pathlib import Path

    from amqpd.storage.export.import_job import ImportOptions

    paths = tuple(Path(each) for each in context.operands)
    return ImportOptions(
        paths,
        _target(context),
        Path(given.get("checkpoint") or context.operands[0].rstrip("/") + ".imported"),
        kind,
        "" if "to-queue" in given else given.get("to-exchange"),
        given.get("to-queue") or given.get("routing-key"),
        "at-least-once" not in given,
        on_refused,
    )


def _target(context: Context) -> SinkTarget:
    """Return the broker of --to; without it, that of the admin API. Raises: UsageError, Failure."""
    from dataclasses import replace

    from amqpd.storage.export.publisher import SinkTarget

    to = context.line.given.get("to")
    if to is not None:
        try:
            target = SinkTarget.from_url(to)
        except ValueError as error:
            raise UsageError(f"--to : {error}") from None
        if "vhost" not in context.line.given:
            return target
        if urlsplit(to).path not in ("", "/"):
            raise UsageError("--vhost : the vhost is in --to")
        return replace(target, vhost=context.vhost)
    if context.client.uri.startswith("https://"):
        # The listener without TLS would get the password as it is.
        raise UsageError("--uri : import does not use TLS from --uri: give --to amqps://user:password@host:5671/vhost")
    ports = [int(each["port"]) for each in listeners_of(context) if each["protocol"] == "amqp"]
    if not ports:
        raise Failure(UNAVAILABLE, "the broker has no AMQP listener without TLS: use --to amqps://...")
    parts = urlsplit(context.client.uri)
    user, password = unquote(parts.username or "guest"), unquote(parts.password or "guest")
    return SinkTarget(parts.hostname or "127.0.0.1", ports[0], user, password, context.vhost, secure=False)
