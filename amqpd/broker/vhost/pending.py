"""Declarations and deletions whose metadata commit is pending.

**Creation**: check, commit the rows, then create the object from the commit callback. So nothing can be found,
routed to or confirmed that a restart would not find, and a failed commit leaves nothing in memory. Its rows may be
in the database, if a server disappeared or a sync failed. So they are deleted again (`PendingDeclaration.undo`).
A client can bind a queue or an exchange whose commit is pending, as the commits keep their order. If that commit fails,
the undo deletes the bindings too. An undo ends when an object that it needs is deleted, as its rows then are.

**Deletion** of a queue or an exchange: remove it from memory at once, then delete its rows (`remove`), every RETRY_S
seconds while the database fails. A binding is removed only after the commit: no message depends on it.

**A name with a pending commit is reserved** and in no table. A command that uses it gets `DeclarationPending`, waits
and runs again. If the removal of the old object fails, the command gets that error. Publishers do not wait: for them a
reserved name does not exist.

Only this package submits rows of vhosts, exchanges, queues and bindings.

An unexpected exception in a commit callback is a bug: the client gets `CallbackFailed` (541 on a channel, 500 over
HTTP), and a restart creates the committed object.

All calls run on the event loop. Commits and their callbacks keep the order of submission.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence, Sized
from contextvars import copy_context
from typing import Final, NamedTuple, Protocol, TypeAlias, TypeVar

from amqpd.storage.metadata.rows import BindingRow, Change, DeleteBindings, ExchangeRow, Put, QueueRow, VhostRow
from amqpd.storage.metadata.store import MetadataClosed

log = logging.getLogger(__name__)

RETRY_S: Final = 1.0
BUDGET: Final = 64
HELD_MAX: Final = 4096

Done: TypeAlias = Callable[[BaseException | None], None]
Commit: TypeAlias = Callable[[Sequence[Change], Done], None]
Result = TypeVar("Result")


class ObjectName(NamedTuple):
    """Name of an object in the metadata.

    Attributes:
        vhost: name of the vhost; "" for global objects.
        kind: queue, exchange, vhost, binding, or a kind of parameter.
        name: name of the object. A vhost has it in both fields; a binding has all fields of its row.
    """

    vhost: str
    kind: str
    name: str


class DeclarationPending(Exception):
    """Raised for a name with a pending commit. Wait, then run the command again from the start."""

    def __init__(self, declared: PendingDeclarations, name: ObjectName) -> None:
        super().__init__(f"{name.kind} '{name.name}' in vhost '{name.vhost}' is pending")
        self._declared = declared
        self._name = name

    @property
    def missing(self) -> str:
        """Return the text of error 404 for the object."""
        return f"no {self._name.kind} '{self._name.name}' in vhost '{self._name.vhost}'"

    def wait(self, done: Done) -> None:
        """Call done(None) when the command can run again, or done(error) if a removal of this name failed."""
        self._declared.wait(self._name, done)

    async def wait_in_task(self) -> None:
        """Wait in a task until the command can run again. Raises: MetadataError."""
        future, done = done_future()
        self.wait(done)
        await future


class CallbackFailed(Exception):
    """A bug: the rows are committed, but the callback failed. The log has the traceback."""


class DeletableObject(Protocol):
    """A vhost, queue or exchange."""

    @property
    def deleted(self) -> bool: ...


class PendingDeclaration:
    """A checked change that is not yet committed.

    Args:
        change: the row to write; None if nothing is durable.
        undo: the change that restores the old state.
        apply: makes the change in memory after the commit. Raises DeclarationPending if an object that the change needs
            was deleted meanwhile; the command then runs again and reports that.
        brings: the new object; a batch shows it to its later calls before the commit.
        ends: objects that must still exist at the commit.
        also: more names to reserve until the commit.

    Attributes:
        vhost: the vhost that is changed (`Namespace.make` sets it); None for a change of the vhosts themselves.
    """

    def __init__(
        self,
        name: ObjectName,
        change: Change | None,
        undo: Change | None,
        apply: Callable[[], object],
        brings: object = None,
        ends: tuple[DeletableObject, ...] = (),
        also: tuple[ObjectName, ...] = (),
    ) -> None:
        self.name = name
        self.names = [name, *also]
        self.changes = [] if change is None else [change]
        self.undo = [] if undo is None else [undo]
        self.apply = apply
        self.brings = brings
        self.ends = ends
        self.vhost: DeletableObject | None = None

    def is_void(self) -> bool:
        """Return whether an object that the change needs was deleted. Its deletion also deletes the rows."""
        return (self.vhost is not None and self.vhost.deleted) or any(end.deleted for end in self.ends)


class PendingRemoval:
    """Changes that are repeated until they succeed.

    Args:
        changes: returns those that still apply.
    """

    def __init__(
        self, changes: Callable[[], Sequence[Change]], names: list[ObjectName], gone: Callable[[], None]
    ) -> None:
        self.changes = changes
        self.names = names
        self.gone = gone


class DeclarationBudget:
    """The number of declarations that may run in one loop turn before earlier ones of their channel have replies.

    One read can bring thousands, and the other clients wait for all that one turn does. BUDGET are 3 ms. If the disk is
    slow, reserved names bound the memory: 3 KB each.

    Args:
        held: the reserved names.
    """

    def __init__(self, call_soon: Callable[..., object], held: Sized) -> None:
        self._call_soon = call_soon
        self._held = held
        self._left = BUDGET
        self._waiting: list[Callable[[], None]] = []

    def take(self, again: Callable[[], None]) -> bool:
        """Return whether a declaration may run now.

        Otherwise the channel continues when it gets replies, and `again` is called in the next loop turn if this turn
        has no budget left.
        """
        if len(self._held) >= HELD_MAX:
            return False
        if self._left == BUDGET:
            self._call_soon(self._renew)
        if self._left == 0:
            self._waiting.append(again)
            return False
        self._left -= 1
        return True

    def _renew(self) -> None:
        self._left = BUDGET
        waiting, self._waiting = self._waiting, []
        for again in waiting:
            again()


class PendingDeclarations:
    """All pending declarations and removals of one broker. `commit` is `MetadataStore.submit`."""

    def __init__(
        self,
        commit: Commit,
        call_soon: Callable[..., object],
        call_later: Callable[[float, Callable[[], None]], object],
    ) -> None:
        self._commit = commit
        self._call_soon = call_soon
        self._call_later = call_later
        self._held: dict[ObjectName, list[Done]] = {}
        # Reserved names of queues to be created, by vhost.
        self._coming_queues: dict[str, set[ObjectName]] = {}
        # Removals whose commit failed; one timer repeats them all, so that an outage logs one line per RETRY_S.
        self._failing: dict[PendingRemoval, None] = {}
        self._has_retry_timer = False
        # New objects whose commit is pending.
        self._coming: dict[ObjectName, object] = {}
        self.budget = DeclarationBudget(call_soon, self._held)

    # -- names -------------------------------------------------------------------------------------------------------

    def check(self, vhost: str, kind: str, name: str) -> None:
        """Check that a name that is in no table is not reserved. Raises: DeclarationPending."""
        held = ObjectName(vhost, kind, name)
        if held in self._held:
            raise DeclarationPending(self, held)

    def hold(self, name: ObjectName, comes: bool = False) -> None:
        """Reserve a name until `free`. Raises: DeclarationPending if it is reserved.

        Args:
            comes: the name is reserved for a creation, not a removal. A pending queue counts against the queue limit.
        """
        if name in self._held:
            raise DeclarationPending(self, name)
        self._held[name] = []
        if comes and name.kind == "queue":
            self._coming_queues.setdefault(name.vhost, set()).add(name)

    def hold_all(self, names: Sequence[ObjectName]) -> None:
        """Reserve names for a creation: all of them or none. Raises: DeclarationPending."""
        for name in names:
            self.check(*name)
        for name in names:
            self.hold(name, comes=True)

    def coming(self, vhost: str, kind: str, name: str) -> object:
        """Return the new object with this name whose commit is pending, or None. Its bindings are committed later."""
        return self._coming.get(ObjectName(vhost, kind, name))

    def coming_queue_count(self, vhost: str) -> int:
        """Return the number of queues whose creation is pending."""
        return len(self._coming_queues.get(vhost, ()))

    def free(self, names: Iterable[ObjectName]) -> None:
        """Free reserved names. Each waiting command runs again in a callback of its own."""
        for name in names:
            self._coming.pop(name, None)
            for done in self._held.pop(name):
                self._call_soon(done, None)
            coming = self._coming_queues.get(name.vhost)
            if coming is not None and name.kind == "queue":
                coming.discard(name)
                if not coming:
                    del self._coming_queues[name.vhost]

    def wait(self, name: ObjectName, done: Done) -> None:
        """Call `done` when the name is free. See `DeclarationPending.wait`."""
        waiting = self._held.get(name)
        if waiting is None:
            self._call_soon(done, None)
        else:
            waiting.append(done)

    # -- creation ----------------------------------------------------------------------------------------------------

    def commit_and_apply(self, coming: PendingDeclaration, done: Done) -> None:
        """Commit a change, apply it in memory, then call done(None); on failure call done(error).

        A change without a row is applied before this returns. Raises: DeclarationPending, MetadataClosed.
        """
        if not coming.changes:
            self._apply(coming, done)
            return
        names = coming.names
        context = copy_context()  # has the user and connection, for events

        def committed(error: BaseException | None) -> None:
            self.free(names)
            if error is None:
                context.run(self._apply, coming, done)
            else:
                self.rollback([coming], names)
                done(error)

        self.hold_all(names)
        if coming.brings is not None:
            self._coming[coming.name] = coming.brings
        self.commit(coming.changes, names, committed)

    def _apply(self, coming: PendingDeclaration, done: Done) -> None:
        try:
            if coming.vhost is not None and coming.vhost.deleted:
                raise DeclarationPending(self, coming.name)
            coming.apply()
        except DeclarationPending as again:
            done(again)
            return
        except Exception as bug:
            log.exception(
                "%s '%s' was committed but not applied: a bug in amqpd, please report it",
                coming.name.kind,
                coming.name.name,
            )
            done(CallbackFailed(repr(bug)))
            return
        try:
            done(None)
        except Exception as bug:
            log.exception(
                "after the commit of %s '%s': a bug in amqpd, please report it", coming.name.kind, coming.name.name
            )
            done(CallbackFailed(repr(bug)))

    def commit(self, changes: Sequence[Change], held: Iterable[ObjectName], done: Done) -> None:
        """Commit changes whose names the caller has reserved. The caller frees the names in `done`.

        Raises:
            MetadataClosed: the names are free again.
        """
        try:
            self._commit(changes, done)
        except MetadataClosed:
            self.free(held)
            raise

    # -- removal -----------------------------------------------------------------------------------------------------

    def remove(self, changes: Sequence[Change], gone: Callable[[], None], done: Done | None = None) -> None:
        """Delete the rows of objects that are no longer in memory. Repeat until it succeeds.

        Args:
            gone: called after success.
            done: called once, with the result of the first attempt.
        """
        names = named_in(changes)
        for name in names:
            self.hold(name)
        self._try(PendingRemoval(lambda: changes, names, gone), done)

    def rollback(self, failed: Sequence[PendingDeclaration], names: list[ObjectName]) -> None:
        """Undo a failed commit of these names, as in `remove`; void declarations need no undo."""

        def undo() -> list[Change]:
            return [change for coming in reversed(failed) if not coming.is_void() for change in coming.undo]

        for name in names:
            self.hold(name)
        self._try(PendingRemoval(undo, names, _do_nothing), None)

    def forget_vhost(self, vhost: str) -> None:
        """Stop all retries for a vhost and free its names: another node has taken it over."""
        for removal in [each for each in self._failing if any(name.vhost == vhost for name in each.names)]:
            del self._failing[removal]
            self.free(removal.names)

    def _try(self, removal: PendingRemoval, done: Done | None) -> None:
        def committed(error: BaseException | None) -> None:
            if error is None:
                self.free(removal.names)
                try:
                    removal.gone()
                except Exception as bug:
                    log.exception("after the removal of %s: a bug in amqpd, please report it", removal.names)
                    error = CallbackFailed(repr(bug))
            else:
                self._failed(removal, error)
            if done is not None:
                done(error)

        try:
            self._commit(removal.changes(), committed)
        except MetadataClosed:
            # The broker stops. The next start restores an object that still has its row, or deletes it.
            log.debug("the metadata closed before the removal of %s", removal.names)

    def _failed(self, removal: PendingRemoval, error: BaseException) -> None:
        for name in removal.names:
            waiting, self._held[name] = self._held[name], []
            for done in waiting:
                self._call_soon(done, error)
        self._failing[removal] = None
        if not self._has_retry_timer:
            self._has_retry_timer = True
            log.error("metadata change failed; next try in %g s: %s", RETRY_S, error)
            self._call_later(RETRY_S, self._retry)

    def _retry(self) -> None:
        self._has_retry_timer = False
        failing, self._failing = self._failing, {}
        for removal in failing:
            self._try(removal, None)


def _do_nothing() -> None:
    """Do nothing: the object was never in memory."""


def named_in(changes: Iterable[Change]) -> list[ObjectName]:
    """Return the names that these changes create or remove. A queue's tombstone removes its name."""
    names: dict[ObjectName, None] = {}
    for change in changes:
        if isinstance(change, DeleteBindings):
            continue
        row = change.row
        if isinstance(row, QueueRow) and isinstance(change, Put):
            names[ObjectName(row.vhost, "queue", row.name)] = None
        elif isinstance(row, ExchangeRow):
            names[ObjectName(row.vhost, "exchange", row.name)] = None
        elif isinstance(row, BindingRow):
            names[binding_name(row)] = None
        elif isinstance(row, VhostRow):
            names[ObjectName(row.name, "vhost", row.name)] = None
    return list(names)


def binding_name(row: BindingRow) -> ObjectName:
    """Return the name of a binding: all columns of its row."""
    return ObjectName(row.vhost, "binding", "\0".join(map(str, row[1:])))


def ignore_result(error: BaseException | None) -> None:
    """Ignore the result: `PendingDeclarations` logs an error and repeats removals."""


async def wait_done(call: Callable[[Done], Result]) -> Result:
    """Run `call(done)` in a task, wait for `done`, and return the result. Raises: MetadataError, DeclarationPending."""
    future, done = done_future()
    result = call(done)
    await future
    return result


def done_future() -> tuple[asyncio.Future[None], Done]:
    """Return a future and the `done` callback that resolves it. `done` ignores a cancelled future."""
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def done(error: BaseException | None) -> None:
        if future.done():
            return
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)

    return future, done
