"""The program `amqpd`, also `python -m amqpd`: reads the settings, then prints what was asked for, or starts the
server.

Exit codes: 0 after a clean stop, 64 for settings that cannot be used, 74 for output that cannot be written. The others
are those of `amqpd.server.run`. SIGINT or SIGTERM during the start ends the process by that signal, which a shell shows
as 130 or 143; process 1 of a container exits with these codes.
"""

from __future__ import annotations

import time

_started = time.monotonic()  # before the imports, so that the ready line includes their time

import gc  # noqa: E402
import os  # noqa: E402
import signal  # noqa: E402
import sys  # noqa: E402
from collections.abc import Sequence  # noqa: E402
from typing import TYPE_CHECKING  # noqa: E402

EXIT_IO = 74
"""Exit code if the requested text cannot be written (EX_IOERR of sysexits.h)."""

if TYPE_CHECKING:
    from amqpd.protocol_server import Guest
    from amqpd.server import Substitutes


def main(
    argv: Sequence[str] | None = None, guests: Sequence[Guest] = (), substitutes: Substitutes | None = None
) -> int:
    """Run the program and return its exit code.

    Args:
        argv: Arguments without the program's name; None: those of the process.
        guests: Additional protocol servers of a program that starts amqpd, see `amqpd.protocol_server`.
        substitutes: Clock, disk and database of a test, see `amqpd.server`.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _end if os.getpid() == 1 else signal.SIG_DFL)
    gc.disable()  # imports make few cycles; the server enables the collector when it is ready
    try:
        return _main(sys.argv[1:] if argv is None else argv, guests, substitutes)
    finally:
        gc.enable()


def _end(number: int, _frame: object) -> None:
    """End process 1 of a container, for which the kernel ignores signals without a handler.

    All others end by the signal itself. Python calls handlers late in compiled code, and exceptions of handlers are
    lost in callbacks of weak references, as imports have them.
    """
    os._exit(128 + number)


def _main(arguments: Sequence[str], guests: Sequence[Guest], substitutes: Substitutes | None) -> int:
    from amqpd.config import EXIT_USAGE, SettingsError, load  # after `main` has set its handlers

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
    if loaded.wish == "ephemeral":
        from amqpd.ephemeral import run_ephemeral

        return run_ephemeral(arguments, os.environ, _started, guests)
    from amqpd.server import NO_SUBSTITUTES, run

    read_settings = lambda: load(arguments, os.environ).settings  # noqa: E731
    return run(loaded.settings, _started, read_settings, guests, loaded.notes, substitutes or NO_SUBSTITUTES)


def _show(text: str) -> int:
    """Print to a reader that may stop early: `| head` is no error. Return the exit code."""
    try:
        print(text, flush=True)
    except OSError as error:
        # The rest of the buffer must not fail again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):
            print(f"amqpd: standard output cannot be written: {error.strerror}", file=sys.stderr)
            return EXIT_IO
    return 0


if __name__ == "__main__":
    sys.exit(main())
