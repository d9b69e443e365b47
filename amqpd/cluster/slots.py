"""Slots of this node, from assignment to assignment.

The consumer group assigns slots (`assigned`). One task per slot does this:

1. Wait until the slot is assigned and contains a vhost. Slot 0 is always taken.
2. Ask the group whether it knows this node in the present generation.
3. Take over the slot (`SlotOwnership.take_over`): this node is now the only writer.
4. Serve it until an assignment leaves it out, or until it ends: another node owns it, or Kafka did not answer for
   too long.
5. Release it: `SlotOwnership.give_up` stores what is left; `SlotOwnership.unload` after the slot ended.

A slot that ended is taken again only in a later generation and after a pause, so two nodes do not fence each other
in turns. After a release the task requests another round of the group, in which the slot belongs to no node
(`kafka/group.py`). It also does so if it announced a takeover and an assignment then leaves the slot out.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

from amqpd.kafka.connection import KafkaDisconnected, KafkaIncompatible
from amqpd.kafka.outages import Outages
from amqpd.kafka.producer import KafkaRefused
from amqpd.storage.metadata.store import MetadataError

if TYPE_CHECKING:
    from amqpd.cluster.ownership import OwnedSlot, SlotOwnership

logger = logging.getLogger(__name__)

PAUSE_S: Final = 0.5
PAUSE_S_MAX: Final = 15.0
"""Pause before a slot is taken again after a failure or its end; doubled each time."""
QUIET_S: Final = 60.0
"""A slot that was served for this time resets the pause."""
KNOWN_PAUSE_S: Final = 0.25


TAKE_ERRORS: Final = (KafkaDisconnected, KafkaRefused, KafkaIncompatible, MetadataError, OSError)
"""Errors of a failed takeover; another attempt may succeed."""


class Slots:
    """The slots of one node. Loop thread only.

    Args:
        known: see `GroupMembership.is_current_generation`.
        rejoin: see `GroupMembership.rejoin`.
        wanted_here: returns whether a slot contains a vhost.
        outages: reports trouble with Kafka.
    """

    def __init__(
        self,
        taker: SlotOwnership,
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
        self.held: dict[int, OwnedSlot] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._changed: dict[int, asyncio.Event] = {}
        self._stopping = False

    # -- input

    def assigned(self, generation: int, slots: frozenset[int]) -> None:
        """Handle an assignment: these slots are this node's, and no others."""
        if self._stopping:
            return
        self.generation = generation
        self.assigned_slots = slots
        for slot in slots:
            self.start_serving(slot)
        self._wake()

    def start_serving(self, slot: int) -> None:
        """Start serving a slot that is assigned and got its first vhost."""
        if slot in self.assigned_slots and slot not in self._tasks and self._wanted_here(slot):
            self._changed[slot] = asyncio.Event()
            self._tasks[slot] = asyncio.get_running_loop().create_task(self._serve(slot))

    def announced_slots(self) -> dict[int, int]:
        """Return the slots that this node announces to the group: slot -> epoch; 0 for a slot that it is about to
        take.
        """
        return {slot: self.held[slot].epoch if slot in self.held else 0 for slot in self._tasks}

    async def stop(self, timeout_s: float) -> None:
        """Give up all slots. The next owner recovers slots that are not stored in time."""
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
        asked = False  # another round of the group was requested
        try:
            while slot in self.assigned_slots:
                asked = False
                generation = self.generation
                changed.clear()
                if generation <= ended_in or not await self._known(generation):
                    await _first(changed.wait(), asyncio.sleep(KNOWN_PAUSE_S))
                    continue
                try:
                    held = await self._taker.take_over(slot)
                except TAKE_ERRORS as error:
                    if isinstance(error, OSError):
                        self._outages.report_failure(f"slot {slot} cannot be taken", error)
                    else:
                        logger.error("slot %d cannot be taken: %s; next try in %g s", slot, error, pause)
                    if isinstance(error, KafkaRefused):
                        ended_in = generation  # another node has taken it over meanwhile
                        self._ask_again()
                    await asyncio.sleep(pause)
                    pause = min(2 * pause, PAUSE_S_MAX)
                    continue
                self._outages.report_success(f"slot {slot} cannot be taken")
                began = asyncio.get_running_loop().time()
                self.held[slot] = held
                while slot in self.assigned_slots and not held.end_reason:
                    changed.clear()
                    await _first(changed.wait(), held.end_event.wait())
                ended = held.end_reason
                if ended:
                    ended_in = generation = self.generation
                    logger.error("slot %d is lost: %s", slot, ended)
                await self._let_go(slot, held)
                self._ask_again()
                asked = not ended
                if ended:
                    if asyncio.get_running_loop().time() - began >= QUIET_S:
                        pause = PAUSE_S
                    await asyncio.sleep(pause)
                    pause = min(2 * pause, PAUSE_S_MAX)
        except Exception:
            logger.exception("slot %d: a bug in amqpd, please report it", slot)
        finally:
            self._tasks.pop(slot, None)
            self._changed.pop(slot, None)
            if slot in self.held:
                held = self.held.pop(slot)
                await self._taker.unload(held)
            if slot in self.assigned_slots and not self._stopping:
                asyncio.get_running_loop().call_later(PAUSE_S_MAX, self.start_serving, slot)
            elif not asked:
                self._ask_again()

    async def _let_go(self, slot: int, held: OwnedSlot) -> None:
        try:
            if held.end_reason:
                await self._taker.unload(held)
            else:
                await self._taker.give_up(held)
        finally:
            self.held.pop(slot, None)

    def _ask_again(self) -> None:
        if not self._stopping:
            # after the end of this task, so that `announced_slots` is right
            asyncio.get_running_loop().call_soon(self._rejoin)


async def _first(*waits: Awaitable[object]) -> None:
    """Return when the first awaitable has finished; cancel the others."""
    tasks = [asyncio.ensure_future(each) for each in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
