"""A channel: delivery tags, what is unacked, confirms, and the hot half of basic.

Owned here: the tag of the next delivery, the list of unacked entries by tag, the publish sequence with its waiting
confirms, the open transaction, the cache of routes. The rest of each AMQP class lives in the `on_*` module named after
it; those are handed a channel and a command.

The road of a publish: `publish` looks the method's bytes up in the route cache, checks the properties unless they are
the plain ones, and offers the message to the queues. The road of a delivery: `ChannelConsumer.deliver` writes it into
the output. Neither makes a task, decodes a table or formats a string.

While a command waits for the disk (a declaration), the channel is `busy`: its owner keeps its later commands in
order and hands them over afterwards.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, final

from librt.strings import write_i64_be
from mypy_extensions import i64

from amqpd.broker.delivery import Consumer, Entry, Source, within
from amqpd.broker.destination import NotOpenYet
from amqpd.broker.message import TTL_MS_MAX, Message, message_in_parts
from amqpd.channel import properties_check
from amqpd.channel.output import CUT_BYTES, Output
from amqpd.channel.owner import ChannelOwner, ChannelState
from amqpd.channel.resolve import resolve
from amqpd.channel.route import KnownExchange, Route
from amqpd.channel.spread import Spread
from amqpd.channel.unacked import Unacked
from amqpd.errors import AmqpError, PreconditionFailed, ResourceError
from amqpd.protocol import commands
from amqpd.protocol.assembler import BASIC_PUBLISH, LARGE_BODY_BYTES, PROPERTIES_START
from amqpd.protocol.codec import CodecError, shortstr
from amqpd.protocol.properties import DELIVERY_MODE, PropertyInfo, scan
from amqpd.storage.queue_log import QueueLog

if TYPE_CHECKING:
    from amqpd.broker.session import Session
    from amqpd.channel.reply_to import ReplyConsumer

# Consumers rest while so much output waits for the end of the turn: more than comes of what one turn takes in
# (flow.TURN_BYTES_MAX), so that a consumer who reads is never passed over for what has just arrived.
OUT_BYTES_MAX: Final = 1792 * 1024
ROUTES_MAX: Final = 4096
ROUTE_BYTES_MAX: Final = 1024 * 1024
EXCHANGES_MAX: Final = 64
# A publish to more queues than this is offered in slices (spread.py).
WIDE_COUNT: Final = 256
_DELIVER: Final = b"\x00\x3c\x00\x3c"


@final
class ChannelConsumer(Consumer):
    """A basic.consume."""

    def __init__(
        self, channel: Channel, queue: Source, tag: str, no_ack: bool, exclusive: bool, priority: int, arguments: bytes
    ) -> None:
        super().__init__(queue, tag, no_ack, exclusive, priority)
        self.channel = channel
        self.arguments = arguments
        # Deliveries that may wait for an answer; 0: no limit. Set by the basic.qos before it.
        self.prefetch_count: i64 = 0
        tag_bytes = shortstr(tag)
        number: int = channel.number
        self._frame_start = b"\x01" + number.to_bytes(2, "big")
        self._method_start = _DELIVER + tag_bytes
        # Frame payload without exchange and routing key: method ids, tag, delivery tag; less the frame end that an
        # envelope's suffix carries.
        self._fixed_size: int = len(self._method_start) + 8 - 1
        # What a delivery begins with as far as its delivery tag, for suffixes of this size.
        self._suffix_size: i64 = -1
        self._start = b""
        self._starts: dict[int, bytes] = {}

    def can_take(self) -> bool:
        channel = self.channel
        if self.prefetch_count > 0 and self.in_flight >= self.prefetch_count:
            return False
        if channel.window_size > 0 and channel.window_used >= channel.window_size:
            return False
        output = channel.output
        if output.write_paused or output.cut_bytes >= OUT_BYTES_MAX:
            output.starved.append(self)
            return False
        return True

    def has_room(self) -> bool:
        """Whether the output takes more."""
        output = self.channel.output
        return not output.write_paused and output.cut_bytes < OUT_BYTES_MAX

    def deliver(self, message: Message, entry: Entry | None, redelivered: bool) -> None:
        channel = self.channel
        output = channel.output
        tag = channel.next_tag
        channel.next_tag = tag + 1
        if entry is not None:
            self.in_flight += 1
            entry.consumer = self
            channel.unacked.add(tag, entry)
            channel.window_used += 1
            if channel.window_size > 0:
                channel.window_turn = self
            if entry.queue.logged:
                # Its log can give it back; memory must not grow with what a peer has not read or acked.
                entry.message = None
        else:
            channel.unacked.skip()
        out = output.out
        suffix = message.envelope.suffix
        suffix_size: i64 = len(suffix)
        if suffix_size != self._suffix_size:
            self._begin(suffix_size)
        out.write(self._start)
        write_i64_be(out, tag)
        if redelivered:
            out.append(1)
            out.write(suffix[1:])
        else:
            out.write(suffix)
        content = message.content
        payload_max = output.frame_payload_max
        if (
            content[1] << 8 | content[2] == channel.number
            and message.frame_payload_max <= payload_max
            and message.header_size <= payload_max
        ):
            out.write(content)
        elif message.parts is None or message.body_size <= LARGE_BODY_BYTES:
            message.write_content(out, channel.number, payload_max)
        else:
            output.write_content(channel.number, message)
            out = output.out
        output.delivered_count += 1
        if len(out) >= CUT_BYTES:
            output.cut_output()
        if not output.flush_wanted:
            output.want_flush()

    def _begin(self, suffix_size: int) -> None:
        start = self._starts.get(suffix_size)
        if start is None:
            start = self._frame_start + (self._fixed_size + suffix_size).to_bytes(4, "big") + self._method_start
            self._starts[suffix_size] = start
        self._start = start
        self._suffix_size = suffix_size

    def cancel(self) -> None:
        self.channel.cancel_from_queue(self)


@final
class ConfirmMark:
    """Publishes up to `sequence` are in commit group `generation`; `reply` is a tx.commit-ok instead, `stores` the logs
    of what was settled with it.
    """

    def __init__(
        self, generation: i64, sequence: i64, routes: list[Route], reply: bytes, stores: list[QueueLog]
    ) -> None:
        self.generation = generation
        self.sequence = sequence
        self.routes = routes
        self.reply = reply
        self.stores = stores


@final
class Channel(ChannelState):
    """One open channel."""

    def __init__(self, session: Session, output: Output, owner: ChannelOwner, number: i64) -> None:
        super().__init__(number)
        self.session = session
        self.output = output
        self.owner = owner
        self.next_tag: i64 = 1
        self.consumers: dict[str, ChannelConsumer] = {}
        # basic.qos: for consumers to come, and the one window that all consumers of the channel share (0: none).
        self.prefetch_count: i64 = 0
        self.window_size: i64 = 0
        self.window_used: i64 = 0
        # Who took the window's last room: the next that comes free is for the consumers after it.
        self.window_turn: ChannelConsumer | None = None
        # While the channel itself deletes a queue: tags of its consumers there, told after delete-ok.
        self.cancelled_here: list[str] | None = None
        self.last_queue = ""
        self.reply_consumer: ReplyConsumer | None = None
        self.confirming = False
        self.publish_sequence: i64 = 0
        self.confirmed_sequence: i64 = 0
        # Refused and not yet passed by a confirm.
        self._nacked: set[int] = set()
        self.transactional = False
        # A large commit is being worked off: what it settles is its own, whatever becomes of the channel.
        self.committing = False
        self.tx_publishes: list[tuple[Route, Message]] = []
        self.tx_settlements: list[tuple[i64, Entry, i64]] = []
        self.tx_bytes: i64 = 0
        self.published_count: i64 = 0
        self.acked_count: i64 = 0
        self._routes: dict[bytes, Route] = {}
        self._routes_size: i64 = 0
        # Since it was last emptied, and how many more it does not take.
        self._route_hits: i64 = 0
        self._routes_pause: i64 = 0
        # The last publish that went by the cache: the assembler hands over the same object where the method is the same
        # and says whether the properties are. Then what was found out of them holds.
        self._same_method = b""
        self._same_route: Route | None = None
        self._same_info: PropertyInfo | None = None
        self._same_persistent = False
        self._exchanges: dict[bytes, KnownExchange] = {}
        # Of the last properties that were looked into, and found good.
        self._last_info: PropertyInfo | None = None
        self.unacked = Unacked()
        self._turn_wanted = False
        self._turn_routes: list[Route] = []
        self._last_route: Route | None = None
        self._marks: deque[ConfirmMark] = deque()
        self.pending_reply = b""
        self.pending_stores: list[QueueLog] = []

    # -- publish -----------------------------------------------------------------------------------------------------

    def publish(
        self, method: bytes, content: bytes, header_size: i64, body_size: i64, frame_payload_max: i64, alike: bool
    ) -> None:
        """A whole basic.publish. Of a large body `content` is the header frame, and the owner has its `parts`.

        alike: as CommandSink.on_publish has it. Raises: what the checks raise (403, 404, 406, 501, 540); NotOpenYet:
        nothing of it is done, and it is given again.
        """
        route = self._same_route
        known = method is self._same_method and route is not None and route.version == route.source.version
        if alike and known and route is not None:
            info = self._same_info
            persistent = self._same_persistent
        else:
            if not known or route is None:
                route = self._routes.get(method) if self._routes else None
                if route is not None and route.version == route.source.version:
                    self._same_method = method
                    self._same_route = route
                    self._route_hits += 1
                else:
                    route = self._resolve(method)
                stores = self.session.turn.stores
                if len(stores.dirty) > stores.dirty_max:
                    self.owner.want_share()
            # Flags, and a delivery mode where there is one.
            mode: i64 = content[21]
            if header_size == PROPERTIES_START + 3 and content[19] == 0 and content[20] == 0:
                info = None
                persistent = False
            elif header_size == PROPERTIES_START + 4 and content[19] == 0x10 and content[20] == 0 and 1 <= mode <= 2:
                info = None
                persistent = mode == 2
            else:
                info = self._look_into(content, header_size - 1)
                persistent = info.delivery_mode == 2
            self._same_info = info
            self._same_persistent = persistent
        parts = self.owner.parts
        if parts is None:
            message = Message(route.envelope, content, header_size, body_size, frame_payload_max, persistent, info)
        else:
            message = message_in_parts(route.envelope, content, parts, body_size, persistent, info)
        if route.needs_headers or (info is not None and (info.direct_reply or info.sender_selected)):
            message, route = properties_check.reroute(self, route, message)
        self.published_count += 1
        if self.transactional:
            self._keep_for_commit(route, message)
            return
        if len(route.destinations) > WIDE_COUNT:
            Spread(self, route, message).start()
            return
        self.dispatch(route, message)

    def spread_ended(self, accepted: bool) -> None:
        """A publish to very many queues is in all of them, and on the disk where it has to be; or one refused it."""
        if self.confirming and not self.closing:
            self.publish_sequence += 1
            if not accepted:
                self._nack(self.publish_sequence)
            if not self._turn_wanted:
                self._turn_wanted = True
                self.session.turn.confirm_later(self)
        self.owner.finish_waiting(self)

    def dispatch(self, route: Route, message: Message) -> None:
        """Offers the message to the route's queues, returns it if it must be, and notes it for its confirm."""
        accepted = True
        destinations = route.destinations
        for destination in destinations:
            if not destination.offer(message):
                accepted = False
        count: i64 = len(destinations)
        if count > 1:
            self.owner.offers += count
        elif count == 0:
            self.session.vhost.unroutable_count += 1
            if route.mandatory:
                if not self._marks and not self._turn_routes and not self.pending_reply:
                    # What came before needs no disk either: its ack stands before the return, as its publish did.
                    self._confirm(self.publish_sequence)
                self.output.send_return(self.number, message)
        if self.confirming:
            self.publish_sequence += 1
            if not accepted:
                self._nack(self.publish_sequence)
            if route.durable and message.persistent and route is not self._last_route:
                self._last_route = route
                self._turn_routes.append(route)
            if not self._turn_wanted:
                self._turn_wanted = True
                self.session.turn.confirm_later(self)
        elif route.durable and message.persistent and route is not self._last_route and self.transactional:
            self._last_route = route
            self._turn_routes.append(route)

    def _look_into(self, content: bytes, end: i64) -> PropertyInfo:
        """What the road must know of the properties, which end at `end`: found in one pass, most often in the object of
        those before. Raises: FrameError (501), PreconditionFailed (406).
        """
        before = self._last_info
        try:
            info = scan(content, PROPERTIES_START, end, before)
        except CodecError as error:
            properties_check.refuse(error)
        if info is before and not info.sender_selected:
            return info
        if (
            info.user_id is not None
            or info.sender_selected
            or (info.expiration is not None and not 0 <= info.expiration_ms <= TTL_MS_MAX)
            or (info.flags & DELIVERY_MODE != 0 and not 1 <= info.delivery_mode <= 2)
        ):
            same = self._same_route
            self._same_route = None  # until they are known to be good
            properties_check.judge(self.session, info, content[PROPERTIES_START:end])
            self._same_route = same
        self._last_info = info
        return info

    def _keep_for_commit(self, route: Route, message: Message) -> None:
        self.tx_bytes += message.size_bytes()
        if len(self.tx_publishes) >= 100_000 or self.tx_bytes > 64 * 1024 * 1024:
            raise PreconditionFailed("transaction is too large: at most 100000 messages or 64 MiB", BASIC_PUBLISH)
        self.tx_publishes.append((route, message))

    def _resolve(self, method: bytes) -> Route:
        """Decodes the method, checks permission and exchange, finds the queues. Raises 403, 404, 540."""
        name_end: i64 = 0
        exchange: bytes = b""
        route: Route | None = None
        cacheable = True
        size: i64 = len(method)
        if size > 9:
            # Two short strings behind class, method and ticket, then the bits; what is not as it must be is told by the
            # decoder.
            name_end = 7 + method[6]
            if name_end < size:
                exchange = method[7:name_end]
                known = self._exchanges.get(exchange)
                if known is not None and known.version == known.source.version:
                    key_end = name_end + 1 + method[name_end]
                    if key_end + 1 == size and method[key_end] <= 1:
                        route = known.route(method, name_end + 1)
        if route is not None:
            if self._routes_pause > 0:
                self._routes_pause -= 1
                cacheable = False
        else:
            route, cacheable = resolve(self.session, method)
            matcher = route.matcher
            if matcher is not None:
                if len(self._exchanges) >= EXCHANGES_MAX:
                    self._exchanges.clear()
                self._exchanges[exchange] = KnownExchange(route, matcher)
        if cacheable:
            if len(self._routes) >= ROUTES_MAX or self._routes_size > ROUTE_BYTES_MAX:
                if self._route_hits < ROUTES_MAX:
                    # Routing keys that hardly ever come twice: to keep them costs more than to find them again.
                    self._routes_pause = 16 * ROUTES_MAX
                self._route_hits = 0
                self._routes.clear()
                self._routes_size = 0
            self._routes[method] = route
            self._same_method = method
            self._same_route = route
            self._routes_size += len(method) + 8 * len(route.destinations)
        else:
            self._same_route = None
        return route

    def refusal(self, method: bytes) -> AmqpError | None:
        """What `publish` would raise for that method at once: 403, 404, 540; None where it would take it.

        Cost: a look into the cache, or the way to the route, which is then in the cache.
        """
        route = self._routes.get(method)
        if route is None or route.version != route.source.version:
            try:
                self._resolve(method)
            except (NotOpenYet, ResourceError):
                return None  # its log may be open when the message is complete
            except AmqpError as error:
                return error
            finally:
                self._same_route = None  # the same method, of which no header has been looked at yet
        return None

    def forget_routes(self) -> None:
        """Permissions have changed."""
        self._routes.clear()
        self._routes_size = 0
        self._same_method = b""
        self._same_route = None
        self._exchanges.clear()
        self._last_info = None

    # -- confirms ----------------------------------------------------------------------------------------------------

    def commit_reply(self, reply: bytes, stores: list[QueueLog]) -> None:
        """Sends `reply` (tx.commit-ok) once everything appended or settled so far is synced. stores: the logs of what
        was settled.
        """
        self.pending_reply = reply
        self.pending_stores = stores
        self.session.turn.urgent = True
        if not self._turn_wanted:
            self._turn_wanted = True
            self.session.turn.confirm_later(self)

    def end_turn(self, generation: i64, safe: bool) -> bool:
        self._turn_wanted = False
        routes = self._turn_routes
        reply = self.pending_reply
        stores = self.pending_stores
        if reply:
            self.pending_reply = b""
            self.pending_stores = []
        self._last_route = None
        if not self._marks and (safe or (not routes and not reply)):
            if routes:
                self._turn_routes = []
            self._confirm(self.publish_sequence)
            if reply:
                self._end_commit(reply, stores)
            return False
        self._turn_routes = []
        self._marks.append(ConfirmMark(generation, self.publish_sequence, routes, reply, stores))
        return True

    def committed(self, generation: i64, failed: list[QueueLog]) -> bool:
        marks = self._marks
        while marks and marks[0].generation <= generation:
            mark = marks.popleft()
            if failed and _touches(mark.routes, failed):
                self._refuse(mark)
                continue
            if not failed and not mark.reply and marks and marks[0].generation <= generation:
                continue
            self._confirm(mark.sequence)
            if mark.reply:
                self._end_commit(mark.reply, mark.stores)
        return len(marks) > 0

    def _end_commit(self, reply: bytes, stores: list[QueueLog]) -> None:
        for store in stores:
            if store.failed and not store.deleted:
                self.fail_commit()
                return
        self.owner.finish_busy(self, reply)

    def fail_commit(self) -> None:
        """A log failed under a transaction: nothing of it is promised. rabbit: 406, in these words."""
        self.owner.fail_channel(self, PreconditionFailed("partial tx completion", commands.TX_COMMIT))

    def _nack(self, sequence: i64) -> None:
        """A queue refused it. What comes before it may still wait for its log."""
        self._nacked.add(sequence)
        self.output.send_nack(self.number, sequence, False)

    def _skip_nacked(self, sequence: i64) -> i64:
        """The last sequence up to this one that is to be acked: an ack must not name one that was nacked."""
        last = sequence
        nacked = self._nacked
        while last in nacked:
            last -= 1
        self._nacked = {each for each in nacked if each > sequence}
        return last

    def _confirm(self, sequence: i64) -> None:
        last: i64 = self._skip_nacked(sequence) if self._nacked else sequence
        before: i64 = self.confirmed_sequence
        if sequence <= before or self.closing:
            return
        self.confirmed_sequence = sequence  # and not `last`: those behind it have had their nack
        if last > before:
            self.output.send_ack(self.number, last, last - before > 1)

    def _refuse(self, mark: ConfirmMark) -> None:
        """A log of this mark failed: none of its publishes is promised."""
        if mark.sequence > self.confirmed_sequence and not self.closing:
            self.confirmed_sequence = mark.sequence
            self.output.send_nack(self.number, mark.sequence, True)
        if mark.reply:
            self.fail_commit()

    def still_there(self, route: Route) -> Route:
        """A route kept in a transaction, less the destinations that went since.

        rabbit: a publish is routed when it is made, not when it is committed.
        """
        for destination in route.destinations:
            if destination.gone():
                return route.to([each for each in route.destinations if not each.gone()])
        return route

    # -- unacked -----------------------------------------------------------------------------------------------------

    def ack(self, tag: i64, multiple: bool) -> None:
        """basic.ack. Raises: PreconditionFailed for a tag that is not outstanding."""
        if self.transactional:
            self.collect(tag, multiple, 0)
            return
        if multiple:
            self.settle_all(self.unacked.take_multiple(tag))
        else:
            self.settle(self.unacked.take_one(tag))

    def settle(self, entry: Entry) -> None:
        self.acked_count += 1
        self.returned_credit(entry)
        entry.queue.settle(entry)

    def settle_all(self, entries: list[Entry]) -> None:
        """`settle` for each, with one look at the channel's window."""
        count: i64 = len(entries)
        self.acked_count += count
        was_full = self.window_size > 0 and self.window_used >= self.window_size
        for entry in entries:
            consumer = entry.consumer
            if consumer is not None:
                consumer.in_flight -= 1
                self.window_used -= 1
                if consumer.parked and not was_full:
                    consumer.queue.activate(consumer)
            entry.queue.settle(entry)
        if was_full:
            self.activate_all()

    def returned_credit(self, entry: Entry) -> None:
        """An entry leaves the unacked list: its consumer and the channel's window have room for another."""
        consumer = entry.consumer
        if consumer is None:
            return
        consumer.in_flight -= 1
        was_full = self.window_size > 0 and self.window_used >= self.window_size
        self.window_used -= 1
        if was_full:
            self.activate_all()
        elif consumer.parked:
            consumer.queue.activate(consumer)

    def activate_all(self) -> None:
        """Credit may have come for every consumer of the channel: they go on behind the one that was served last, be
        they of one queue or of many."""
        before: list[ChannelConsumer] = []
        last = self.window_turn
        turned = last is None or last.cancelled
        for consumer in self.consumers.values():
            if not turned:
                before.append(consumer)
                turned = consumer is last
            elif consumer.parked:
                consumer.queue.activate(consumer)
        for consumer in before:
            if consumer.parked:
                consumer.queue.activate(consumer)

    def collect(self, tag: i64, multiple: bool, action: i64) -> None:
        """Settles within the open transaction: noted, done at commit. action: 0 ack, 1 requeue, 2 discard."""
        for place, entry in self.unacked.up_to(tag) if multiple else self.unacked.at(tag):
            entry.in_transaction = True
            self.tx_settlements.append((place, entry, action))

    def take_all(self) -> list[Entry]:
        """Everything unacked, in the order of delivery: the channel ends, and an open transaction with it. Not what a
        commit has begun to settle.
        """
        entries = [
            entry for entry in self.unacked.entries() if not (self.committing and entry.in_transaction)
        ]
        for entry in entries:
            entry.in_transaction = False
        self.unacked.clear()
        return entries

    def forget_offsets(self, queue: Source, ranges: list[tuple[int, int]]) -> None:
        """The queue's log could not take these offsets: what is unacked here has no place in it any more."""
        for entry in self.unacked.entries():
            if entry.queue is queue and within(entry.offset, ranges):
                entry.offset = -1

    # -- consumers ---------------------------------------------------------------------------------------------------

    def make_consumer(
        self, queue: Source, tag: str, no_ack: bool, exclusive: bool, priority: int, arguments: bytes
    ) -> ChannelConsumer:
        """A consumer with the prefetch that the last basic.qos set; the caller adds it to the queue."""
        consumer = ChannelConsumer(self, queue, tag, no_ack, exclusive, priority, arguments)
        consumer.prefetch_count = self.prefetch_count
        return consumer

    def cancel_from_queue(self, consumer: ChannelConsumer) -> None:
        """The queue is gone."""
        self.consumers.pop(consumer.tag, None)
        if self.cancelled_here is None:
            if not self.output.closing:
                self.output.write(self.cancel_frame(consumer.tag))
        else:
            self.cancelled_here.append(consumer.tag)

    def cancel_frame(self, tag: str) -> bytes:
        """basic.cancel from the broker; empty for a client that has not asked for it."""
        if not self.session.can("consumer_cancel_notify"):
            return b""
        return commands.frame(self.number, commands.BasicCancel(tag, True))


def _touches(routes: list[Route], failed: list[QueueLog]) -> bool:
    for route in routes:
        for destination in route.destinations:
            log = destination.log()
            if log is not None and log in failed:
                return True
    return False
