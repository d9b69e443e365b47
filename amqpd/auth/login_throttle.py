"""Throttling of logins: the queue for password checks and the delay after a wrong password.

Two rules keep an attacker that guesses passwords from slowing down other clients:

- A password check is slow on purpose, so at most two run at once. The queue serves addresses in turn, and within an
  address its users in turn. A flood from one address or for one user therefore delays the others by one check per
  round.
- Only the answer to a wrong password is delayed: 0.1 s, doubling to 5 s for the same user from the same address. A
  correct password is never delayed or refused because of others' failures. Behind a proxy all clients have one
  address.

`LoginStats` counts logins for `amqpctl list_node_auth_attempt_stats` and the HTTP API.

Memory is bounded by the number of waiting logins, FAILURES_MAX and SOURCES_MAX.
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
    """Return the network that counts as one address: the IPv4 address, also if mapped into IPv6, or the IPv6 /64."""
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
    """Queue of password checks. Networks take turns, and so do the users of a network. A user's checks wait in order.

    Call it on the event loop.
    """

    def __init__(self, at_once: int = CHECKS_AT_ONCE) -> None:
        self._free = at_once
        self._waiting: dict[str, dict[str, dict[asyncio.Future[None], None]]] = {}

    async def acquire(self, address: str, user: str) -> None:
        """Wait for a turn. The caller ends it with `release`, unless it was cancelled while it waited."""
        if self._free:
            self._free -= 1
            return
        source = network(address)
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(source, {}).setdefault(user, {})[future] = None
        try:
            await future
        except asyncio.CancelledError:
            if future.cancelled():
                self._remove(source, user, future)
            else:
                self.release()  # the turn had just been given to this caller
            raise

    def release(self) -> None:
        """End a turn and give it to the next caller in the queue."""
        while self._waiting:
            source = next(iter(self._waiting))
            users = self._waiting.pop(source)
            user = next(iter(users))
            line = users.pop(user)
            future = next(iter(line))
            del line[future]
            if line:
                users[user] = line  # last in the round
            if users:
                self._waiting[source] = users
            if not future.cancelled():  # a cancelled caller is in the queue until its coroutine runs
                future.set_result(None)
                return
        self._free += 1

    def close(self) -> None:
        """Cancel all waiting callers."""
        waiting = [future for users in self._waiting.values() for line in users.values() for future in line]
        for future in waiting:
            future.cancel()

    def _remove(self, source: str, user: str, future: asyncio.Future[None]) -> None:
        users = self._waiting.get(source, {})
        if future not in users.get(user, {}):
            return  # `release` has skipped it
        del users[user][future]
        if not users[user]:
            del users[user]
            if not users:
                del self._waiting[source]


class FailureBackoff:
    """Failed logins per user and network within the last minute. Bounded; the oldest entry is dropped first."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, entries_max: int = FAILURES_MAX) -> None:
        self._clock = clock
        self._entries_max = entries_max
        self._entries: dict[tuple[str, str], tuple[int, float]] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def record_failure(self, address: str, user: str) -> float:
        """Count a failure and return the delay of its answer. A minute without failures resets it. Cost: 2 to 6 us."""
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
    """The origin of a login: address, user name and protocol. RabbitMQ: the protocols are `amqp091` and `http`."""

    address: str
    user: str
    protocol: str


class LoginStats:
    """Counters of logins since the start or the last `reset`: [succeeded, failed] by protocol.

    With `track_sources`, also by source. Beyond SOURCES_MAX sources the oldest is dropped. Cost: 0.3 us.
    """

    def __init__(self, sources_max: int = SOURCES_MAX) -> None:
        self.by_protocol: dict[str, list[int]] = {}
        self.by_source: dict[AttemptSource, list[int]] = {}
        self.track_sources = False
        self._sources_max = sources_max

    def count_login(self, protocol: str, address: str, user: str, right: bool) -> None:
        """Count a login. `user` is the name that the client sent; the user need not exist."""
        index = 0 if right else 1
        self.by_protocol.setdefault(protocol, [0, 0])[index] += 1
        if not self.track_sources:
            return
        source = AttemptSource(address, user[:_NAME_CHARACTERS_MAX], protocol)
        if source not in self.by_source and len(self.by_source) >= self._sources_max:
            del self.by_source[next(iter(self.by_source))]
        self.by_source.setdefault(source, [0, 0])[index] += 1

    def reset(self, *, sources_only: bool = False) -> None:
        """Reset the counters. RabbitMQ: those by source can be reset alone."""
        self.by_source.clear()
        if not sources_only:
            self.by_protocol.clear()
