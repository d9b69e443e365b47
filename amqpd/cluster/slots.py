"""Which slots this node serves, from assignment to assignment: taken, served, given up.

The group assigns (`assigned`), one task for each slot follows:

    wait        until the slot is assigned, and something is in it
    make sure   that the group, asked now, knows this node in that generation
    take        `SlotTaker.take`: behind it this node is the slot's only writer
    serve       until an assignment leaves it out, or the slot has ended: Kafka says that another has it, or has not
                answered for too long
    let go      `SlotTaker.give_up`, all that is to be stored being stored; `SlotTaker.drop` where it has ended

A slot that has ended is not taken again in the same generation, nor at once: two nodes never fence each other in turns.
Whoever has let go of a slot asks for another round of the group, in which the slot is nobody's (group.py); so does
who was about to take one, and has told the group so, when an assignment leaves it out.

A slot with no vhost is assigned, and not taken: there is nothing to serve.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final, Generic, Protocol, TypeVar

from amqpd.kafka.connection import KafkaDisconnected, KafkaIncompatible
from amqpd.kafka.outages import Outages
from amqpd.kafka.producer import KafkaRefused
from amqpd.storage.metadata.store import MetadataError

logger = logging.getLogger(__name__)

PAUSE_S: Final = 0.5
PAUSE_S_MAX: Final = 15.0
"""Before a slot is taken again that could not be taken, or has ended: doubled each time."""
QUIET_S: Final = 60.0
"""A slot that was served for so long was taken well: the pauses begin anew."""
KNOWN_PAUSE_S: Final = 0.25


class HeldSlot(Protocol):
    """A slot that was taken. epoch: of its writer. ended: why it has ended by itself, "" while it has not; then `over`
    is set.
    """

    over: asyncio.Event

    @property
    def epoch(self) -> int: ...

    @property
    def ended(self) -> str: ...


H = TypeVar("H", bound=HeldSlot)


class SlotTaker(Protocol[H]):
    """Who does it."""

    async def take(self, slot: int) -> H:
        """This node is the slot's only writer and serves what is in it. Raises: TAKE_ERRORS, and it is not."""

    async def give_up(self, held: H) -> None:
        """Nothing of it is served any more, and all of it is stored, as far as Kafka answers. Raises: nothing."""

    async def drop(self, held: H) -> None:
        """It has ended: nothing of it is served any more. Raises: nothing."""


TAKE_ERRORS: Final = (KafkaDisconnected, KafkaRefused, KafkaIncompatible, MetadataError, OSError)
"""That a slot cannot be taken just now."""


class Slots(Generic[H]):
    """Of one node. Loop thread only.

    known: see `GroupMembership.known`. rejoin: see `GroupMembership.rejoin`. wanted_here: whether there is anything in
    a slot.
    outages: where trouble with Kafka is reported.
    """

    def __init__(
        self,
        taker: SlotTaker[H],
        known: Callable[[int], Awaitable[bool]],
        rejoin: Callable[[], None],
        wanted_here: Callable[[int], bool],
        outages: Outages,
    ) -> None:
        self._taker = taker
        self._known = known
        self._rejoin = rejoin
        self._wanted_here = wanted_here
        self._outages = outages
        self.generation = -1
        self.assigned_slots: frozenset[int] = frozenset()
        self.held: dict[int, H] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._changed: dict[int, asyncio.Event] = {}
        self._stopping = False

    # -- what is told

    def assigned(self, generation: int, slots: frozenset[int]) -> None:
        """The group has assigned these to this node, and no others."""
        if self._stopping:
            return
        self.generation = generation
        self.assigned_slots = slots
        for slot in slots:
            self.look(slot)
        self._wake()

    def look(self, slot: int) -> None:
        """Something has come into the slot."""
        if slot in self.assigned_slots and slot not in self._tasks and self._wanted_here(slot):
            self._changed[slot] = asyncio.Event()
            self._tasks[slot] = asyncio.get_running_loop().create_task(self._serve(slot))

    def said(self) -> dict[int, int]:
        """What the group is told that this node has: slot -> epoch, 0 for one that it is about to take."""
        return {slot: self.held[slot].epoch if slot in self.held else 0 for slot in self._tasks}

    async def stop(self, timeout_s: float) -> None:
        """Gives all up. What is not given up by then is left to who takes it over."""
        self._stopping = True
        self.assigned_slots = frozenset()
        self._wake()
        if self._tasks:
            await asyncio.wait(self._tasks.values(), timeout=timeout_s)
        left = list(self._tasks.values())
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    # -- one slot

    def _wake(self) -> None:
        for event in self._changed.values():
            event.set()

    async def _serve(self, slot: int) -> None:
        changed = self._changed[slot]
        pause = PAUSE_S
        ended_in = -1
        asked = False  # for the round in which it is nobody's
        try:
            while slot in self.assigned_slots:
                asked = False
                generation = self.generation
                changed.clear()
                if generation <= ended_in or not await self._known(generation):
                    await _first(changed.wait(), asyncio.sleep(KNOWN_PAUSE_S))
                    continue
                try:
                    held = await self._taker.take(slot)
                except TAKE_ERRORS as error:
                    if isinstance(error, OSError):
                        self._outages.failed(f"slot {slot} cannot be taken", error)
                    else:
                        logger.error("slot %d cannot be taken: %s; next try in %g s", slot, error, pause)
                    if isinstance(error, KafkaRefused):
                        ended_in = generation  # somebody else has taken it since
                        self._ask_again()
                    await asyncio.sleep(pause)
                    pause = min(2 * pause, PAUSE_S_MAX)
                    continue
                self._outages.answered(f"slot {slot} cannot be taken")
                began = asyncio.get_running_loop().time()
                self.held[slot] = held
                while slot in self.assigned_slots and not held.ended:
                    changed.clear()
                    await _first(changed.wait(), held.over.wait())
                ended = held.ended
                if ended:
                    ended_in = generation = self.generation
                    logger.error("slot %d is not ours any more: %s", slot, ended)
                await self._let_go(slot, held)
                self._ask_again()
                asked = not ended
                if ended:
                    if asyncio.get_running_loop().time() - began >= QUIET_S:
                        pause = PAUSE_S
                    await asyncio.sleep(pause)
                    pause = min(2 * pause, PAUSE_S_MAX)
        except Exception:
            logger.exception("slot %d: a bug of the broker", slot)
        finally:
            self._tasks.pop(slot, None)
            self._changed.pop(slot, None)
            if slot in self.held:
                held = self.held.pop(slot)
                await self._taker.drop(held)
            if slot in self.assigned_slots and not self._stopping:
                asyncio.get_running_loop().call_later(PAUSE_S_MAX, self.look, slot)
            elif not asked:
                self._ask_again()

    async def _let_go(self, slot: int, held: H) -> None:
        try:
            if held.ended:
                await self._taker.drop(held)
            else:
                await self._taker.give_up(held)
        finally:
            self.held.pop(slot, None)

    def _ask_again(self) -> None:
        if not self._stopping:
            # Behind the task's own end, so that what is said of it is right.
            asyncio.get_running_loop().call_soon(self._rejoin)


async def _first(*waits: Awaitable[object]) -> None:
    """Returns when one of them has; the others are given up."""
    tasks = [asyncio.ensure_future(each) for each in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
