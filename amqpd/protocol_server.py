"""A front end: a way into the broker, with its listeners, as the server has it.

AMQP is one (`connection/server.py`), the admin API another (`management/front_end.py`); the server starts and stops
a list of them and knows no more. A guest, some other protocol, is one more class: it listens
(`listening.bound_sockets`), makes a `broker.session.Session` for each user it serves, publishes, consumes and declares
through the packages below, and if it wants to hear of deleted vhosts and the like adds a `broker.clients.Clients` to
`broker.clients`. It is handed to the server as a `Guest`: `amqpd.__main__.main(guests=[...])` in a program of its own,
`amqpd.testing.embedded(guests=[...])` in a test. `tests/samples/lines.py` is one to copy: lines of text over TCP.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar, TypeAlias

if TYPE_CHECKING:
    from amqpd.broker.broker import Broker
    from amqpd.config import Settings
    from amqpd.listeners import Listener


class FrontEnd:
    """listeners: what it listens on now; none before `start` and after `stop`. All of it runs on the broker's loop."""

    stays: ClassVar[bool] = False
    """Whether it goes on between `amqpctl stop_app` and `start_app`: only who has to hear `start_app` does."""

    def __init__(self) -> None:
        self.listeners: list[Listener] = []

    async def start(self) -> None:
        """Listens when it returns; after a `stop` on the same ports again. Raises: OSError when one is taken."""
        raise NotImplementedError

    async def stop(self) -> None:
        """Listens no more and ends whom it serves; returns when they are gone, in 3 s at most. Harmless unstarted."""
        raise NotImplementedError

    async def suspend(self) -> None:
        """Lets nobody in any more; whom it serves stays. Its listeners stay on the list. Harmless where it is so."""
        raise NotImplementedError

    async def resume(self) -> None:
        """Takes a `suspend` back, on the same ports. Raises: OSError when one is taken; it stays suspended then."""
        raise NotImplementedError

    def check(self, settings: Settings) -> None:
        """Raises: OSError where `renew` would. So that all front ends take over, or none."""

    def renew(self, settings: Settings) -> None:
        """SIGHUP: takes over what it can for those to come (a certificate). Raises: OSError, and keeps what it had."""

    def close(self) -> None:
        """The process ends, all front ends are stopped: timers go."""


Guest: TypeAlias = "Callable[[Broker], FrontEnd]"
