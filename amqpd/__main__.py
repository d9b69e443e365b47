"""`amqpd` and `python -m amqpd`: reads the settings, answers what needs no server, else starts it.

Exit codes: 0 after a clean stop, 64 for settings that cannot be used; the rest is the server's (`amqpd.server.run`).
"""

from __future__ import annotations

import time

_started = time.monotonic()  # before the imports: the ready line counts them in

import os  # noqa: E402
import sys  # noqa: E402
from collections.abc import Sequence  # noqa: E402
from typing import TYPE_CHECKING  # noqa: E402

from amqpd.config import EXIT_USAGE, SettingsError, load  # noqa: E402

if TYPE_CHECKING:
    from amqpd.protocol_server import Guest


def main(argv: Sequence[str] | None = None, guests: Sequence[Guest] = ()) -> int:
    """Runs the program; returns its exit code.

    argv: without the program's name; None takes the process's own. guests: front ends of a program that starts amqpd
    with more than its own, see `amqpd.protocol_server`.
    """
    arguments = sys.argv[1:] if argv is None else argv
    try:
        loaded = load(arguments, os.environ)
    except SettingsError as error:
        for problem in error.problems:
            print(f"amqpd: {problem}", file=sys.stderr)
        print("amqpd: see `amqpd --help` for every setting", file=sys.stderr)
        return EXIT_USAGE
    if loaded.wish == "version":
        from amqpd._build import version_line

        return _show(version_line())
    if loaded.wish == "help":
        from amqpd.config.help import help_text

        return _show(help_text())
    if loaded.wish == "print-settings":
        from amqpd.config.help import settings_text

        return _show(settings_text(loaded))
    if loaded.wish == "check-config":
        from amqpd.config.help import check_text

        return _show(check_text(loaded))
    from amqpd.server import run

    return run(loaded.settings, _started, lambda: load(arguments, os.environ).settings, guests, loaded.notes)


def _show(text: str) -> int:
    """Prints to a reader who may stop in the middle: `| head` is no error."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        # What is left in the buffer must not fail once more at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


if __name__ == "__main__":
    sys.exit(main())
