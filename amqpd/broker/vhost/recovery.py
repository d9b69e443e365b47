"""Reconciliation of the metadata with the queues' directories at a start.

After a wrong bit, SQLite ignores the rest of its log. The database then lacks the latest changes, but the directories
show the latest created and deleted queues:

    directory without a row        queue.json declares the queue again, without bindings; a lost vhost is declared
                                   again too, without permissions
    the same, queue.json damaged   the directory is moved to lost+found/
    a row and `<id>.deleted`       the queue was deleted: its row and its bindings are deleted
    `<id>.deleted` without a row   the directory is removed

A queue that never had a message has no directory, so it is lost with its row. The log has a line for each case and a
summary; `RecoveryReport` has them for `amqpctl status`.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final, NamedTuple

from amqpd.broker.queue import arguments as queue_arguments
from amqpd.errors import AmqpError
from amqpd.protocol.field_table import decode_table
from amqpd.storage.metadata.rows import Change, Delete, DeleteBindings, Put, QueueRow, VhostRow
from amqpd.storage.metadata.store import MetadataState
from amqpd.storage.queue_json import DESCRIPTION, Description, DirectorySurvey, read_description, survey
from amqpd.storage.storage import Storage

log = logging.getLogger(__name__)

NAME_SIZE_MAX: Final = 255


class Restored(NamedTuple):
    """A queue that was declared again.

    Attributes:
        whole: its queue.json has the arguments. Earlier versions did not write them.
    """

    vhost: str
    name: str
    whole: bool


class RecoveryReport:
    """Differences that a start has found.

    Attributes:
        vhosts, queues: objects that were declared again.
        set_aside: (path in lost+found, reason).
        void: (vhost, queue) of rows of deleted objects; queue is "" for a vhost.
    """

    def __init__(self) -> None:
        self.vhosts: list[str] = []
        self.queues: list[Restored] = []
        self.set_aside: list[tuple[str, str]] = []
        self.void: list[tuple[str, str]] = []


class RecoveryFindings(NamedTuple):
    """Result of the reconciliation.

    Attributes:
        state: the correct metadata.
        changes: changes that correct the stored metadata.
        void: directories of deleted objects with a row, to be emptied after the commit of `changes`.
        gone: directories of deleted objects without a row. The paths in both lack the suffix `.deleted`.
    """

    state: MetadataState
    changes: list[Change]
    void: list[str]
    gone: list[str]
    report: RecoveryReport


def reconcile(storage: Storage, state: MetadataState) -> RecoveryFindings:
    """Compare metadata and directories before any queue is opened. Move unknown directories to lost+found.

    Cost: a listing per vhost and 1 us per queue; a read and some renames per restored queue. Raises: OSError.
    """
    return Reconciler(storage, state).run()


class Reconciler:
    def __init__(self, storage: Storage, state: MetadataState) -> None:
        self.storage = storage
        self.state = state
        self.report = RecoveryReport()
        self.changes: list[Change] = []
        self.void: list[str] = []
        self.gone: list[str] = []
        self.vhosts: dict[str, VhostRow] = {}
        self.vhost_names: dict[str, str] = {}
        self.queues: list[QueueRow] = []
        self.deleting: list[QueueRow] = []
        self.names: set[tuple[str, str]] = set()

    def run(self) -> RecoveryFindings:
        found = survey(self.storage.filesystem, self.storage.data_dir)
        self._check_vhost_rows(found)
        lost = self._check_queue_rows(found)
        whole = set(self.vhosts)
        self._check_directories(found)
        state = self.state._replace(
            vhosts=list(self.vhosts.values()), queues=self.queues, deleting_queues=self.deleting
        )
        if self.report.void:
            state = _without(state, whole, lost)
        self._log_report()
        return RecoveryFindings(state, self.changes, self.void, self.gone, self.report)

    def _check_vhost_rows(self, found: DirectorySurvey) -> None:
        deleted = set(found.deleted_vhosts)
        for row in self.state.vhosts:
            if row.id in deleted:
                self.changes.append(Delete(row))
                self.void.append(self.storage.data_directory.vhost_chain(row.id)[-1])
                self.report.void.append((row.name, ""))
                deleted.discard(row.id)
            else:
                self.vhosts[row.name] = row
                self.vhost_names[row.id] = row.name
        deleting = {row.id for row in self.state.deleting_vhosts}
        self.gone += [self.storage.data_directory.vhost_chain(each)[-1] for each in deleted - deleting]

    def _check_queue_rows(self, found: DirectorySurvey) -> set[tuple[str, str]]:
        """Drop the rows of deleted queues. Return (vhost, name) of the queues whose bindings are dropped too."""
        deleted = {(vhost, queue) for vhost, queues in found.deleted.items() for queue in queues}
        lost: set[tuple[str, str]] = set()
        for row in self.state.queues:
            vhost = self.vhosts.get(row.vhost)
            if vhost is None:
                continue  # removed with its vhost
            if (vhost.id, row.id) in deleted:
                deleted.discard((vhost.id, row.id))
                self.void.append(self.storage.data_directory.queue_chain(vhost.id, row.id)[-1])
                self.changes.append(Delete(row))
                self.report.void.append((row.vhost, row.name))
                lost.add((row.vhost, row.name))
            else:
                self.queues.append(row)
                self.names.add((row.vhost, row.name))
        for row in self.state.deleting_queues:
            vhost = self.vhosts.get(row.vhost)
            if vhost is not None:
                self.deleting.append(row)
                deleted.discard((vhost.id, row.id))
        self.gone += [self.storage.data_directory.queue_chain(vhost_id, queue_id)[-1] for vhost_id, queue_id in deleted]
        lost -= self.names  # a new queue of the same name keeps its bindings
        self.changes += [DeleteBindings(vhost, name, "queue") for vhost, name in sorted(lost)]
        return lost

    def _check_directories(self, found: DirectorySurvey) -> None:
        leaving = {row.id for row in self.state.deleting_vhosts}
        known = {(self.vhosts[row.vhost].id, row.id) for row in (*self.queues, *self.deleting)}
        for vhost_id, queues in found.queues.items():
            if vhost_id in leaving:
                continue
            for queue_id in queues:
                if (vhost_id, queue_id) not in known:
                    self._restore(vhost_id, queue_id)

    def _restore(self, vhost_id: str, queue_id: str) -> None:
        path = f"{self.storage.data_directory.queue_chain(vhost_id, queue_id)[-1]}/{DESCRIPTION}"
        description = read_description(self.storage.filesystem.read_optional(path), queue_id)
        if description is None:
            self._set_aside(vhost_id, queue_id, f"its {DESCRIPTION} is missing or damaged")
            return
        why = self._refusal(description)
        if why:
            self._set_aside(vhost_id, queue_id, why)
            return
        vhost = self.vhosts.get(description.vhost)
        if vhost is None:
            if vhost_id in self.vhost_names:
                other = self.vhost_names[vhost_id]
                self._set_aside(
                    vhost_id, queue_id, f"its {DESCRIPTION} says vhost '{description.vhost}', it is in '{other}'"
                )
                return
            vhost = self.vhosts[description.vhost] = VhostRow(description.vhost, vhost_id)
            self.vhost_names[vhost_id] = description.vhost
            self.changes.append(Put(vhost))
            self.report.vhosts.append(description.vhost)
        if vhost.id != vhost_id:
            self.storage.data_directory.move_queue(queue_id, vhost_id, vhost.id)
        row = QueueRow(
            description.vhost, description.queue, queue_id, True, description.auto_delete, False, description.arguments
        )
        self.queues.append(row)
        self.names.add((description.vhost, description.queue))
        self.changes.append(Put(row))
        self.report.queues.append(Restored(description.vhost, description.queue, description.whole))

    def _refusal(self, description: Description) -> str:
        """Return the reason why the queue cannot be declared again, or ""."""
        if (description.vhost, description.queue) in self.names:
            return f"there is another queue '{description.queue}' in vhost '{description.vhost}'"
        if any(row.name == description.vhost for row in self.state.deleting_vhosts):
            return f"vhost '{description.vhost}' is being deleted"
        if len(description.queue.encode()) > NAME_SIZE_MAX or len(description.vhost.encode()) > NAME_SIZE_MAX:
            return f"a name in its {DESCRIPTION} is too long"
        try:
            table = decode_table(description.arguments, 0)[0] if description.arguments else {}
            queue_arguments.validate(description.queue, description.vhost, table)
        except (AmqpError, ValueError) as error:
            return f"the arguments in its {DESCRIPTION} cannot be used: {error}"
        return ""

    def _set_aside(self, vhost_id: str, queue_id: str, why: str) -> None:
        path = self.storage.data_directory.set_aside(vhost_id, queue_id)
        self.report.set_aside.append((path, why))
        log.error("the directory of an unknown queue was moved to %s: %s", path, why)

    def _log_report(self) -> None:
        report = self.report
        for vhost in report.vhosts:
            log.error("vhost '%s' was missing in the metadata and is declared again, without permissions", vhost)
        for each in report.queues:
            log.error(
                "queue '%s' in vhost '%s' was missing in the metadata and is declared again from its directory%s",
                each.name,
                each.vhost,
                "" if each.whole else ", without arguments: the earlier version that created it did not store them",
            )
        for name, queue in report.void:
            what = f"queue '{queue}' in vhost '{name}'" if queue else f"vhost '{name}'"
            log.warning("%s was deleted, but the metadata still had it: it stays deleted", what)
        if report.queues or report.vhosts or report.set_aside:
            log.error(
                "the metadata was incomplete: %d queues and %d vhosts are declared again, without bindings; "
                "%d directories are in lost+found. Exchanges, bindings, users, permissions and queues that never had a "
                "message may be missing too; `amqpctl status` shows this again",
                len(report.queues),
                len(report.vhosts),
                len(report.set_aside),
            )


def _without(state: MetadataState, vhosts: set[str], lost: set[tuple[str, str]]) -> MetadataState:
    """Return the state without rows of other vhosts and without bindings to the `lost` queues."""
    bindings = [
        row
        for row in state.bindings
        if row.vhost in vhosts and not (row.destination_type == "queue" and (row.vhost, row.destination) in lost)
    ]
    return state._replace(
        bindings=bindings,
        permissions=[row for row in state.permissions if row.vhost in vhosts],
        topic_permissions=[row for row in state.topic_permissions if row.vhost in vhosts],
        exchanges=[row for row in state.exchanges if row.vhost in vhosts],
        policies=[row for row in state.policies if row.vhost in vhosts],
        parameters=[row for row in state.parameters if row.vhost in vhosts],
    )


def in_parts(changes: Sequence[Change]) -> list[Sequence[Change]]:
    """Split changes into commits: 100,000 rows in one commit would delay others."""
    return [changes[start : start + 1000] for start in range(0, len(changes), 1000)]
