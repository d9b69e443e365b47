"""Errors of amqpctl and their exit codes.

The codes are rabbitmqctl 3.10's, which are those of BSD's sysexits.h. Scripts depend on them; the texts are for
people. Tests with RabbitMQ 3.10.8 measured which command ends with which code.
"""

from __future__ import annotations

from typing import Final

OK: Final = 0
USAGE: Final = 64
"""Unknown command, option or column; wrong number of arguments. rabbit: also if a queue cannot be deleted, and if the
app is stopped."""
DATA: Final = 65
NO_USER: Final = 67
UNAVAILABLE: Final = 69
"""The broker does not answer, or it refuses the request."""
SOFTWARE: Final = 70
IO_ERROR: Final = 74
"""The output cannot be written."""
TIMED_OUT: Final = 75
NO_PERMISSION: Final = 77
"""Wrong password, or the user lacks a tag or permission that the command needs."""
INTERRUPTED: Final = 130


class Failure(Exception):
    """The command failed. `text` is for people, `exit_code` for scripts."""

    def __init__(self, exit_code: int, text: str) -> None:
        super().__init__(text)
        self.exit_code = exit_code
        self.text = text

    def shown(self) -> str:
        # rabbit: the broker's text is on a line of its own
        return f"Error:\n{self.text}"


class ApiRefused(Failure):
    """A failure outside the command's own work. Its text follows `Error: ` on the same line."""

    def shown(self) -> str:
        return f"Error: {self.text}"


class VhostNotFound(Failure):
    """A missing vhost. rabbit: the text has no `Error:` before it, and most commands end with 65."""

    def __init__(self, name: str) -> None:
        super().__init__(DATA, f"Virtual host '{name}' does not exist")

    def shown(self) -> str:
        return self.text


class AppStopped(ApiRefused):
    """HTTP 503 `app_stopped`: the process runs, AMQP is stopped (`stop_app`). amqpctl also shows the usage."""

    def __init__(self) -> None:
        super().__init__(
            USAGE,
            "this command requires the 'amqpd' app to be running on the target node. "
            "Start it with 'amqpctl start_app'.",
        )


class AppRuns(ApiRefused):
    """HTTP 409 `app_running`: the command needs stopped AMQP. amqpctl also shows the usage."""

    def __init__(self) -> None:
        super().__init__(
            USAGE,
            "this command requires the 'amqpd' app to be stopped on the target node. Stop it with 'amqpctl stop_app'.",
        )


class UsageError(Failure):
    """The command line is wrong, and no request was sent. amqpctl also shows the usage."""

    def __init__(self, text: str, exit_code: int = USAGE) -> None:
        super().__init__(exit_code, text)

    def shown(self) -> str:
        return f"Error (argument validation): {self.text}"


class UnknownCommand(Failure):
    """An unknown command. The text says what to do."""

    def __init__(self, text: str) -> None:
        super().__init__(USAGE, text)

    def shown(self) -> str:
        return f"\n{self.text}\n"
