"""Many declarations in one transaction: all of them are committed and then made, or none.

A transaction is a draft of all vhosts: what it has declared is there for the calls behind it (a binding finds its new
queue, a queue the vhost's new default type), and for nobody else until it is committed. Its names are held from the
moment they are declared. It declares and binds; nothing is deleted in one.

A dry run is the same calls on a draft that holds nothing and cannot be committed: it finds what is wrong with them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

from amqpd.broker.queue.queue import Queue
from amqpd.broker.vhost.declaration import NewQueue
from amqpd.broker.vhost.exchange import BindingKey, Exchange
from amqpd.broker.vhost.limit_set import Limits
from amqpd.broker.vhost.pending import DeclarationPending, Done, ObjectName, PendingDeclaration, PendingDeclarations
from amqpd.broker.vhost.vhost import Namespace, VHost
from amqpd.broker.vhost.vhosts import VhostNamespace, VHosts
from amqpd.storage.metadata.store import Change, Put, Row, VhostRow


class _Step(NamedTuple):
    coming: PendingDeclaration
    done: Done


class _Collected:
    """What the calls of one transaction have submitted so far, in their order: a row may need one before it.

    dry: nothing is kept, and no name held. ends: what bindings lead to, which may go until all is committed.
    """

    def __init__(self, declared: PendingDeclarations, dry: bool) -> None:
        self.changes: list[Change] = []
        self.undo: list[Change] = []
        self.steps: list[_Step] = []
        self.ends: dict[object, None] = {}
        self.held: list[ObjectName] = []
        self._declared = declared
        self.dry = dry

    def add(self, coming: PendingDeclaration, done: Done) -> None:
        """Raises: OnItsWay when its name is held by others."""
        if self.dry:
            return
        self._declared.hold(coming.name, comes=True)
        self.held.append(coming.name)
        self.changes += coming.changes
        self.undo += coming.undo
        self.steps.append(_Step(coming, done))
        self.ends.update(dict.fromkeys(coming.ends))

    def clear(self) -> None:
        """It is for others to see to, or nothing will be of it."""
        self.changes, self.undo, self.steps, self.ends, self.held = [], [], [], {}, []


class DraftNamespace(Namespace):
    """A vhost with what the transaction has declared in it. It does not know the transaction, which knows it: all that
    a large one has seen goes with its last step, and not with a round of the collector.
    """

    def __init__(self, collected: _Collected, vhost: VHost, default_queue_type: str) -> None:
        self.default_queue_type = default_queue_type
        self.limits = vhost.limits
        self._vhost = vhost
        self._collected = collected
        self._queues: dict[str, NewQueue] = {}
        self._exchanges: dict[str, Exchange] = {}
        self._bindings: set[BindingKey] = set()

    @property
    def vhost(self) -> VHost:
        return self._vhost

    def find_queue(self, name: str) -> Queue | NewQueue | None:
        return self._queues.get(name) or self._vhost.find_queue(name)

    def find_exchange(self, name: str) -> Exchange | None:
        return self._exchanges.get(name) or self._vhost.find_exchange(name)

    def has_binding(self, source: Exchange, key: BindingKey) -> bool:
        return key in self._bindings or self._vhost.has_binding(source, key)

    def queue_count(self) -> int:
        """Those of the transaction hold their names, but for a dry run."""
        return self._vhost.queue_count() + (len(self._queues) if self._collected.dry else 0)

    def make(self, coming: PendingDeclaration, done: Done) -> None:
        """Collects it. done: called when it is made, after the commit; not at all when there is none."""
        self._collected.add(coming, done)
        brings = coming.brings
        if isinstance(brings, NewQueue):
            self._queues[brings.name] = brings
        elif isinstance(brings, Exchange):
            self._exchanges[brings.name] = brings
        elif isinstance(brings, BindingKey):
            self._bindings.add(brings)
        elif isinstance(brings, Limits):
            self.limits = brings

    def let_go(self) -> Iterator[None]:
        """As the transaction's."""
        for known in (self._queues, self._exchanges):
            while known:
                known.popitem()
                yield
        while self._bindings:
            self._bindings.pop()
            yield


def _drained(leaving: list[Any]) -> Iterator[None]:
    while leaving:
        del leaving[-100:]
        yield


class DeclarationBatch(VhostNamespace):
    """One import, say. dry: only a dry run. Everything on the loop."""

    def __init__(self, vhosts: VHosts, dry: bool) -> None:
        self._vhosts = vhosts
        self._declared: PendingDeclarations = vhosts.catalogue.declared
        self.dry = dry
        self._drafts: dict[str, DraftNamespace] = {}
        self._collected = _Collected(self._declared, dry)

    # -- what the calls see ------------------------------------------------------------------------------------------

    def draft(self, name: str) -> DraftNamespace | None:
        """Where queues, exchanges and bindings of this vhost are declared; None: there is no such vhost."""
        draft = self._drafts.get(name)
        if draft is None:
            vhost = self._vhosts.get(name)
            if vhost is None:
                return None
            draft = self._drafts[name] = DraftNamespace(self._collected, vhost, vhost.default_queue_type)
        return draft

    def find_vhost(self, name: str) -> VHost | None:
        draft = self.draft(name)
        return None if draft is None else draft.vhost

    def new_vhost(self, row: VhostRow) -> VHost:
        return self._vhosts.new_vhost(row)

    def add(self, vhost: VHost) -> None:
        self._vhosts.add(vhost)

    def make(self, coming: PendingDeclaration, done: Done) -> None:
        self._collected.add(coming, done)
        brings = coming.brings
        if isinstance(brings, VHost):
            self._drafts[brings.name] = DraftNamespace(self._collected, brings, brings.default_queue_type)
        elif isinstance(brings, VhostRow):
            draft = self.draft(brings.name)
            assert draft is not None  # it is changed, so it is there
            draft.default_queue_type = brings.default_queue_type

    def put(self, row: Row) -> None:
        """A row of somebody else's (users, permissions), who makes it in memory himself after the commit."""
        self._collected.changes.append(Put(row))

    # -- all or nothing ----------------------------------------------------------------------------------------------

    def gone(self) -> VHost | Queue | Exchange | None:
        """The first vhost or end of a binding that was there when it was declared and is not any more: there is no use
        in committing then. Cost: a look at each.
        """
        for draft in self._drafts.values():
            if draft.vhost.deleted:
                return draft.vhost
        for end in self._collected.ends:
            if isinstance(end, Queue | Exchange) and end.deleted:
                return end
        return None

    def commit(self, done: Done) -> None:
        """done(None) once all is durable: `make_all` comes next. done(error) when nothing of it will be."""
        assert not self.dry
        if self._collected.changes:
            self._declared.commit(self._collected.changes, [], partial(self._committed, done))
        else:
            done(None)

    def _committed(self, done: Done, error: BaseException | None) -> None:
        if error is not None:
            held, undo = self._collected.held, self._collected.undo
            self.abandon()
            self._declared.rollback(undo[::-1], held)
        done(error)

    def abandon(self) -> None:
        """Nothing of it will be; its names are free."""
        held = self._collected.held
        self._collected.clear()
        self._declared.free(held)

    def make_all(self) -> Iterator[None]:
        """Makes it in memory, a step at a time: it is committed, so the caller must come to the end."""
        collected = self._collected
        steps, rows, undo, held = collected.steps, collected.changes, collected.undo, collected.held
        collected.clear()
        steps.reverse()
        while steps:
            coming, done = steps.pop()
            self._declared.free([coming.name])
            with suppress(
                DeclarationPending
            ):  # who has deleted its vhost or its end since the commit has removed the row too
                coming.apply()
            done(None)
            yield
        for gone in (rows, undo, held):
            yield from _drained(gone)

    def let_go(self) -> Iterator[None]:
        """What it knew goes, piece by piece: ten thousand drafts at once hold the loop for 25 ms. To be called at the
        end, and not to be carried through: the rest goes with the transaction.
        """
        for draft in self._drafts.values():
            yield from draft.let_go()
