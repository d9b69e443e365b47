"""What can go wrong in amqpctl, and the exit code it ends with.

The codes are rabbitmqctl 3.10's, which are those of BSD's sysexits.h. Which command ends with which was measured with
RabbitMQ 3.10.8. Scripts switch on them, so a code is part of the interface; the texts are for people.
"""

from __future__ import annotations

from typing import Final

OK: Final = 0
USAGE: Final = 64
"""Unknown command, option or column, wrong number of arguments; also a queue that cannot be deleted, and an app that
is stopped (rabbit: both are 64)."""
DATA: Final = 65
NO_USER: Final = 67
UNAVAILABLE: Final = 69
"""The broker does not answer, or it answers that it will not."""
SOFTWARE: Final = 70
TIMED_OUT: Final = 75
NO_PERMISSION: Final = 77
"""Wrong password, or a user without the tag or permission that the command needs."""
INTERRUPTED: Final = 130


class Failure(Exception):
    """The command did not do its work. `text` is what a person reads, `exit_code` what a script reads."""

    def __init__(self, exit_code: int, text: str) -> None:
        super().__init__(text)
        self.exit_code = exit_code
        self.text = text

    def shown(self) -> str:
        # rabbit: a text the broker answered stands on a line of its own
        return f"Error:\n{self.text}"


class ApiRefused(Failure):
    """A failure before or beside the command's own work: its text follows `Error: ` on the same line."""

    def shown(self) -> str:
        return f"Error: {self.text}"


class VhostNotFound(Failure):
    """rabbit: it stands without `Error:`, and most commands end with 65."""

    def __init__(self, name: str) -> None:
        super().__init__(DATA, f"Virtual host '{name}' does not exist")

    def shown(self) -> str:
        return self.text


class AppStopped(ApiRefused):
    """HTTP 503 `app_stopped`: the process runs, AMQP is closed (`stop_app`). The command's usage is shown too."""

    def __init__(self) -> None:
        super().__init__(
            USAGE,
            "this command requires the 'amqpd' app to be running on the target node. "
            "Start it with 'amqpctl start_app'.",
        )


class AppRuns(ApiRefused):
    """HTTP 409 `app_running`: AMQP would have to be stopped. The command's usage is shown too."""

    def __init__(self) -> None:
        super().__init__(
            USAGE,
            "this command requires the 'amqpd' app to be stopped on the target node. Stop it with 'amqpctl stop_app'.",
        )


class UsageError(Failure):
    """The command line is wrong; nothing was sent. The command's usage is shown too."""

    def __init__(self, text: str, exit_code: int = USAGE) -> None:
        super().__init__(exit_code, text)

    def shown(self) -> str:
        return f"Error (argument validation): {self.text}"


class UnknownCommand(Failure):
    """The text already says what to do."""

    def __init__(self, text: str) -> None:
        super().__init__(USAGE, text)

    def shown(self) -> str:
        return f"\n{self.text}\n"
