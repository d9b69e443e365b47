"""Control of a broker under test: its clock and its faults, and the two ways to send it commands.

The commands are those of `amqpd.testing.commands`. `ThreadControl` runs them on the event loop of a broker in this
process, `SocketControl` sends them to a broker in another process, one at a time.
"""

from __future__ import annotations

import base64
import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Coroutine, Generator
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

if TYPE_CHECKING:
    import asyncio

COMMAND_TIMEOUT_S: Final = 60.0
BYTES_KEY: Final = "base64"
"""The only key of an object in JSON that means bytes."""


def now() -> float:
    """Return seconds of a clock that freezegun and time-machine leave alone."""
    return time.clock_gettime(time.CLOCK_MONOTONIC)


class BrokerFailed(Exception):
    """The broker did not start, did not stop, refused a command, or ended by itself. The text has the reason."""


class NotRunning(RuntimeError):
    """The broker is not running, so it takes no command."""


class NotSupported(Exception):
    """This kind of broker cannot do that; the text names one that can."""


class Control:
    """Base class: sends commands to a running broker."""

    def call(self, command: str, **arguments: object) -> Any:
        """Run a command and return its result. Raises: BrokerFailed."""
        raise NotImplementedError

    def close(self) -> None:
        """Send no more commands."""


Run: TypeAlias = Callable[[str, dict[str, Any]], Coroutine[Any, Any, Any]]


class ThreadControl(Control):
    """Control of a broker in this process.

    Args:
        loop: the broker's event loop, which another thread runs.
        run: runs a command on the loop.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, run: Run) -> None:
        self._loop = loop
        self._run = run

    def call(self, command: str, **arguments: object) -> Any:
        import asyncio

        work = self._run(command, arguments)
        try:
            answer = asyncio.run_coroutine_threadsafe(work, self._loop)
        except RuntimeError as error:  # the loop is closed
            work.close()
            raise BrokerFailed(f"{command}: the broker has ended") from error
        try:
            return answer.result(COMMAND_TIMEOUT_S)
        except Exception as error:
            if answer.cancelled():
                why = "the broker has ended"
            elif answer.cancel():
                why = f"the broker did not answer within {COMMAND_TIMEOUT_S:g} s"
            else:
                why = str(error) or type(error).__name__
            raise BrokerFailed(f"{command}: {why}") from error


class SocketControl(Control):
    """Control of a broker in another process, over a socket. Threads may share it."""

    def __init__(self, sock: socket.socket) -> None:
        sock.settimeout(COMMAND_TIMEOUT_S)
        self._socket = sock
        self._lines = sock.makefile("rb")
        self._lock = threading.Lock()

    def call(self, command: str, **arguments: object) -> Any:
        with self._lock:
            try:
                self._socket.sendall(encode([command, arguments]))
                line = self._lines.readline()
            except (OSError, ValueError) as error:
                raise BrokerFailed(f"{command}: the broker does not answer: {error}") from error
        if not line:
            raise BrokerFailed(f"{command}: the broker has ended")
        answer = decode(line)
        if "error" in answer:
            raise BrokerFailed(f"{command}: {answer['error']}")
        return answer["result"]

    def close(self) -> None:
        self._lines.close()
        self._socket.close()


def encode(value: object) -> bytes:
    """Return a line of JSON. Bytes become an object with base64."""
    return json.dumps(value, default=_bytes_as_object).encode() + b"\n"


def decode(line: bytes) -> Any:
    """Return the value of a line of `encode`. Raises: ValueError."""
    return json.loads(line, object_hook=_object_as_bytes)


def _bytes_as_object(value: object) -> dict[str, str]:
    if isinstance(value, bytes | bytearray | memoryview):
        return {BYTES_KEY: base64.b64encode(value).decode()}
    raise TypeError(f"cannot send {type(value).__name__}")


def _object_as_bytes(value: dict[str, Any]) -> Any:
    return base64.b64decode(value[BYTES_KEY]) if value.keys() == {BYTES_KEY} else value


class BrokerClock:
    """The clock of a broker. It runs like the machine's, and a test moves it ahead.

    Time to live, expiry of queues, delayed messages, retries, consumer timeouts, age limits and locks of share groups
    follow it. Heartbeats, handshakes and time limits of a stop follow the machine's clock.

    Attributes:
        offset_s: how far it is ahead of the machine's clock.
    """

    def __init__(self, control: Callable[[], Control]) -> None:
        self._control = control
        self.offset_s = 0.0

    def advance(self, duration: float | timedelta) -> None:
        """Move the clock ahead by seconds or a timedelta. Returns when all timers that are due have fired, in order.

        What a timer begins may still wait for the disk: the recorder's assertions wait for it. Cost: some 50 us for
        each time at which a timer is due.

        Raises:
            ValueError: the duration is negative.
            BrokerFailed: the broker was busy for 30 s.
        """
        seconds = duration.total_seconds() if isinstance(duration, timedelta) else float(duration)
        if seconds < 0:
            raise ValueError(f"a clock cannot go back ({seconds:g} s)")
        self.offset_s = float(self._control().call("advance", seconds=seconds))


class BrokerFaults:
    """Faults of a broker's disk and network, on demand. They end with the broker, too."""

    def __init__(self, control: Callable[[], Control]) -> None:
        self._control = control

    def drop_connections(self, vhost: str | None = None) -> int:
        """Reset the sockets of all clients, or of those in a vhost. Return their number. They may connect again."""
        return int(self._control().call("drop_connections", vhost=vhost))

    @contextlib.contextmanager
    def slow_disk(self, sync_delay_s: float) -> Generator[None, None, None]:
        """Delay each sync of messages by so many seconds, until the block ends. Confirms come later by that."""
        with self._during("set_disk", {"sync_delay_s": sync_delay_s}, {"sync_delay_s": 0.0}):
            yield

    @contextlib.contextmanager
    def full_disk(self) -> Generator[None, None, None]:
        """Let writes of messages fail for lack of space, and raise the disk alarm, until the block ends.

        The database of queues, exchanges and users keeps its space.
        """
        with self._during("set_disk", {"is_full": True}, {"is_full": False}):
            yield

    @contextlib.contextmanager
    def alarm(self, kind: Literal["memory", "disk"] = "memory") -> Generator[None, None, None]:
        """Raise an alarm, which blocks publishers, until the block ends."""
        with self._during("set_alarm", {"kind": kind, "on": True}, {"kind": kind, "on": False}):
            yield

    @contextlib.contextmanager
    def _during(self, command: str, begin: dict[str, object], end: dict[str, object]) -> Generator[None, None, None]:
        """Begin a fault, and end it unless the broker has been stopped."""
        self._control().call(command, **begin)
        try:
            yield
        finally:
            with contextlib.suppress(NotRunning):
                self._control().call(command, **end)
