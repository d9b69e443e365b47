"""`amqpctl compact_export`: small files of an export into larger ones.

The job is storage/export/compaction_job.py; this module translates command line and result.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import unquote

from amqpd.cli.command import Context, command
from amqpd.cli.errors import UNAVAILABLE, USAGE, Failure, UsageError
from amqpd.cli.export import StopRequest, formatted_size, look_for_packages
from amqpd.cli.formatters import compact
from amqpd.cli.terminal import StatusLine

if TYPE_CHECKING:
    from amqpd.storage.export.file_compaction import CompactionOptions, CompactionReport


@command(
    "Queues",
    "Merges small files of an export (Parquet, Iceberg, Delta) into larger ones",
    "--to <directory | URL> [--checkpoint <dir>] [--file-size <MB>]",
    (
        ("<directory | URL>", "the target of an export; its checkpoint has the format and the table"),
        ("--to", "files of the present date or hour are left alone, and those of at least half of --file-size"),
    ),
    examples=(
        ("compact_export --to ./lake", "files of about 128 MB, also beside amqpctl export --follow"),
        ("compact_export --to s3://lake/orders --checkpoint ./orders.done", "objects; readers use live_files"),
    ),
    has_json_errors=True,
)
def compact_export(context: Context) -> None:
    options = _options(context)
    from amqpd.storage.export import compaction_job
    from amqpd.storage.export.checkpoint import CheckpointError
    from amqpd.storage.export.file_compaction import Watch
    from amqpd.storage.export.targets import TargetError

    progress = _Progress(context)
    stopped = StopRequest("stopping after these files; once more to stop now (a rerun loses and repeats nothing)")
    try:
        report = compaction_job.compact(options, Watch(progress.show, stopped))
    except CheckpointError as error:
        raise Failure(USAGE, str(error)) from None
    except (TargetError, OSError) as error:
        raise Failure(UNAVAILABLE, str(error)) from None
    finally:
        progress.close()
        stopped.restore()
    if context.line.formatter == "json":
        found = vars(report) | {"seconds": round(report.seconds, 3), "to": options.to}
        context.out.write(compact(found) + "\n")
        return
    sizes = f"({formatted_size(report.bytes_before)}) into {report.written:,} ({formatted_size(report.bytes_after)})"
    removed = f"; removed {report.removed:,} old files" if report.removed else ""
    waiting = f"; {report.waiting:,} files wait" if report.waiting else ""
    context.out.write(f"Merged {report.merged:,} files {sizes} in {report.seconds:.1f} s{removed}{waiting}\n")


class _Progress:
    """Progress as the last line of a terminal, elsewhere as a line for each step."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._status = StatusLine(context.err)

    def show(self, report: CompactionReport) -> None:
        text = f"{report.merged:,} files merged into {report.written:,}, {report.waiting:,} wait"
        if not self._context.err.isatty():
            self._context.warn(text)
        elif not self._context.line.quiet and self._status.is_due:
            self._status.write(text)

    def close(self) -> None:
        self._status.close()


def _options(context: Context) -> CompactionOptions:
    """Return the job's options for the command line. Raises: UsageError, Failure."""
    from pathlib import Path

    from amqpd.storage.export.checkpoint import CheckpointError
    from amqpd.storage.export.shared_checkpoint import known_export

    given = context.line.given
    if "to" not in given:
        raise UsageError("--to is needed: the directory, object store or table of an export")
    to = given["to"]
    if to.startswith("file://"):
        to = unquote(to.removeprefix("file://"))
    if "checkpoint" not in given and "://" in to:
        raise UsageError("--checkpoint is needed if --to is not a directory: that of the export")
    file_mb = context.line.number("file-size") if "file-size" in given else 128
    if not file_mb:
        raise UsageError("Invalid options for this command:\n--file-size : 0")
    if "://" in given.get("checkpoint", ""):
        raise UsageError(
            "--checkpoint: expected a directory; an export that is shared in an object store is not merged"
        )
    checkpoint = Path(given.get("checkpoint") or to.rstrip("/") + ".checkpoint")
    try:
        what = known_export(checkpoint).what
    except CheckpointError as error:
        raise Failure(USAGE, str(error)) from None
    except OSError as error:
        raise Failure(UNAVAILABLE, f"--checkpoint {checkpoint}: {error.strerror}") from None
    if what["format"] not in ("parquet", "delta", "iceberg"):
        kind = what["format"] or "a database"
        raise UsageError(
            f"--to {to}: an export to {kind} has no files that can be merged: only parquet, delta, iceberg"
        )
    look_for_packages(context, to, what["format"])
    from amqpd.storage.export.file_compaction import CompactionOptions
    from amqpd.storage.export.job import named_target

    if named_target(to) != what["to"]:
        raise UsageError(f"--to {to}: the checkpoint {checkpoint} belongs to an export --to {what['to']}")
    return CompactionOptions(to.rstrip("/"), checkpoint, file_mb << 20)
