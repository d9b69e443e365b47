"""A delayed message is due: it goes where its exchange sends it now, and is settled in its bucket when safe there.

The exchange is looked up and asked for its bindings at this moment, as if the message had come without a delay: its
alternate, bindings to other exchanges and CC count as they are now, permissions do not any more. A message that goes to
no queue is over, and counted; its `mandatory` was obeyed when it was published, where that says that it was taken.

The republisher does the rest: slices, retries while a target takes nothing, the wait for the sync. A kill in between
releases a message again, and then it says so: `x-delayed-redelivered: true` is on every message of which the bucket's
delivery mark says that it may have been released before the crash.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, final

from mypy_extensions import i64

from amqpd.broker.delayed.bucket import Bucket
from amqpd.broker.delayed.stored import keys_of, without_delay
from amqpd.broker.message import Envelope
from amqpd.broker.message_view import PropertiesView
from amqpd.broker.publish import router
from amqpd.broker.publish.origin import Dressed, Origin
from amqpd.protocol.properties import scan, with_headers

if TYPE_CHECKING:
    from amqpd.broker.vhost.vhost import VHost
    from amqpd.storage.queue_log import QueueLog

REDELIVERED: Final = "x-delayed-redelivered"
ENVELOPES_MAX: Final = 1024


@final
class Tally:
    """What is counted of delayed messages since the broker started. unroutable: of the released, those that went to no
    queue; dropped: with their exchange; cancelled: by an operator.
    """

    def __init__(self) -> None:
        self.delayed: i64 = 0
        self.released: i64 = 0
        self.unroutable: i64 = 0
        self.dropped: i64 = 0
        self.cancelled: i64 = 0
        # On their way to their queues.
        self.out: i64 = 0
        self.out_bytes: i64 = 0


@final
class Release(Origin):
    """Messages of one bucket. vhosts: all there are, by name. again: they may have been released before.

    done: called when some of them are over.
    """

    def __init__(
        self,
        bucket: Bucket,
        exchange: str,
        vhost: str,
        vhosts: Mapping[str, VHost],
        tally: Tally,
        again: bool,
        done: Callable[[Bucket], None],
    ) -> None:
        super().__init__("delayed")
        self.bucket = bucket
        self.exchange = exchange
        self.vhost = vhost
        self._vhosts = vhosts
        self._tally = tally
        self._again = again
        self._done = done
        self._envelopes: dict[bytes, Envelope] = {}

    def log(self) -> QueueLog | None:
        return None if self.bucket.gone else self.bucket.store

    def gone(self) -> bool:
        return self.bucket.gone

    def envelope_of(self, exchange: bytes, routing_key: bytes) -> Envelope:
        key = exchange + b"\0" + routing_key
        envelope = self._envelopes.get(key)
        if envelope is None:
            if len(self._envelopes) >= ENVELOPES_MAX:
                self._envelopes.clear()
            envelope = Envelope(exchange.decode(), routing_key.decode("utf-8", "surrogateescape"))
            self._envelopes[key] = envelope
        return envelope

    def dress(self, envelope: Envelope, properties: bytes) -> Dressed | None:
        vhost = self._vhosts.get(self.vhost)
        exchange = None if vhost is None else vhost.exchanges.get(self.exchange)
        if vhost is None or exchange is None:
            self._tally.dropped += 1
            return None
        keys = keys_of(properties)
        if keys is None:
            keys = [envelope.routing_key]
        properties = without_delay(properties)
        if self._again or self.again:
            properties = with_headers(properties, {REDELIVERED: True})
        info = scan(properties, 0, len(properties))
        destinations = router.route(vhost, exchange, keys, PropertiesView(envelope, properties), exchange)
        if not destinations:
            self._tally.unroutable += 1
            vhost.unroutable_count += 1
        return Dressed(envelope, properties, info, destinations)

    def safe(self, first: i64, last: i64, size: i64) -> None:
        bucket = self.bucket
        offset = first
        while offset <= last:
            if self._is_back(offset):
                self._tally.released += 1
            offset += 1
        if not bucket.gone:
            super().safe(first, last, size)
            if not bucket.out:
                self._done(bucket)

    def left(self, offset: i64, again: bool) -> None:
        bucket = self.bucket
        self._is_back(offset)
        if again:
            bucket.again = True  # its delivery mark is not forgotten
        if not bucket.gone and not bucket.out:
            self._done(bucket)

    def _is_back(self, offset: i64) -> bool:
        """It is not on its way any more. Whether it was."""
        size = self.bucket.out.pop(offset, -1)
        if size < 0:
            return False
        self._tally.out -= 1
        self._tally.out_bytes -= size
        return True

    def about(self) -> dict[str, object]:
        return {"vhost": self.vhost, "exchange": self.exchange}
