"""What is declared, and whether it is on the disk.

**What comes, comes with its commit.** A declaration is checked, its rows are committed, and only then it is made in
memory, by the commit's own callback (`make`). So nothing is found, routed to or confirmed that a restart would not
find, and a commit that fails leaves nothing in memory to take back. In the database it may: a server that goes away, or
a sync that fails, leaves it open what became of the commit. So its rows are taken back (`PendingDeclaration.undo`) as
below.

**What goes, goes first.** A queue or an exchange that is deleted, by a client or by itself (auto-delete, x-expires), is
out of memory at once, and its rows are removed until that succeeds (`remove`), every RETRY_S seconds while the database
fails. A binding stays until the commit of its removal (`make` again): it is part of no message's safety, and this way a
failure changes nothing.

**A name on its way is held** from the one to the other, and is in no vhost's table meanwhile. Whoever asks for it is
told so (`DeclarationPending`), waits, and gives his command once more from the start. While a removal fails he gets its
error: the name would come back with a restart. Publishers do not wait: to them a held name is not there.

Only this package submits: `declare`, `delete`, `bind` and `unbind` of queues.py, exchanges.py, bindings.py and
vhosts.py check what is asked for, submit its rows here and answer through the `done` that they were handed.

An exception that a callback of a commit does not know is a bug. The log gets its traceback, and the client its answer:
`done(CallbackFailed)`, which is 541 for a channel and 500 over HTTP. What is committed is there after a restart.

Everything is called on the loop. Metadata commits keep the order of submission, and so do their callbacks.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from contextvars import copy_context
from typing import Final, NamedTuple, TypeAlias, TypeVar

from amqpd.storage.metadata.store import (
    BindingRow,
    Change,
    DeleteBindings,
    ExchangeRow,
    MetadataClosed,
    Put,
    QueueRow,
    VhostRow,
)

log = logging.getLogger(__name__)

RETRY_S: Final = 1.0

Done: TypeAlias = Callable[[BaseException | None], None]
Commit: TypeAlias = Callable[[Sequence[Change], Done], None]
Result = TypeVar("Result")


class ObjectName(NamedTuple):
    """kind: queue, exchange, vhost (whose name then stands twice) or binding (all that makes it the same one)."""

    vhost: str
    kind: str
    name: str


class DeclarationPending(Exception):
    """The name's commit is not answered yet. Wait, then ask again from the start."""

    def __init__(self, declared: PendingDeclarations, name: ObjectName) -> None:
        super().__init__(f"{name.kind} '{name.name}' in vhost '{name.vhost}' is on its way")
        self._declared = declared
        self._name = name

    def wait(self, done: Done) -> None:
        """Calls done(None) when it is time to ask again; done(error) when the name is going and that failed."""
        self._declared.wait(self._name, done)

    async def over(self) -> None:
        """The same for a task. Raises: MetadataError."""
        future, done = done_future()
        self.wait(done)
        await future


class CallbackFailed(Exception):
    """A bug: the rows are committed, and what follows in memory raised an exception. The log has the traceback."""


class PendingDeclaration:
    """Something checked and not yet there. change: its row, None for what is not durable. undo: what takes it back.

    apply: makes it in memory; called once the row is committed. Raises OnItsWay when what it leads to has gone
    meanwhile: the command is then given once more, and finds that out. brings: what a transaction shows to the calls
    behind this one until then. ends: what has to be there still when it is committed.
    """

    def __init__(
        self,
        name: ObjectName,
        change: Change | None,
        undo: Change | None,
        apply: Callable[[], object],
        brings: object = None,
        ends: tuple[object, ...] = (),
    ) -> None:
        self.name = name
        self.changes = [] if change is None else [change]
        self.undo = [] if undo is None else [undo]
        self.apply = apply
        self.brings = brings
        self.ends = ends


class PendingRemoval:
    def __init__(self, changes: Sequence[Change], names: list[ObjectName], gone: Callable[[], None]) -> None:
        self.changes = changes
        self.names = names
        self.gone = gone
        self.dropped = False  # it is somebody else's now


class PendingDeclarations:
    """One per broker. commit: `Metadata.submit`."""

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
        # Those of queues that come, by vhost.
        self._coming_queues: dict[str, set[ObjectName]] = {}
        # Those whose commit has failed, and that are tried again.
        self._failing: dict[PendingRemoval, None] = {}

    # -- names -------------------------------------------------------------------------------------------------------

    def check(self, vhost: str, kind: str, name: str) -> None:
        """For who has not found that name. Raises: OnItsWay."""
        held = ObjectName(vhost, kind, name)
        if held in self._held:
            raise DeclarationPending(self, held)

    def hold(self, name: ObjectName, comes: bool = False) -> None:
        """Nobody else may declare it until `free`. comes: it is to be there then; else it goes. Raises: OnItsWay when
        somebody is about to.
        """
        if name in self._held:
            raise DeclarationPending(self, name)
        self._held[name] = []
        if comes and name.kind == "queue":
            self._coming_queues.setdefault(name.vhost, set()).add(name)

    def coming_queue_count(self, vhost: str) -> int:
        """Queues that nobody can find yet, whose commit is on the way."""
        return len(self._coming_queues.get(vhost, ()))

    def free(self, names: Iterable[ObjectName]) -> None:
        """Who waits for them asks again, each in a turn of the loop by itself."""
        for name in names:
            for done in self._held.pop(name):
                self._call_soon(done, None)
            coming = self._coming_queues.get(name.vhost)
            if coming is not None and name.kind == "queue":
                coming.discard(name)
                if not coming:
                    del self._coming_queues[name.vhost]

    def wait(self, name: ObjectName, done: Done) -> None:
        """See `DeclarationPending.wait`."""
        waiting = self._held.get(name)
        if waiting is None:
            self._call_soon(done, None)
        else:
            waiting.append(done)

    # -- what comes --------------------------------------------------------------------------------------------------

    def commit_and_apply(self, coming: PendingDeclaration, done: Done) -> None:
        """Commits, then makes it; done(None) then, done(error) when it is not made.

        What is not durable is made at once, and done called before this returns. Raises: OnItsWay when its name is
        held, MetadataClosed.
        """
        if not coming.changes:
            self._apply(coming, done)
            return
        names = [coming.name]
        context = copy_context()  # who does it, for events

        def committed(error: BaseException | None) -> None:
            self.free(names)
            if error is None:
                context.run(self._apply, coming, done)
            else:
                self.rollback(coming.undo, names)
                done(error)

        self.hold(coming.name, comes=True)
        self.commit(coming.changes, names, committed)

    def _apply(self, coming: PendingDeclaration, done: Done) -> None:
        try:
            coming.apply()
        except DeclarationPending as again:
            done(again)
            return
        except Exception as bug:
            log.exception("a bug of the broker: %s '%s' is committed and not made", coming.name.kind, coming.name.name)
            done(CallbackFailed(repr(bug)))
            return
        try:
            done(None)
        except Exception as bug:
            log.exception("a bug of the broker behind the commit of %s '%s'", coming.name.kind, coming.name.name)
            done(CallbackFailed(repr(bug)))

    def commit(self, changes: Sequence[Change], held: Iterable[ObjectName], done: Done) -> None:
        """One transaction, for who holds these names and sees to them afterwards. Raises: MetadataClosed, and frees
        them.
        """
        try:
            self._commit(changes, done)
        except MetadataClosed:
            self.free(held)
            raise

    # -- what goes ---------------------------------------------------------------------------------------------------

    def remove(self, changes: Sequence[Change], gone: Callable[[], None], done: Done | None = None) -> None:
        """Commits what takes the rows of something away that memory has forgotten, again and again until it succeeds.

        gone: called then. done: called once, with the outcome of the first try.
        """
        names = named_in(changes)
        for name in names:
            self.hold(name)
        self._try(PendingRemoval(changes, names, gone), done)

    def rollback(self, undo: Sequence[Change], names: list[ObjectName]) -> None:
        """The same for what came under these names, whose commit has failed: nobody knows whether it is there."""
        for name in names:
            self.hold(name)
        self._try(PendingRemoval(undo, names, _nothing), None)

    def forget_vhost(self, vhost: str) -> None:
        """It goes on elsewhere, where what could not be removed here is seen to: nothing of it is tried again, and its
        names are free.
        """
        for removal in [each for each in self._failing if any(name.vhost == vhost for name in each.names)]:
            removal.dropped = True
            del self._failing[removal]
            self.free(removal.names)

    def _try(self, removal: PendingRemoval, done: Done | None) -> None:
        self._failing.pop(removal, None)
        if removal.dropped:
            return

        def committed(error: BaseException | None) -> None:
            if error is None:
                self.free(removal.names)
                try:
                    removal.gone()
                except Exception as bug:
                    log.exception("a bug of the broker behind the removal of %s", removal.names)
                    error = CallbackFailed(repr(bug))
            else:
                self._failed(removal, error)
            if done is not None:
                done(error)

        try:
            self._commit(removal.changes, committed)
        except MetadataClosed:
            # The broker stops. What still has its row comes back with the next start, or is deleted by it.
            log.debug("metadata closed before %s", removal.changes)

    def _failed(self, removal: PendingRemoval, error: BaseException) -> None:
        log.error("metadata change failed and is tried again in %g s: %s", RETRY_S, error)
        for name in removal.names:
            waiting, self._held[name] = self._held[name], []
            for done in waiting:
                self._call_soon(done, error)
        self._failing[removal] = None
        self._call_later(RETRY_S, lambda: self._try(removal, None))


def _nothing() -> None:
    """What was taken back was in no memory."""


def named_in(changes: Iterable[Change]) -> list[ObjectName]:
    """The names that come or go with these changes. A queue's goes with its tombstone."""
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
    """All of the row makes it the same binding."""
    return ObjectName(row.vhost, "binding", "\0".join(map(str, row[1:])))


def ignore_result(error: BaseException | None) -> None:
    """Ignore the result: `PendingDeclarations` logs an error and repeats removals."""


async def wait_done(call: Callable[[Done], Result]) -> Result:
    """`call(done)` for a task: returns what it returned, once done. Raises: what it raises; MetadataError, OnItsWay."""
    future, done = done_future()
    result = call(done)
    await future
    return result


def done_future() -> tuple[asyncio.Future[None], Done]:
    """A future and the `done` that settles it; a task that was cancelled meanwhile is passed over."""
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def done(error: BaseException | None) -> None:
        if future.done():
            return
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)

    return future, done
