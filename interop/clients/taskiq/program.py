"""taskiq-aio-pika: the scenarios for frameworks of ../README.md. `taskiq worker program:broker` imports this module."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

from taskiq import SimpleRetryMiddleware
from taskiq.exceptions import SendTaskError
from taskiq_aio_pika import AioPikaBroker, Queue, QueueType

TIMEOUT_S = 150  # less than the runner's: this program must end its workers
if "TASKS_FOLDER" not in os.environ:  # not a worker
    OWN = tempfile.TemporaryDirectory(prefix="taskiq-")
    os.environ |= {"SCENARIO": sys.argv[1], "TASKS_FOLDER": OWN.name, "TMPDIR": OWN.name}
SCENARIO = os.environ["SCENARIO"]
FOLDER = Path(os.environ["TASKS_FOLDER"])
RESULTS = "taskiq-aio-pika has no results; they need Redis, for example"
CANVAS = "taskiq's pipelines are another package"
NOT_OFFERED = {
    "result": RESULTS,
    "error": RESULTS,
    "dead-letter": "taskiq acknowledges a task that fails",
    "pipeline": CANVAS,
    "chord": CANVAS,
    "remote-control": "taskiq has no remote control",
    "events": "taskiq sends no events",
    "monitor": "Flower is for Celery",
}
KIND = QueueType.QUORUM if SCENARIO.startswith("quorum") else QueueType.CLASSIC

broker = AioPikaBroker(
    os.environ.get("AMQP_URL"),
    qos=2 if SCENARIO == "prefetch" else 1,
    task_queues=[Queue(name="taskiq", type=KIND, max_priority=5 if SCENARIO == "priority" else None)],
    dead_letter_queue=Queue(name="taskiq.dead", type=KIND),
    delay_queue=Queue(name="taskiq.delay", type=KIND),
).with_middlewares(SimpleRetryMiddleware(default_retry_count=5))


@broker.task("note")
async def note(text: str) -> None:
    """Write a line to the file that the program reads."""
    with (FOLDER / "notes").open("a") as notes:
        notes.write(f"{os.getppid()} {text}\n")
    await asyncio.sleep(0.02)


@broker.task("flaky", retry_on_error=True)
async def flaky() -> None:
    tried = FOLDER / "tried"
    tries = len(tried.read_text()) if tried.exists() else 0
    tried.write_text("x" * (tries + 1))
    if tries < 2:
        raise OSError("not yet")


@broker.task("now")
async def now(sent: float) -> None:
    await note(str(time.time() - sent))


@broker.task("hold")
async def hold(name: str) -> None:
    """Create the file `name` and wait for the file `release`."""
    (FOLDER / name).touch()
    while not (FOLDER / "release").exists():
        await asyncio.sleep(0.02)
    await note(name)


class Worker:
    """`taskiq worker` with one process, in a process group of its own; it becomes `ready`."""

    started = []

    def __init__(self):
        self.log = FOLDER / f"worker{len(self.started)}.log"
        command = ["taskiq", "worker", "program:broker", "--app-dir", str(Path(__file__).parent), "--workers", "1"]
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
    """Return worker and text of each whole line."""
    path = FOLDER / "notes"
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    return [line.decode().split(maxsplit=1) for line in lines]


async def ready_count():
    channel = await broker.write_conn.channel()
    queue = await channel.get_queue("taskiq")
    count = (await channel.declare_queue(queue.name, passive=True)).declaration_result.message_count
    await channel.close()
    return count


async def wait_for_ready_count(count):
    while await ready_count() != count:
        await asyncio.sleep(0.05)


async def task():
    await Worker().ready()
    await note.kiq("done")
    assert (await until(notes))[0][1] == "done"


async def shared():
    for worker in (Worker(), Worker()):
        await worker.ready()
    for number in range(40):
        await note.kiq(str(number))
    await until(lambda: len(notes()) >= 40)
    assert sorted(int(text) for _, text in notes()) == list(range(40)), notes()
    assert len({worker for worker, _ in notes()}) == 2, notes()


async def large():
    await Worker().ready()
    text = "grüße" * 200_000
    await note.kiq(text)
    assert (await until(notes))[0][1] == text


async def retry():
    await Worker().ready()
    await flaky.kiq()
    await until(lambda: (FOLDER / "tried").exists() and len((FOLDER / "tried").read_text()) == 3)


async def eta():
    await Worker().ready()
    await now.kicker().with_labels(delay=1).kiq(time.time())
    assert float((await until(notes))[0][1]) >= 1


async def priority():
    for level in (1, 5, 3):
        await note.kicker().with_labels(priority=level).kiq(str(level))
    await Worker().ready()
    await until(lambda: len(notes()) == 3)
    assert [text for _, text in notes()] == ["5", "3", "1"], notes()


async def quorum():
    await task()


async def quorum_eta():
    await eta()


async def prefetch():
    await Worker().ready()
    for number in range(6):
        await hold.kiq(f"held-{number}")
    await wait_for_ready_count(4)
    await asyncio.sleep(0.5)
    assert await ready_count() == 4
    (FOLDER / "release").touch()
    await until(lambda: len(notes()) == 6)


async def worker_killed():
    victim = await Worker().ready()
    await hold.kiq("held")
    await until((FOLDER / "held").exists)
    victim.kill()
    (FOLDER / "release").touch()
    await Worker().ready()
    assert (await until(notes))[0][1] == "held"


async def warm_shutdown():
    worker = await Worker().ready()
    await hold.kiq("held")
    await until((FOLDER / "held").exists)
    await note.kiq("later")
    worker.process.terminate()
    (FOLDER / "release").touch()
    await until(lambda: worker.process.poll() is not None)
    assert [text for _, text in notes()][:1] == ["held"], notes()
    await wait_for_ready_count(2 - len(notes()))
    await Worker().ready()
    await until(lambda: [text for _, text in notes()] == ["held", "later"])


async def reconnect():
    worker = await Worker().ready()
    await note.kiq("before")
    await until(notes)
    print("ready", flush=True)  # the runner kills the broker and starts it again
    await until(lambda: "aio_pika.robust_connection" in worker.log.read_text())
    while True:
        try:
            await note.kiq("after")
            break
        except (SendTaskError, RuntimeError):
            await asyncio.sleep(0.1)
    await until(lambda: ["after"] in [line[1:] for line in notes()])


async def run(name):
    await broker.startup()
    try:
        await globals()[name.replace("-", "_")]()
    except BaseException:
        for log in FOLDER.glob("*.log"):
            print(log.name, log.read_text()[-2000:], file=sys.stderr)
        raise
    finally:
        for worker in Worker.started:
            worker.kill()
        await broker.shutdown()


def main(name):
    if name == "version":
        print(version("taskiq"), f"(taskiq-aio-pika {version('taskiq-aio-pika')})")
    elif name in NOT_OFFERED:
        print("not offered:", NOT_OFFERED[name])
    else:
        signal.signal(signal.SIGALRM, lambda *_: sys.exit(f"TimeoutError: not within {TIMEOUT_S} s"))
        signal.alarm(TIMEOUT_S)
        asyncio.run(run(name))
        print("pass")


if __name__ == "__main__":
    main(*sys.argv[1:])
