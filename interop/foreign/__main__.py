"""`python -m interop.foreign SUITE ...`: test suites of client libraries with amqpd and, with --beside, RabbitMQ.

The exit code is 1 if a test passes with RabbitMQ and not with amqpd. It is 2 if a suite or a broker cannot be run, or
no test of a suite passes with one of the brokers.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from amqpd.testing import BrokerFailed
from interop.bench.brokers import StartFailed
from interop.bench.rabbitmq import is_installed

from .recipes import RECIPES, UNAVAILABLE, NotPrepared
from .runner import compare, document, enter_namespace, prepare, text


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the suites as the arguments say, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m interop.foreign", description=__doc__)
    parser.add_argument("suites", nargs="+", metavar="SUITE", help=", ".join(RECIPES))
    parser.add_argument("--beside", action="store_true", help="run each suite with RabbitMQ, too")
    parser.add_argument("--compat", default="rabbitmq-3.10", help='amqpd\'s setting (default: %(default)s); "": none')
    parser.add_argument("--out", type=Path, default=Path(".venv/foreign"), help="folder for sources, logs and JSON")
    options = parser.parse_args(arguments)
    for name in options.suites:
        if name in UNAVAILABLE:
            parser.error(f"{name}: this suite is not offered: {UNAVAILABLE[name]}")
        if name not in RECIPES:
            parser.error(f"unknown suite {name}; known: {', '.join(RECIPES)}")
    if options.beside and not is_installed():
        print("foreign: RabbitMQ is not installed: make rabbitmq", file=sys.stderr)
        return 2
    differences = 0
    try:
        for name in options.suites:  # with this machine's network
            prepare(RECIPES[name], options.out.resolve() / name)
        if not enter_namespace():
            print("foreign: no network namespace: the suites use ports 5672 and 15672 of 127.0.0.1", file=sys.stderr)
        for name in options.suites:
            folder = options.out.resolve() / name
            with tempfile.TemporaryDirectory(prefix="foreign-") as work:
                outcome = compare(name, RECIPES[name], folder, Path(work), options.compat, options.beside)
            print(text(outcome), end="\n\n", flush=True)
            (options.out / f"{name}.json").write_text(document(outcome), "utf-8")
            broken = [side for side, results in outcome.results.items() if "passed" not in results.values()]
            if broken:
                print(f"foreign: no test of {name} passed with {broken[0]}; see {folder}/*.log", file=sys.stderr)
                return 2
            differences += len(outcome.differences())
    except (NotPrepared, RuntimeError, OSError, BrokerFailed, StartFailed) as error:
        print(f"foreign: {error}", file=sys.stderr)
        return 2
    return 1 if differences else 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that broker and suite end, too
    sys.exit(main())
