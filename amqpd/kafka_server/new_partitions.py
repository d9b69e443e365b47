"""Declaration of the partitions of a topic: the streams `NAME-i`, the exchange and its bindings, in one commit.

If one of them cannot be declared, none is. The names are reserved from the first declaration on. The bindings are made
from the last partition to the first, so clients see all new partitions at once (broker/vhost/super_streams.py).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from amqpd.broker.vhost import declare
from amqpd.broker.vhost.batch import DeclarationBatch
from amqpd.broker.vhost.declaration import ExchangeDeclaration, QueueDeclaration
from amqpd.broker.vhost.exchange import SUPER_STREAM
from amqpd.kafka_server import errors
from amqpd.kafka_server.pace import SLICE_S
from amqpd.kafka_server.topic_steps import RefusedTopic, TopicStep, short_name
from amqpd.kafka_server.topics import is_permitted
from amqpd.routing.murmur2 import PARTITION_ORDER

if TYPE_CHECKING:
    from amqpd.broker.vhost.vhost import Namespace

EXCHANGE_TYPE: Final = "x-murmur2-hash"


class NewPartitions(NamedTuple):
    """Partitions to be declared.

    Attributes:
        name: of the topic and of its exchange, which is declared if it does not exist.
        first, end: their numbers, without `end`.
        arguments: of the streams.
        stream: the stream of this name becomes partition 0.
    """

    name: str
    first: int
    end: int
    arguments: dict[str, object]
    stream: bool = False


class PartitionsDeclaration:
    """One declaration, made in slices.

    Args:
        draft: for a request that only validates; None to declare.
        done: called when all partitions exist, or are valid. Errors go to `TopicStep.attempt`.
    """

    def __init__(
        self, step: TopicStep, partitions: NewPartitions, draft: Namespace | None, done: Callable[[], None]
    ) -> None:
        session = step.call.session
        self._step = step
        self._partitions = partitions
        self._broker = step.call.connection.server.broker
        self._pace = step.call.connection.server.pace
        self._batch: DeclarationBatch | None = None
        self._done = done
        if draft is None:
            self._batch = DeclarationBatch(self._broker.vhosts, dry=False)
            draft = self._batch.draft(session.vhost.name)
            assert draft is not None  # a client's vhost exists as long as its connection is open
        self._draft = draft
        self._steps = self._declare_all()

    def run(self) -> None:
        """Declare until the slice is over, then continue in a later turn. Raises: see `TopicStep.work`."""
        closed = self._step.call.connection.closed
        try:
            if not closed and self._run_slice(self.run):
                if self._batch is None:
                    self._done()
                    return
                if self._batch.find_deleted() is None:
                    self._batch.commit(self._committed)
                    self._broker.turn.schedule()
                    return
                self._batch.abandon()
                self._step.begin()
                return
        except BaseException:
            if self._batch is not None:
                self._batch.abandon()
            raise
        if closed and self._batch is not None:
            self._batch.abandon()

    def _run_slice(self, again: Callable[[], None]) -> bool:
        """Run steps. Return False if there are more: then `again` is called in a later turn."""
        until_s = time.monotonic() + SLICE_S
        for _ in self._steps:
            if time.monotonic() >= until_s:
                self._pace.later(partial(self._step.attempt, again))
                return False
        return True

    def _declare_all(self) -> Iterator[None]:
        name, draft, session = self._partitions.name, self._draft, self._step.call.session
        partitions = self._partitions
        names = [f"{partitions.name}-{index}" for index in range(partitions.first, partitions.end)]
        for each in names:
            if not is_permitted(session, each, "configure"):
                raise RefusedTopic(
                    errors.TOPIC_AUTHORIZATION_FAILED, f"the user has no permission for '{short_name(each)}'"
                )
        exchange = draft.find_exchange(name)
        if exchange is None:
            arguments: dict[str, object] = {SUPER_STREAM: True}
            declare.declare_exchange(draft, ExchangeDeclaration(name, EXCHANGE_TYPE, True, False, False, arguments))
            exchange = draft.find_exchange(name)
        yield
        for each in names:
            if draft.find_queue(each) is not None:
                raise RefusedTopic(errors.TOPIC_ALREADY_EXISTS, f"there is a queue '{short_name(each)}' already")
            declare.declare_queue(
                draft, QueueDeclaration(each, True, False, False, dict(self._partitions.arguments), session)
            )
            yield
        places = list(enumerate(names, self._partitions.first))
        if self._partitions.stream:
            places.insert(0, (0, name))
        assert exchange is not None  # declared above
        for index, each in reversed(places):
            queue = draft.find_queue(each)
            assert queue is not None  # declared above
            declare.bind(draft, exchange, queue, str(index), {PARTITION_ORDER: index})
            yield

    def _committed(self, error: BaseException | None) -> None:
        if error is not None:
            self._step.finish_commit(error)
            return
        assert self._batch is not None  # of the commit
        self._steps = self._batch.make_all()
        self._broker.catalogue.queue_declared_count += self._partitions.end - self._partitions.first
        self._step.attempt(self._make)

    def _make(self) -> None:
        """Create what is committed, in slices, also if the connection is closed meanwhile."""
        if self._run_slice(self._make):
            self._done()
