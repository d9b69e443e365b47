"""How the programs of dramatiq start workers, and what workers write. `SCENARIO` and output: ../README.md."""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import dramatiq

TIMEOUT_S = 150  # less than the runner's: a program must end its workers
if "TASKS_FOLDER" not in os.environ:  # not a worker
    OWN = tempfile.TemporaryDirectory(prefix="dramatiq-")
    os.environ |= {"SCENARIO": sys.argv[1], "TASKS_FOLDER": OWN.name, "TMPDIR": OWN.name}
SCENARIO = os.environ["SCENARIO"]
FOLDER = Path(os.environ["TASKS_FOLDER"])


class Worker:
    """`dramatiq app` with one process and one thread, in a process group of its own; ready when it is made."""

    started = []

    def __init__(self):
        self.log = FOLDER / f"worker{len(self.started)}.log"
        command = ["dramatiq", "app", "--path", str(Path(__file__).parent), "--processes", "1", "--threads", "1"]
        with self.log.open("w") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-W", "ignore", "-m", *command],
                stdout=output, stderr=output, cwd=FOLDER, start_new_session=True,
            )  # fmt: skip
        self.started.append(self)
        until(lambda: "ready for action" in self.log.read_text())

    def kill(self):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def until(condition):
    """Return the first true value."""
    while not (value := condition()):
        time.sleep(0.05)
    return value


def notes():
    """Return worker and text of each whole line that workers wrote."""
    path = FOLDER / "notes"
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    return [line.decode().split(maxsplit=1) for line in lines]


def run(functions):
    """Do the scenario and print `pass`. Print the workers' logs if it fails."""
    if SCENARIO == "version":
        print(dramatiq.__version__)
        return
    signal.signal(signal.SIGALRM, lambda *_: sys.exit(f"TimeoutError: not within {TIMEOUT_S} s"))
    signal.alarm(TIMEOUT_S)
    try:
        print(functions[SCENARIO.replace("-", "_")]() or "pass")
    except BaseException:
        for log in FOLDER.glob("*.log"):
            print(log.name, log.read_text()[-2000:], file=sys.stderr)
        raise
    finally:
        for worker in Worker.started:
            worker.kill()
