"""Where a message waits, as a destination: it is appended to the log of the bucket it belongs to."""

from __future__ import annotations

import logging
from typing import final

from mypy_extensions import i64

from amqpd.broker.delayed.bucket import Bucket
from amqpd.broker.delayed.stored import with_delay
from amqpd.broker.delayed.works import Turning
from amqpd.broker.destination import Destination
from amqpd.broker.message import Message
from amqpd.protocol.field_table import CodecError
from amqpd.protocol.frame import LARGE_BODY_BYTES
from amqpd.storage.queue_log import LogFailed, QueueLog

log = logging.getLogger(__name__)


@final
class Delayed(Destination):
    """Of the publishes that are due at one time under the same keys.

    keys: None where a message has but its own. changes: of its headers.
    """

    def __init__(self, wheel: Turning, due_ms: i64, keys: list[str] | None, changes: dict[str, object]) -> None:
        super().__init__()
        self.durable = True
        self.wheel = wheel
        self.due_ms = due_ms
        self.keys = keys
        self.changes = changes
        self._bucket: Bucket | None = None

    def bucket(self) -> Bucket:
        """The one that a message of now goes to; in a transaction, another than that of its publish. Raises: LogFailed.
        """
        bucket = self._bucket
        if bucket is None or not bucket.taking or bucket.store.failed:
            bucket = self.wheel.taking(self.due_ms)
            self._bucket = bucket
        return bucket

    def log(self) -> QueueLog | None:
        bucket = self._bucket
        if not self.wheel.dropped:
            try:
                bucket = self.bucket()
            except LogFailed:
                return None  # `offer` refuses it
        return None if bucket is None else bucket.store

    def gone(self) -> bool:
        return self.wheel.dropped

    def offer(self, message: Message) -> bool:
        wheel = self.wheel
        if wheel.dropped:
            return False
        try:
            bucket = self.bucket()
            store = bucket.store
            number = wheel.works.next_number()
            properties = with_delay(message.properties(), self.changes, self.due_ms, number, self.keys)
            route = message.envelope.record_route()
            parts = message.parts
            if parts is not None and message.body_size > LARGE_BODY_BYTES:
                offset = store.append_large(route, properties, parts, message.body_size, message.persistent)
            else:
                offset = store.append_parts(route, properties, message.body(), message.persistent)
        except (LogFailed, CodecError) as error:
            log.warning("a message cannot be delayed: %s", error, extra=wheel.about())
            return False
        wheel.took(bucket, self.due_ms, offset)
        return True
