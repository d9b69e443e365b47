"""Export job of several processes, which share the batches of one export (shared_checkpoint.py).

Each process claims a batch, exports it and claims the next one. If another process is gone, its batch is taken over. A
run ends when all batches are done, also those of other processes. So after a run the target has all messages that were
there, as after a run without others.
"""

from __future__ import annotations

import errno
import logging
import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import cast

from amqpd.storage.acks.retained import file_name
from amqpd.storage.export import offsets
from amqpd.storage.export.checkpoint import Progress
from amqpd.storage.export.claims import Claim, SharedState, StaleOwner, StateChanged
from amqpd.storage.export.iceberg import SCHEME
from amqpd.storage.export.job import (
    POLL_S,
    BadExport,
    BatchTrigger,
    ExportJob,
    ExportReport,
    OffsetSpan,
    key_of,
    positions_after,
)
from amqpd.storage.export.object_store import is_object_store
from amqpd.storage.export.plan import DataLoss
from amqpd.storage.export.shared_checkpoint import TAKE_OVER_S, ExportLedger, SharedCheckpoint
from amqpd.storage.export.shared_place import SharedObjects
from amqpd.storage.export.targets import ExportTarget, FilePlace, TargetError

logger = logging.getLogger(__name__)


class SharedExportJob(ExportJob):
    """One process of a shared export. Methods raise as those of ExportJob do.

    Reports have the batches of this process only; `lag` also has offsets that others have claimed.
    """

    _seen: SharedState
    """The state that the present batch is chosen from."""

    def _check(self) -> None:
        super()._check()
        options = self.options
        if options.is_database:
            raise BadExport("--share: not for a database; only for files, Iceberg and Delta")
        if options.where:
            raise BadExport("--share: not with --where")
        if options.format == "iceberg" and not options.to.startswith(SCHEME):
            raise BadExport(
                "--share: the catalog of an Iceberg table must be one that all machines reach: "
                "--to iceberg://CATALOG/NAMESPACE.TABLE"
            )
        if options.format in ("delta", "iceberg"):
            if options.payload:
                raise BadExport("--share: --payload is for files, not for tables")
            return
        if not is_object_store(options.to) and is_object_store(options.checkpoint):
            raise BadExport("--share: files in a directory need a --checkpoint in a directory of its file system")
        if is_object_store(options.to) and self._folder() is None:
            raise BadExport(
                f"--share: files in an object store need a --checkpoint below --to whose name begins with _, such as "
                f"{options.to.rstrip('/')}/_checkpoint"
            )

    def _folder(self) -> str | None:
        """Return the checkpoint's path below the target; None if it is elsewhere, or readers would see it."""
        root = self.options.to.rstrip("/") + "/"
        folder = self.options.checkpoint.rstrip("/").removeprefix(root)
        is_below = self.options.checkpoint.startswith(root) and folder.startswith("_")
        return folder if is_below else None

    def _open_checkpoint(self) -> ExportLedger:
        options = self.options
        given = TAKE_OVER_S if options.take_over_s is None else options.take_over_s
        return SharedCheckpoint(options.checkpoint, options.identity(), given)

    def _place(self) -> FilePlace:
        options = self.options
        if is_object_store(options.to):
            return SharedObjects(options.to, self._folder() or "")
        place = super()._place()
        try:
            _try_rename(Path(options.checkpoint), Path(options.to))
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            raise BadExport(
                f"--share: --checkpoint {options.checkpoint} is not on the file system of --to {options.to}, so its "
                "files cannot be renamed in one step"
            ) from None
        return place

    def _prepare(self, ledger: ExportLedger, target: ExportTarget, total: ExportReport) -> None:
        shared = cast(SharedCheckpoint, ledger)
        if shared.shared.is_checked:
            return
        try:
            target.check_fresh()
        except TargetError:
            if not shared.refresh().is_checked:  # else the files are those of this export
                raise
        shared.mark_checked()

    def _begin(self, ledger: ExportLedger, spans: list[OffsetSpan], label: str) -> Progress:
        claimed = {key_of(span): [span.queue.id, span.first, span.stop] for span in spans if span.stop > span.first}
        return cast(SharedCheckpoint, ledger).begin(self._seen, positions_after(spans), claimed, label)

    def _batches(self, ledger: ExportLedger, target: ExportTarget) -> Iterator[ExportReport]:
        shared = cast(SharedCheckpoint, ledger)
        limit = self.options.batch_rows or target.batch_rows
        trigger = BatchTrigger(self.options.batch_bytes_min, self.options.max_batch_age_s)
        while not self.stopped():
            state = self._seen = shared.refresh()
            left = shared.left_claim()
            if left is not None:
                self.engine.start()
                report = self._attempt(shared, partial(self._take_over, shared, target, left))
                if report is not None:
                    yield report
                continue
            spans = self._spans(ledger, limit)
            has_work = any(span.stop > span.first for span in spans)
            if has_work and state.has_room:
                if not self._begins_now(trigger, spans, limit):
                    continue
                self.engine.start()
                report = self._attempt(shared, partial(self._batch, shared, target, spans))
                if report is not None:
                    yield report
            elif state.claims:
                self._wait(min(POLL_S, shared.life.beat_s))  # for other processes
            elif not self.options.follow or self._is_done(spans):
                return
            else:
                trigger.reset()
                self._wait(POLL_S)

    def _attempt(self, ledger: SharedCheckpoint, batch: Callable[[], ExportReport]) -> ExportReport | None:
        """Export a batch. Return None if another process was faster, or has taken it over."""
        try:
            return batch()
        except StateChanged:
            return None
        except StaleOwner as error:
            logger.warning("%s; the work of this process at it is dropped", error)
        except Exception as error:
            if ledger.owns_claim():
                ledger.release()
                raise
            logger.warning("a batch was taken over by another process, which has removed its files: %s", error)
        ledger.drop()
        return None

    def _take_over(self, ledger: SharedCheckpoint, target: ExportTarget, claim: Claim) -> ExportReport:
        """Complete the batch of another process, or export it again."""
        progress = ledger.take_over(claim)
        logger.warning("batch %d is taken over: %s has not finished it", claim.batch, claim.owner)
        if progress.moves is not None:
            if target.has(progress):
                ledger.commit()
                spans = self._claimed_spans(claim, may_be_lost=True)
                self._commit_holds(ledger, spans)
                return ExportReport.of(progress, spans)
            ledger.open_again()
        spans = self._claimed_spans(claim, may_be_lost=not self.options.fail_on_data_loss)
        if not spans:
            progress.moves = []
            ledger.save()
            ledger.commit()
            return ExportReport.of(progress)
        return self._batch(ledger, target, spans, progress, claim.label)

    def _claimed_spans(self, claim: Claim, *, may_be_lost: bool) -> list[OffsetSpan]:
        """Return the spans of a claim whose queues exist. Raises DataLoss if one is gone and may not be lost."""
        found: list[OffsetSpan] = []
        with ExitStack() as stack:
            snapshots = offsets.snapshots(self._parsed, stack)
            for key, (queue_id, first, stop) in claim.spans.items():
                snapshot = snapshots.get(key)
                if snapshot is None or snapshot.queue.id != queue_id:
                    text = f"queue {key} was deleted before offsets {first} to {stop - 1} were exported"
                    if not may_be_lost:
                        raise DataLoss(f"{text} (failOnDataLoss=false continues without them)")
                    if claim.moves is None:
                        logger.warning("lost: %s", text)
                    continue
                whole = file_name(self.options.name) in snapshot.sizes
                found.append(OffsetSpan(snapshot.queue, first, stop, max(stop, snapshot.end), whole))
        return found


def _try_rename(source: Path, target: Path) -> None:
    """Rename an empty file from one directory to the other, and remove it. Raises OSError.

    Mounts of one file system at two places have one device number, but no rename leads from one to the other.
    """
    name = f".rename-{secrets.token_hex(8)}"
    (source / name).touch()
    try:
        os.rename(source / name, target / name)
    except OSError:
        (source / name).unlink()
        raise
    (target / name).unlink()
