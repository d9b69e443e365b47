"""Command line tools: RabbitMQ's as installed, and amqpctl in processes that each run many command lines.

Starting Python or Erlang is the most expensive part of a command. There are hundreds, and amqpctl's are run with every
test run. tests/cli checks that amqpctl works as a program under these names.
"""

from __future__ import annotations

import json
import queue
import subprocess
import sys
from collections.abc import Mapping
from typing import Final, Protocol

PATIENCE_S: Final = 60
WORKERS: Final = 4
_WORKER: Final = """
import io, json, os, sys
run = __import__("amqpd.cli.main", fromlist=["run"]).run
for line in sys.stdin:
    words, text = json.loads(line)
    out, err = io.StringIO(), io.StringIO()
    code = run(words[1:], out, err, io.StringIO(text), os.environ, words[0])
    print(json.dumps([code, out.getvalue()]), flush=True)
"""


class Tools(Protocol):
    """A broker's command line tools, by RabbitMQ's names."""

    def run(self, words: list[str], stdin: str) -> tuple[int, str]:
        """Return exit code and standard output. words: the tool's name first. Thread-safe."""

    def close(self) -> None:
        """End the tools."""


class NoTools:
    """The tools of a broker that was already running: none."""

    def run(self, words: list[str], stdin: str) -> tuple[int, str]:
        raise AssertionError(f"{words[0]}: the tools are known of a broker that was started here only")

    def close(self) -> None:
        """Nothing to end."""


NO_TOOLS: Final = NoTools()


class Installed:
    """RabbitMQ's tools in a directory, one process per command."""

    def __init__(self, directory: str, environment: Mapping[str, str]) -> None:
        self._directory = directory
        self._environment = dict(environment)

    def run(self, words: list[str], stdin: str) -> tuple[int, str]:
        try:
            done = subprocess.run(
                [f"{self._directory}/{words[0]}", *words[1:]],
                input=stdin,
                capture_output=True,
                text=True,
                env=self._environment,
                timeout=PATIENCE_S,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise AssertionError(f"{' '.join(words)} did not end") from error
        return done.returncode, done.stdout

    def close(self) -> None:
        """Nothing to end: each process has ended."""


class Workers:
    """amqpctl in worker processes. environment: of all command lines."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._free: queue.SimpleQueue[subprocess.Popen[str]] = queue.SimpleQueue()
        self._all = [
            subprocess.Popen(
                [sys.executable, "-P", "-c", _WORKER],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=dict(environment),
            )
            for _ in range(WORKERS)
        ]
        for each in self._all:
            self._free.put(each)

    def run(self, words: list[str], stdin: str) -> tuple[int, str]:
        worker = self._free.get()
        try:
            assert worker.stdin is not None and worker.stdout is not None
            worker.stdin.write(json.dumps([words, stdin]) + "\n")
            worker.stdin.flush()
            answer = worker.stdout.readline()
            assert answer, f"{' '.join(words)} ended amqpctl"
            code, out = json.loads(answer)
            return code, out
        finally:
            self._free.put(worker)

    def close(self) -> None:
        for each in self._all:
            assert each.stdin is not None and each.stdout is not None
            each.stdin.close()
            each.wait()
            each.stdout.close()
        self._all.clear()
