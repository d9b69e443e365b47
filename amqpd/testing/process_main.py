"""Program of a broker that a test controls: `python -m amqpd.testing.process_main FD disk|memory SECONDS [options]`.

It is amqpd with a clock and a disk that obey the test (`substitutes`), and a front end that serves the test's commands
on an inherited socket. Each command is a line of JSON, `[name, arguments]`; the answer is a line with `result` or
`error`. If the test's process ends, the broker stops.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from amqpd.__main__ import main
from amqpd.protocol_server import FrontEnd
from amqpd.testing.commands import BrokerCommands
from amqpd.testing.control import decode, encode
from amqpd.testing.substitutes import BrokerSubstitutes

if TYPE_CHECKING:
    from amqpd.broker.broker import Broker


class CommandFrontEnd(FrontEnd):
    """Serves the commands of a test on one socket. It has no listener, and stays while clients cannot connect."""

    stays = True

    def __init__(self, sock: socket.socket, substitutes: BrokerSubstitutes, broker: Broker) -> None:
        super().__init__()
        self._socket = sock
        self._commands = BrokerCommands(broker, substitutes)
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        if self._task is None:
            reader, writer = await asyncio.open_connection(sock=self._socket)
            self._task = asyncio.create_task(self._serve(reader, writer))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                command, arguments = decode(line)
                try:
                    answer = {"result": await self._commands.run(command, arguments)}
                except Exception as error:  # noqa: BLE001  # the test gets it
                    answer = {"error": f"{type(error).__name__}: {error}"}
                writer.write(encode(answer))
                await writer.drain()
        except OSError:
            pass  # the test's process was killed
        finally:
            writer.close()
        os.kill(os.getpid(), signal.SIGTERM)

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            self._task = None

    async def suspend(self) -> None:
        """Do nothing: a test commands its broker at any time."""

    async def resume(self) -> None:
        """Do nothing."""


def run(arguments: Sequence[str]) -> int:
    """Run the program and return its exit code.

    Args:
        arguments: The descriptor of the socket, the kind of disk, the seconds by which the clock is ahead, and amqpd's
            options.
    """
    descriptor, disk, offset_s, *options = arguments
    sock = socket.socket(fileno=int(descriptor))
    substitutes = BrokerSubstitutes(disk == "memory")
    substitutes.clock.offset_s = float(offset_s)
    guests = [partial(CommandFrontEnd, sock, substitutes)]
    return main(options, guests, substitutes.for_start())


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
