"""How the programs of taskiq-aio-pika start workers, and what workers write. `SCENARIO` and output: ../README.md."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

TIMEOUT_S = 150  # less than the runner's: a program must end its workers
if "TASKS_FOLDER" not in os.environ:  # not a worker
    OWN = tempfile.TemporaryDirectory(prefix="taskiq-")
    os.environ |= {"SCENARIO": sys.argv[1], "TASKS_FOLDER": OWN.name, "TMPDIR": OWN.name}
SCENARIO = os.environ["SCENARIO"]
FOLDER = Path(os.environ["TASKS_FOLDER"])


class Worker:
    """`taskiq worker` with one process, in a process group of its own; it becomes `ready`."""

    started = []

    def __init__(self):
        self.log = FOLDER / f"worker{len(self.started)}.log"
        command = ["taskiq", "worker", "app:broker", "--app-dir", str(Path(__file__).parent), "--workers", "1"]
        with self.log.open("w") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-W", "ignore", "-m", *command],
                stdout=output, stderr=output, cwd=FOLDER, start_new_session=True,
            )  # fmt: skip
        self.started.append(self)

    async def ready(self):
        await until(lambda: "Listening started" in self.log.read_text())
        return self

    def kill(self):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


async def until(condition):
    """Return the first true value."""
    while not (value := condition()):
        await asyncio.sleep(0.05)
    return value


def notes():
    """Return worker and text of each whole line that workers wrote."""
    path = FOLDER / "notes"
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    return [line.decode().split(maxsplit=1) for line in lines]


async def call(function, broker):
    await broker.startup()
    try:
        print(await function() or "pass")
    except BaseException:
        for log in FOLDER.glob("*.log"):
            print(log.name, log.read_text()[-2000:], file=sys.stderr)
        raise
    finally:
        for worker in Worker.started:
            worker.kill()
        await broker.shutdown()


def run(functions, broker):
    """Do the scenario and print `pass`. Print the workers' logs if it fails."""
    if SCENARIO == "version":
        print(version("taskiq"), f"(taskiq-aio-pika {version('taskiq-aio-pika')})")
        return
    signal.signal(signal.SIGALRM, lambda *_: sys.exit(f"TimeoutError: not within {TIMEOUT_S} s"))
    signal.alarm(TIMEOUT_S)
    asyncio.run(call(functions[SCENARIO.replace("-", "_")], broker))
