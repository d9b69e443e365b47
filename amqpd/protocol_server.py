"""Protocol servers: the ways into the broker, each with its listeners.

AMQP is one (`connection/server.py`), the admin API another one (`management/front_end.py`). The server starts and
stops a list of them. A guest is a protocol server of another program. It does the following:

- It listens on sockets of `listeners.bound_sockets`.
- It makes a `broker.session.Session` for each user, and publishes, consumes and declares through the packages
  below.
- To learn of deleted vhosts and the like, it adds a `broker.listeners.BrokerListener` to `Broker.clients`.

A program passes its guests to `amqpd.__main__.main(guests=[...])`, a test to
`amqpd.testing.embedded(guests=[...])`. `tests/samples/lines.py` is an example: lines of text over TCP.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar, TypeAlias

if TYPE_CHECKING:
    from amqpd.broker.broker import Broker
    from amqpd.config import Settings
    from amqpd.listeners import Listener


class FrontEnd:
    """Base class of protocol servers. All methods run on the broker's event loop.

    Attributes:
        listeners: The present listeners; empty before `start` and after `stop`.
    """

    stays: ClassVar[bool] = False
    """True if it stays between `amqpctl stop_app` and `start_app`, as the admin API, which receives `start_app`."""

    def __init__(self) -> None:
        self.listeners: list[Listener] = []

    async def start(self) -> None:
        """Listen; after a `stop`, on the same ports again. Raises OSError if a port is in use."""
        raise NotImplementedError

    async def stop(self) -> None:
        """Close the listeners and all connections within 3 s. Does nothing if it is not started."""
        raise NotImplementedError

    async def suspend(self) -> None:
        """Refuse new connections and keep the open ones. `listeners` stays. Does nothing if it is suspended."""
        raise NotImplementedError

    async def resume(self) -> None:
        """End `suspend`, on the same ports. Raises OSError if a port is in use; it stays suspended then."""
        raise NotImplementedError

    def check(self, settings: Settings) -> None:
        """Raise OSError if `renew` would. All protocol servers are checked first, so that all apply the settings or
        none.
        """

    def renew(self, settings: Settings) -> None:
        """Apply reloaded settings to later connections (a certificate). Raises OSError, and keeps the old ones."""

    def close(self) -> None:
        """Stop timers: the process ends and all protocol servers are stopped."""


Guest: TypeAlias = "Callable[[Broker], FrontEnd]"
