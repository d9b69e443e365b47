"""dramatiq: the scenarios for frameworks of ../README.md. Workers import this module (`dramatiq program`)."""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import dramatiq
from dramatiq import pipeline as Pipeline  # noqa: N812
from dramatiq.brokers.rabbitmq import RabbitmqBroker

TIMEOUT_S = 150  # less than the runner's: this program must end its workers
if "TASKS_FOLDER" not in os.environ:  # not a worker
    OWN = tempfile.TemporaryDirectory(prefix="dramatiq-")
    os.environ |= {"SCENARIO": sys.argv[1], "TASKS_FOLDER": OWN.name, "TMPDIR": OWN.name}
SCENARIO = os.environ["SCENARIO"]
FOLDER = Path(os.environ["TASKS_FOLDER"])
RESULTS = "dramatiq keeps results in Redis or Memcached"
NOT_OFFERED = {
    "result": RESULTS,
    "error": RESULTS,
    "chord": "dramatiq counts a group's tasks in Redis or Memcached",
    "quorum": "dramatiq declares its queues without a type",
    "quorum-eta": "dramatiq declares its queues without a type",
    "remote-control": "dramatiq has no remote control",
    "events": "dramatiq sends no events",
    "monitor": "Flower is for Celery",
}
SCENARIOS_WITH_PRIORITY = {"priority": 5}
os.environ.setdefault("dramatiq_queue_prefetch", "2" if SCENARIO == "prefetch" else "1")

if SCENARIO != "version":
    dramatiq.set_broker(
        RabbitmqBroker(
            url=os.environ["AMQP_URL"], confirm_delivery=True, max_priority=SCENARIOS_WITH_PRIORITY.get(SCENARIO)
        )
    )


@dramatiq.actor
def note(text):
    """Write a line to the file that the program reads."""
    with (FOLDER / "notes").open("a") as notes:
        notes.write(f"{os.getppid()} {text}\n")
    time.sleep(0.02)


@dramatiq.actor
def add(x, y):
    return x + y


@dramatiq.actor(min_backoff=100, max_backoff=200, max_retries=3)
def flaky():
    tried = FOLDER / "tried"
    tries = len(tried.read_text()) if tried.exists() else 0
    tried.write_text("x" * (tries + 1))
    if tries < 2:
        raise OSError("not yet")


@dramatiq.actor(max_retries=0)
def fail():
    raise ValueError("for good")


@dramatiq.actor
def now(sent):
    note.fn(str(time.time() - sent))


@dramatiq.actor
def hold(name):
    """Create the file `name` and wait for the file `release`."""
    (FOLDER / name).touch()
    while not (FOLDER / "release").exists():
        time.sleep(0.02)
    note.fn(name)


class Worker:
    """`dramatiq program` with one process and one thread, in a process group of its own; ready when it is made."""

    started = []

    def __init__(self):
        self.log = FOLDER / f"worker{len(self.started)}.log"
        command = ["dramatiq", "program", "--path", str(Path(__file__).parent), "--processes", "1", "--threads", "1"]
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
    """Return worker and text of each whole line."""
    path = FOLDER / "notes"
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    return [line.decode().split(maxsplit=1) for line in lines]


def ready_counts():
    """Return how many messages are ready in the queue, in that of delayed tasks, and in that of dead ones."""
    return dramatiq.get_broker().get_queue_message_counts("default")


def task():
    Worker()
    note.send("done")
    assert until(notes)[0][1] == "done"


def shared():
    Worker(), Worker()
    for number in range(40):
        note.send(str(number))
    until(lambda: len(notes()) >= 40)
    assert sorted(int(text) for _, text in notes()) == list(range(40)), notes()
    assert len({worker for worker, _ in notes()}) == 2, notes()


def large():
    Worker()
    text = "grüße" * 200_000
    note.send(text)
    assert until(notes)[0][1] == text


def retry():
    Worker()
    flaky.send()
    until(lambda: (FOLDER / "tried").exists() and len((FOLDER / "tried").read_text()) == 3)


def dead_letter():
    Worker()
    fail.send()
    until(lambda: ready_counts() == (0, 0, 1))


def eta():
    Worker()
    now.send_with_options(args=(time.time(),), delay=1000)
    assert float(until(notes)[0][1]) >= 1


def priority():
    for level in (1, 5, 3):
        note.send_with_options(args=(str(level),), broker_priority=level)
    Worker()
    until(lambda: len(notes()) == 3)
    assert [text for _, text in notes()] == ["5", "3", "1"], notes()


def pipeline():
    Worker()
    Pipeline([add.message(1, 2), add.message(10), note.message()]).run()
    assert until(notes)[0][1] == "13"


def prefetch():
    Worker()
    for number in range(6):
        hold.send(f"held-{number}")
    until(lambda: ready_counts()[0] == 4)
    time.sleep(0.5)
    assert ready_counts()[0] == 4
    (FOLDER / "release").touch()
    until(lambda: len(notes()) == 6)


def worker_killed():
    victim = Worker()
    hold.send("held")
    until((FOLDER / "held").exists)
    victim.kill()
    (FOLDER / "release").touch()
    Worker()
    assert until(notes)[0][1] == "held"


def warm_shutdown():
    worker = Worker()
    hold.send("held")
    until((FOLDER / "held").exists)
    note.send("later")
    worker.process.terminate()
    until(lambda: "Shutting down" in worker.log.read_text() or "Stopping" in worker.log.read_text())
    (FOLDER / "release").touch()
    assert worker.process.wait() == 0
    assert [text for _, text in notes()][:1] == ["held"], notes()
    until(lambda: ready_counts()[0] == 2 - len(notes()))
    Worker()
    until(lambda: [text for _, text in notes()] == ["held", "later"])


def reconnect():
    worker = Worker()
    note.send("before")
    until(notes)
    print("ready", flush=True)  # the runner kills the broker and starts it again

    until(lambda: "onnection" in worker.log.read_text())
    while ["after"] not in [line[1:] for line in notes()]:
        with contextlib.suppress(dramatiq.errors.ConnectionError):
            note.send("after")
        time.sleep(0.2)


def main(name):
    if name == "version":
        print(dramatiq.__version__)
        return
    if name in NOT_OFFERED:
        print("not offered:", NOT_OFFERED[name])
        return
    signal.signal(signal.SIGALRM, lambda *_: sys.exit(f"TimeoutError: not within {TIMEOUT_S} s"))
    signal.alarm(TIMEOUT_S)
    try:
        globals()[name.replace("-", "_")]()
    except BaseException:
        for log in FOLDER.glob("*.log"):
            print(log.name, log.read_text()[-2000:], file=sys.stderr)
        raise
    finally:
        for worker in Worker.started:
            worker.kill()
    print("pass")


if __name__ == "__main__":
    main(*sys.argv[1:])
