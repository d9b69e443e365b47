"""A batch of declarations in one commit: all of them or none.

Later calls of the batch see what it has declared: a binding finds its new queue, a queue the vhost's new default type.
All others see it after the commit. Each name is reserved from its declaration on. A batch declares and binds; it
deletes nothing.

A dry run makes the same calls, reserves no names and cannot be committed. It reports errors only.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

from amqpd.broker.queue.queue import Queue
from amqpd.broker.vhost import kafka_topics
from amqpd.broker.vhost.declaration import NewQueue
from amqpd.broker.vhost.exchange import BindingKey, Exchange
from amqpd.broker.vhost.limits import Limits
from amqpd.broker.vhost.pending import DeclarationPending, Done, ObjectName, PendingDeclaration, PendingDeclarations
from amqpd.broker.vhost.vhost import Namespace, VHost
from amqpd.broker.vhost.vhosts import VhostNamespace, VHosts
from amqpd.storage.metadata.rows import Change, Delete, Put, VhostRow


class _Step(NamedTuple):
    coming: PendingDeclaration
    done: Done


class _Collected:
    """Changes submitted by one batch so far, in order: a row may depend on an earlier one.

    Args:
        dry: a dry run; no change is stored and no name reserved.

    Attributes:
        ends: sources and destinations of bindings, which may be deleted before the commit.
    """

    def __init__(self, declared: PendingDeclarations, dry: bool) -> None:
        self.changes: list[Change] = []
        self.steps: list[_Step] = []
        self.ends: dict[object, None] = {}
        self.held: list[ObjectName] = []
        self._declared = declared
        self.dry = dry

    def add(self, coming: PendingDeclaration, done: Done) -> None:
        """Add a declaration and reserve its name. Raises: DeclarationPending."""
        if self.dry:
            return
        self._declared.hold_all(coming.names)
        self.held += coming.names
        self.changes += coming.changes
        self.steps.append(_Step(coming, done))
        self.ends.update(dict.fromkeys(coming.ends))

    def clear(self) -> None:
        """Forget all changes: the batch is committed or abandoned."""
        self.changes, self.steps, self.ends, self.held = [], [], {}, []


class DraftNamespace(Namespace):
    """A vhost with the batch's declarations in it.

    It has no reference to the batch, so that a large batch is freed without the garbage collector.
    """

    def __init__(self, collected: _Collected, vhost: VHost, default_queue_type: str) -> None:
        self.default_queue_type = default_queue_type
        self.limits = vhost.limits
        self._vhost = vhost
        self._collected = collected
        self._queues: dict[str, NewQueue] = {}
        self._kafka_topics: dict[str, NewQueue] = {}
        self._exchanges: dict[str, Exchange] = {}
        self._bindings: set[BindingKey] = set()

    @property
    def vhost(self) -> VHost:
        return self._vhost

    def find_queue(self, name: str) -> Queue | NewQueue | None:
        return self._queues.get(name) or self._vhost.find_queue(name)

    def find_exchange(self, name: str) -> Exchange | None:
        return self._exchanges.get(name) or self._vhost.find_exchange(name)

    def find_kafka_topic(self, topic: str) -> Queue | NewQueue | None:
        return self._kafka_topics.get(topic) or self._vhost.find_kafka_topic(topic)

    def has_binding(self, source: Exchange, key: BindingKey) -> bool:
        return key in self._bindings or self._vhost.has_binding(source, key)

    def queue_count(self) -> int:
        """Return the number of queues. Reserved names count already, except in a dry run."""
        return self._vhost.queue_count() + (len(self._queues) if self._collected.dry else 0)

    def make(self, coming: PendingDeclaration, done: Done) -> None:
        """Collect a declaration. `done` is called after the commit, when it is applied; never if there is no commit."""
        coming.vhost = self._vhost
        self._collected.add(coming, done)
        brings = coming.brings
        if isinstance(brings, NewQueue):
            self._queues[brings.name] = brings
            if kafka_topics.ARGUMENT in brings.arguments:
                self._kafka_topics[str(brings.arguments[kafka_topics.ARGUMENT])] = brings
        elif isinstance(brings, Exchange):
            self._exchanges[brings.name] = brings
        elif isinstance(brings, BindingKey):
            self._bindings.add(brings)
        elif isinstance(brings, Limits):
            self.limits = brings

    def free_drafts(self) -> Iterator[None]:
        """Free the draft's objects in steps. See `DeclarationBatch.free_drafts`."""
        for known in (self._queues, self._kafka_topics, self._exchanges):
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
    """One batch, such as an import of definitions. All calls run on the event loop.

    Args:
        dry: only a dry run.
    """

    def __init__(self, vhosts: VHosts, dry: bool) -> None:
        self._vhosts = vhosts
        self._declared: PendingDeclarations = vhosts.catalogue.declared
        self.dry = dry
        self._drafts: dict[str, DraftNamespace] = {}
        self._collected = _Collected(self._declared, dry)

    # -- look-ups and changes ----------------------------------------------------------------------------------------

    def draft(self, name: str) -> DraftNamespace | None:
        """Return the draft of a vhost; None if there is no such vhost."""
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
            assert draft is not None  # a change needs an existing vhost
            draft.default_queue_type = brings.default_queue_type

    def add_change(self, change: Put | Delete) -> None:
        """Add a change of a row of another package (users, permissions). The caller applies it after the commit."""
        self._collected.changes.append(change)

    # -- commit ------------------------------------------------------------------------------------------------------

    def find_deleted(self) -> VHost | Queue | Exchange | None:
        """Return the first vhost, source or destination that was deleted meanwhile, else None.

        A commit would then be useless. Cost: linear in the vhosts and bindings.
        """
        for draft in self._drafts.values():
            if draft.vhost.deleted:
                return draft.vhost
        for end in self._collected.ends:
            if isinstance(end, Queue | Exchange) and end.deleted:
                return end
        return None

    def commit(self, done: Done) -> None:
        """Commit all changes.

        Args:
            done: called with None when they are durable (call `make_all` next), or with the error; nothing is
                changed then.
        """
        assert not self.dry
        if self._collected.changes:
            self._declared.commit(self._collected.changes, [], partial(self._committed, done))
        else:
            done(None)

    def _committed(self, done: Done, error: BaseException | None) -> None:
        if error is not None:
            held, steps = self._collected.held, self._collected.steps
            self.abandon()
            self._declared.rollback([step.coming for step in steps], held)
        done(error)

    def abandon(self) -> None:
        held = self._collected.held
        self._collected.clear()
        self._declared.free(held)

    def make_all(self) -> Iterator[None]:
        """Apply the committed changes, one per step. The caller must run all steps."""
        collected = self._collected
        steps, rows, held = collected.steps, collected.changes, collected.held
        collected.clear()
        steps.reverse()
        while steps:
            coming, done = steps.pop()
            self._declared.free(coming.names)
            # A deletion of the vhost, source or destination after the commit has deleted the row too.
            with suppress(DeclarationPending):
                if not coming.is_void():
                    coming.apply()
            done(None)
            yield
        for gone in (rows, held):
            yield from _drained(gone)

    def free_drafts(self) -> Iterator[None]:
        """Free the drafts in steps, because freeing ten thousand at once blocks the event loop for 25 ms.

        Call this last. Steps that are not run are freed with the batch.
        """
        for draft in self._drafts.values():
            yield from draft.free_drafts()
