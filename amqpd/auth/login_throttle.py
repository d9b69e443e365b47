"""Login attempts: whose turn a password check is, and how long a wrong password's answer waits.

Two rules keep a guesser from being felt by others. Checks are slow on purpose, so few run at once and the next place
goes round the addresses, and within an address round its users: a flood from one address, or of one user, delays the
others by one check each round. And only an answer of no waits (0.1 s, doubling to 5 s for the same user from the same
address); a right password is never refused nor held back for what others got wrong, not even behind a proxy, where
everybody has one address.

`LoginStats` counts them, for `amqpctl list_node_auth_attempt_stats` and the admin API.

Nothing here grows beyond what is waiting, FAILURES_MAX names and SOURCES_MAX sources.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from ipaddress import IPv6Address
from typing import Final, NamedTuple

CHECKS_AT_ONCE: Final = 2
DELAY_FIRST_S: Final = 0.1
DELAY_MAX_S: Final = 5.0
FORGET_S: Final = 60.0
FAILURES_MAX: Final = 10_000
SOURCES_MAX: Final = 10_000
_NAME_CHARACTERS_MAX: Final = 255


def network(address: str) -> str:
    """What counts as one address: an IPv4 address (also one that IPv6 carries), or the /64 that a host gets of IPv6."""
    if ":" not in address:
        return address
    try:
        parsed = IPv6Address(address)
    except ValueError:
        return address
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return f"{IPv6Address(int(parsed) >> 64 << 64)}/64"


class PasswordCheckQueue:
    """So many at once; who waits is taken round robin by network, then by user, then in order. Called on the loop."""

    def __init__(self, at_once: int = CHECKS_AT_ONCE) -> None:
        self._free = at_once
        self._waiting: dict[str, dict[str, dict[asyncio.Future[None], None]]] = {}

    async def take(self, address: str, user: str) -> None:
        """Returns when it is this one's turn, which `give` ends. One that is cancelled leaves nothing behind."""
        if self._free:
            self._free -= 1
            return
        place = network(address)
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(place, {}).setdefault(user, {})[future] = None
        try:
            await future
        except asyncio.CancelledError:
            if future.cancelled():
                self._leave(place, user, future)
            else:
                self.give()  # it had just been called
            raise

    def give(self) -> None:
        """The turn goes to the next, or is free."""
        if not self._waiting:
            self._free += 1
            return
        place = next(iter(self._waiting))
        users = self._waiting.pop(place)
        user = next(iter(users))
        line = users.pop(user)
        future = next(iter(line))
        del line[future]
        if line:
            users[user] = line  # at the end: the others first
        if users:
            self._waiting[place] = users
        future.set_result(None)

    def close(self) -> None:
        """Whoever waits is cancelled."""
        waiting = [future for users in self._waiting.values() for line in users.values() for future in line]
        for future in waiting:
            future.cancel()

    def _leave(self, place: str, user: str, future: asyncio.Future[None]) -> None:
        users = self._waiting[place]
        del users[user][future]
        if not users[user]:
            del users[user]
            if not users:
                del self._waiting[place]


class FailureBackoff:
    """How often a user's password was wrong from a network lately. Bounded; the oldest is forgotten first."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, entries_max: int = FAILURES_MAX) -> None:
        self._clock = clock
        self._entries_max = entries_max
        self._entries: dict[tuple[str, str], tuple[int, float]] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def delay_s(self, address: str, user: str) -> float:
        """Counts one more failure; returns how long its answer waits. A minute without one forgets. Cost: 2 to 6 us."""
        key = (network(address), user if len(user) <= _NAME_CHARACTERS_MAX else "")
        now = self._clock()
        count, last = self._entries.pop(key, (0, now))
        if now - last >= FORGET_S:
            count = 0
        if len(self._entries) >= self._entries_max:
            del self._entries[next(iter(self._entries))]
        self._entries[key] = (count + 1, now)
        return min(DELAY_FIRST_S * 2.0 ** min(count, 10), DELAY_MAX_S)


class AttemptSource(NamedTuple):
    """Who tried from where. rabbit: `amqp091` and `http` are the protocols' names."""

    address: str
    user: str
    protocol: str


class LoginStats:
    """Logins that were tried since the start or the last `forget`: [right, wrong] by protocol, and by source where that
    was asked for. Bounded: beyond SOURCES_MAX sources the one heard of first goes. Cost: 0.3 us.
    """

    def __init__(self, sources_max: int = SOURCES_MAX) -> None:
        self.by_protocol: dict[str, list[int]] = {}
        self.by_source: dict[AttemptSource, list[int]] = {}
        self.track_sources = False
        self._sources_max = sources_max

    def count(self, protocol: str, address: str, user: str, right: bool) -> None:
        """One more. user: as it was given, which need not be anybody's name."""
        place = 0 if right else 1
        self.by_protocol.setdefault(protocol, [0, 0])[place] += 1
        if not self.track_sources:
            return
        source = AttemptSource(address, user[:_NAME_CHARACTERS_MAX], protocol)
        if source not in self.by_source and len(self.by_source) >= self._sources_max:
            del self.by_source[next(iter(self.by_source))]
        self.by_source.setdefault(source, [0, 0])[place] += 1

    def forget(self, *, sources_only: bool = False) -> None:
        """They begin at 0 again. rabbit: what is kept by source may go alone."""
        self.by_source.clear()
        if not sources_only:
            self.by_protocol.clear()
