"""Who may come in: connections and channels against the limits of their vhost and user.

A front end asks before it lets somebody in, and tells who has come and gone. Connections are counted as the set of
those that are there, so that nobody is counted twice or leaves twice. A connection counts from connection.open until
it closes, a channel until either side closes it; what only shakes hands counts nowhere.

Cost: two look-ups a connection or channel, whatever their number.

rabbit: texts, codes, and that the vhost is asked before the user.
"""

from __future__ import annotations

from amqpd.broker.vhost.limit_set import CHANNELS, CONNECTIONS
from amqpd.broker.vhost.limits import UserLimits
from amqpd.broker.vhost.vhost import VHost
from amqpd.errors import NotAllowed


class Admission:
    """One per broker."""

    def __init__(self, limits: UserLimits) -> None:
        self._limits = limits
        self._by_user: dict[str, set[object]] = {}
        self._channels: dict[str, int] = {}

    def check(self, user: str, vhost: VHost, method: int = 0) -> None:
        """Of one more connection. method: what it asks by. Raises: NotAllowed."""
        if not vhost.limits.allow(CONNECTIONS, len(vhost.connected)):
            limit = vhost.limits.value[CONNECTIONS]
            raise NotAllowed(
                f"access to vhost '{vhost.name}' refused for user '{user}': connection limit ({limit}) is reached",
                method,
            )
        limits = self._limits.of(user)
        if not limits.allow(CONNECTIONS, self.connection_count(user)):
            raise NotAllowed(
                f"connection refused for user '{user}': user connection limit ({limits.value[CONNECTIONS]}) is reached",
                method,
            )

    def connection_count(self, user: str) -> int:
        return len(self._by_user.get(user, ()))

    def entered(self, session: object, user: str, vhost: VHost) -> None:
        """It is open."""
        vhost.connected.add(session)
        self._by_user.setdefault(user, set()).add(session)

    def left(self, session: object, user: str, vhost: VHost) -> None:
        """It ends; may be told twice."""
        vhost.connected.discard(session)
        theirs = self._by_user.get(user)
        if theirs is not None:
            theirs.discard(session)
            if not theirs:
                del self._by_user[user]

    def open_channel(self, user: str) -> None:
        """Counts one more. Raises: NotAllowed, and counts nothing."""
        count = self._channels.get(user, 0)
        limits = self._limits.of(user)
        if not limits.allow(CHANNELS, count):
            raise NotAllowed(
                f"number of channels opened for user '{user}' has reached the maximum allowed user limit of "
                f"({limits.value[CHANNELS]})"
            )
        self._channels[user] = count + 1

    def close_channel(self, user: str) -> None:
        """Of one that was counted, once."""
        count = self._channels[user] - 1
        if count > 0:
            self._channels[user] = count
        else:
            del self._channels[user]
