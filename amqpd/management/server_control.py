"""What the admin API sees and may do of the server it is part of; `amqpd.server` fills it.

The server composes the packages and so knows this one; the other way round goes through what is handed over here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from amqpd.connection.registry import Connections
    from amqpd.listeners import Listener
    from amqpd.config import Settings
    from amqpd.process import Reloaded


class ServerControl(Protocol):
    """One broker process, as handlers have it. drained: between `amqpctl drain` and `revive`."""

    drained: bool

    @property
    def latest(self) -> Settings:
        """The settings that were read last: those of the start, with what a reload has taken over."""

    @property
    def connections(self) -> Connections:
        """The AMQP connections."""

    @property
    def listeners(self) -> Sequence[Listener]:
        """What is listened on now, by all front ends."""

    @property
    def app_running(self) -> bool:
        """Whether clients can connect: False between `stop_app` and `start_app`."""

    @property
    def not_ready(self) -> str:
        """Why clients cannot connect now; empty when they can."""

    async def stop_app(self) -> None:
        """`amqpctl stop_app`: the ports close, clients are told to go. Returns when they are gone, in 3 s at most."""

    async def start_app(self) -> None:
        """`amqpctl start_app`: on the same ports again. Raises: OSError when one is taken."""

    async def suspend_listeners(self) -> None:
        """`amqpctl suspend_listeners`: clients no longer get in; those that are in stay."""

    async def resume_listeners(self) -> None:
        """`amqpctl resume_listeners`: they get in again. Raises: OSError when a port is taken."""

    def reload(self, asked_by: str) -> Reloaded:
        """`amqpctl reload`: the settings are read again, as by SIGHUP. Reads files: some milliseconds."""

    async def reload_definitions(self, asked_by: str) -> str:
        """Likewise, behind it: the file or directory that was imported again, "" for none. Raises: DefinitionsError,
        MetadataError.
        """

    def stop(self) -> None:
        """Asks for a clean end of the process; returns at once."""
