"""Model test: declarations, bindings, deletions and publishes of three clients, with commits that fail at any point.

The twin knows which commands were answered. After every commit and every start:

- Durable objects in memory are in the database, and nothing else is, except reserved names.
- Everything that was answered with ok exists with its kind; what was deleted with ok does not.
- A start shows what memory showed, and every confirmed message of a queue whose deletion was not requested.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import pamqp.commands as spec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from memory_metadata import DeclarationBroker, FailingClient
from profiles import examples

QUEUES = ("q0", "q1")
EXCHANGES = ("x0", "x1")
DELETING_COMMANDS = ("delete_queue", "cancel")

queues = st.sampled_from(QUEUES)
exchanges = st.sampled_from(EXCHANGES)
clients = st.integers(0, 2)


class VhostState(NamedTuple):
    """Queues with their ids, exchanges and bindings of a vhost."""

    queues: dict[str, str]
    exchanges: set[str]
    bindings: set[tuple[str, str, str]]


class PendingCommand:
    """A command that waits for its answer, or a publish that waits for its confirm."""

    def __init__(self, kind: str, *names: Any) -> None:
        self.kind = kind
        self.names = names


class DeclaredModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.server = DeclarationBroker()
        # By queue: messages that must survive a restart. Queues whose deletion was requested are excluded.
        self.confirmed: dict[str, list[bytes]] = {}
        self.deleted_names: set[str] = set()
        self.number = 0
        self.clients: list[FailingClient] = []
        self.pending: list[list[PendingCommand]] = []
        self.tags = [0, 0, 0]
        for index in range(3):
            self.clients.append(self.connected(f"c{index}"))
            self.pending.append([])

    def connected(self, name: str) -> FailingClient:
        client = FailingClient(self.server, name)
        client.say(1, spec.Channel.Open(), spec.Confirm.Select())
        self.server.settle()
        client.heard()
        return client

    def replace(self, index: int) -> None:
        """Replace a client whose connection has ended. Its pending commands may still be executed."""
        for pending in self.pending[index]:
            if pending.kind in DELETING_COMMANDS:
                self.confirmed.pop(pending.names[0], None)
        self.pending[index], self.tags[index] = [], 0
        self.clients[index] = self.connected(f"c{index}")

    def send(self, index: int, pending: PendingCommand, method: Any) -> None:
        self.pending[index].append(pending)
        self.clients[index].say(1, method)
        self.process_answers()

    # -- client commands ---------------------------------------------------------------------------------------------

    @rule(index=clients, queue=queues, durable=st.sampled_from([True, True, False]), auto=st.booleans())
    def declare_queue(self, index: int, queue: str, durable: bool, auto: bool) -> None:
        method = spec.Queue.Declare(queue=queue, durable=durable, auto_delete=auto)
        self.send(index, PendingCommand("queue", queue, durable), method)

    @rule(index=clients, exchange=exchanges, durable=st.sampled_from([True, True, False]), auto=st.booleans())
    def declare_exchange(self, index: int, exchange: str, durable: bool, auto: bool) -> None:
        method = spec.Exchange.Declare(exchange=exchange, exchange_type="fanout", durable=durable, auto_delete=auto)
        self.send(index, PendingCommand("exchange", exchange, durable), method)

    @rule(index=clients, queue=queues, exchange=exchanges)
    def bind(self, index: int, queue: str, exchange: str) -> None:
        self.send(index, PendingCommand("bind"), spec.Queue.Bind(queue=queue, exchange=exchange, routing_key="k"))

    @rule(index=clients)
    def bind_exchanges(self, index: int) -> None:
        self.send(index, PendingCommand("bind"), spec.Exchange.Bind(destination="x1", source="x0", routing_key="k"))

    @rule(index=clients, queue=queues, exchange=exchanges)
    def unbind(self, index: int, queue: str, exchange: str) -> None:
        self.send(index, PendingCommand("unbind"), spec.Queue.Unbind(queue=queue, exchange=exchange, routing_key="k"))

    @rule(index=clients, queue=queues)
    def delete_queue(self, index: int, queue: str) -> None:
        self.send(index, PendingCommand("delete_queue", queue), spec.Queue.Delete(queue=queue))

    @rule(index=clients, exchange=exchanges)
    def delete_exchange(self, index: int, exchange: str) -> None:
        self.send(index, PendingCommand("delete_exchange", exchange), spec.Exchange.Delete(exchange=exchange))

    @rule(index=clients, queue=queues)
    def consume_and_cancel(self, index: int, queue: str) -> None:
        """Consume and cancel; this deletes an auto-delete queue."""
        self.send(index, PendingCommand("consume"), spec.Basic.Consume(queue=queue, consumer_tag="c"))
        self.send(index, PendingCommand("cancel", queue), spec.Basic.Cancel(consumer_tag="c"))

    @rule(index=clients, queue=queues)
    def publish(self, index: int, queue: str) -> None:
        """Publish to the default exchange, persistent and mandatory: the message is returned if the queue does not
        exist.
        """
        self.number += 1
        body = b"%d" % self.number
        self.tags[index] += 1
        self.pending[index].append(PendingCommand("publish", queue, body, self.tags[index]))
        self.clients[index].publish_mandatory(queue, body)
        self.process_answers()

    # -- the database ----------------------------------------------------------------------------------------------

    @precondition(lambda self: self.server.metadata.waiting)
    @rule(fails=st.booleans(), stored=st.booleans())
    def commit(self, fails: bool, stored: bool) -> None:
        """Finish the oldest commit. stored: it fails, but a start would find its rows."""
        self.server.metadata.commit(fails=fails, stored=stored)
        self.process_answers()

    @rule()
    def commit_all(self) -> None:
        while self.server.metadata.waiting:
            self.commit(fails=False, stored=False)

    @precondition(lambda self: self.server.retry_loop.retries)
    @rule()
    def run_retries(self) -> None:
        retries, self.server.retry_loop.retries = self.server.retry_loop.retries, []
        for retry in retries:
            retry()
        self.process_answers()

    @rule(clean=st.booleans())
    def restart(self, clean: bool) -> None:
        """Restart the broker. Commands without an answer may have been executed or not; the invariants check the
        others.
        """
        before = self.in_memory()
        held = bool(self.server.metadata.waiting or self.server.retry_loop.retries)
        for client_pending in self.pending:
            for pending in client_pending:
                if pending.kind in DELETING_COMMANDS:
                    self.confirmed.pop(pending.names[0], None)
        self.server.again(clean=clean)
        if not held:
            assert self.in_memory() == before
        for index in range(3):
            self.pending[index] = []
            self.replace(index)
        for queue, bodies in self.confirmed.items():
            assert queue in self.server.vhost.queues, f"{queue} had {len(bodies)} confirmed messages"
            assert [body for body in self.drained(queue) if body in bodies] == bodies
        self.confirmed.clear()

    # -- checks ------------------------------------------------------------------------------------------------------

    def in_memory(self) -> VhostState:
        """Return the durable objects in memory."""
        vhost = self.server.vhost
        return VhostState(
            {queue.name: queue.id for queue in vhost.queues.values() if queue.durable},
            {x.name for x in vhost.exchanges.values() if x.durable and x.name.startswith("x")},
            {
                (binding.source.name, binding.destination.name, binding.routing_key)
                for binding in vhost.all_bindings()
                if binding.durable
            },
        )

    def stored(self) -> VhostState:
        """Return the objects that a start would find."""
        state = self.server.rows.state()
        assert len({row.name for row in state.queues}) == len(state.queues), "two live queues have the same name"
        return VhostState(
            {row.name: row.id for row in state.queues},
            {row.name for row in state.exchanges},
            {(row.source, row.destination, row.routing_key) for row in state.bindings},
        )

    @invariant()
    def memory_agrees_with_database(self) -> None:
        in_memory, stored = self.in_memory(), self.stored()
        assert in_memory.queues.items() <= stored.queues.items()
        assert in_memory.exchanges <= stored.exchanges
        reserved = list(self.server.broker.catalogue.declared._held)
        held = {name.name for name in reserved}
        # The row of a binding whose unbind failed may be missing until it is restored; see `declared`.
        bound = {tuple(name.name.split("\0")) for name in reserved if name.kind == "binding"}
        bound = {(source, end, key) for source, end, _, key, _ in bound}
        assert in_memory.bindings - bound <= stored.bindings
        assert stored.queues.keys() - in_memory.queues.keys() <= held
        assert stored.exchanges - in_memory.exchanges <= held
        assert all(held & {source, end} for source, end, _ in stored.bindings - in_memory.bindings - bound)
        for exchange in EXCHANGES:
            found = self.server.vhost.exchanges.get(exchange)
            if found is not None:
                assert found.matcher.match("k", None) == {binding.destination for binding in found.bindings.values()}
        if not self.server.metadata.waiting and not self.server.retry_loop.retries:
            assert not held
            assert not any(
                self.server.connections.by_name[c.connection.name].pending_commands.deferred for c in self.clients
            )

    def process_answers(self) -> None:
        """Process all answers in order; replace clients that were closed."""
        deletions = [
            command
            for pending in self.pending
            for command in pending
            if command.kind in (*DELETING_COMMANDS, "delete_exchange", "unbind")
        ]
        # A deleted queue deletes its bindings, and the last binding deletes an auto-delete exchange.
        self.deleted_names = {name for command in deletions for name in (*command.names, *EXCHANGES)}
        self.server.settle()
        for index, client in enumerate(self.clients):
            for event in client.heard():
                self.judge(index, event)
            if not client.open:
                assert client.failed == 506
                self.replace(index)
        self.server.settle()

    def judge(self, index: int, event: Any) -> None:
        method, pending = event.method, self.pending[index]
        if isinstance(method, spec.Basic.Ack):
            for command in list(pending):
                if command.kind == "publish" and command.names[2] <= method.delivery_tag:
                    pending.remove(command)
                    self.confirm(*command.names[:2])
        elif isinstance(method, spec.Basic.Return):
            pending.remove(
                next(command for command in pending if command.kind == "publish" and command.names[1] == event.body)
            )
        elif isinstance(method, spec.Channel.Close):
            assert method.reply_code in (404, 406), method.reply_text
            self.clients[index].vanish()
            self.clients[index].failed = 506  # later commands on this connection are not answered either
        elif not isinstance(method, spec.Basic.Deliver | spec.Basic.Cancel):
            first = next(command for command in pending if command.kind != "publish")
            pending.remove(first)
            self.answered(first)

    def answered(self, pending: PendingCommand) -> None:
        """Check the effect of an answered command, unless the deletion by another client was answered at the same
        time.
        """
        if pending.kind in DELETING_COMMANDS:
            self.confirmed.pop(pending.names[0], None)
        in_memory, stored = self.in_memory(), self.stored()
        if pending.kind == "delete_queue":
            assert pending.names[0] not in stored.queues.keys() - in_memory.queues.keys()
        elif pending.kind == "delete_exchange":
            assert pending.names[0] not in stored.exchanges - in_memory.exchanges
        elif pending.kind == "queue":
            assert (
                pending.names[0] in in_memory.queues or not pending.names[1] or pending.names[0] in self.deleted_names
            )
        elif pending.kind == "exchange":
            assert (
                pending.names[0] in in_memory.exchanges
                or not pending.names[1]
                or pending.names[0] in self.deleted_names
            )

    def confirm(self, queue: str, body: bytes) -> None:
        found = self.server.vhost.queues.get(queue)
        is_deleted = any(
            command.kind in DELETING_COMMANDS and command.names[0] == queue
            for pending in self.pending
            for command in pending
        )
        if found is not None and found.durable and not is_deleted:
            self.confirmed.setdefault(queue, []).append(body)

    def drained(self, queue: str) -> list[bytes]:
        client = self.connected("drain")
        bodies = []
        while True:
            client.say(1, spec.Basic.Get(queue=queue, no_ack=True))
            self.server.settle()
            (event,) = client.heard()
            if event.body is None:
                break
            bodies.append(event.body)
        client.vanish()
        return bodies

    def teardown(self) -> None:
        self.server.end()


TestDeclaredModel = DeclaredModel.TestCase
TestDeclaredModel.settings = settings(max_examples=examples(120), stateful_step_count=40, deadline=None)
