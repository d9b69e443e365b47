"""FastStream: the scenarios for frameworks of ../README.md. `faststream run program:app` runs this module."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

from faststream import AckPolicy, FastStream
from faststream.rabbit import Channel, QueueType, RabbitBroker, RabbitMessage, RabbitQueue

TIMEOUT_S = 150  # less than the runner's: this program must end its workers
if "TASKS_FOLDER" not in os.environ:  # not a worker
    OWN = tempfile.TemporaryDirectory(prefix="faststream-")
    os.environ |= {"SCENARIO": sys.argv[1], "TASKS_FOLDER": OWN.name, "TMPDIR": OWN.name}
SCENARIO = os.environ["SCENARIO"]
FOLDER = Path(os.environ["TASKS_FOLDER"])
DELAY = "FastStream delays messages with the exchange type x-delayed-message only"
NOT_OFFERED = {
    "error": "FastStream sends no reply when a handler fails",
    "eta": DELAY,
    "quorum-eta": DELAY,
    "chord": "FastStream has no groups of tasks",
    "remote-control": "FastStream has no remote control",
    "events": "FastStream sends no events",
    "monitor": "Flower is for Celery",
}

broker = RabbitBroker(
    os.environ.get("AMQP_URL", "amqp://localhost"),
    default_channel=Channel(prefetch_count=2 if SCENARIO == "prefetch" else 1),
)
app = FastStream(broker)
if SCENARIO == "quorum":
    TASKS = RabbitQueue("tasks", queue_type=QueueType.QUORUM, durable=True)
else:
    TASKS = RabbitQueue("tasks", durable=True, arguments={"x-max-priority": 5} if SCENARIO == "priority" else None)
HOLD = RabbitQueue("hold", durable=True)
DEAD = RabbitQueue("dead", durable=True)
TO_DEAD = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}


@broker.subscriber(TASKS)
async def note(text: str) -> None:
    """Write a line to the file that the program reads."""
    with (FOLDER / "notes").open("a") as notes:
        notes.write(f"{os.getpid()} {text}\n")
    await asyncio.sleep(0.02)


@broker.subscriber("double")
async def double(number: int) -> int:
    return number * 2


@broker.subscriber("first")
@broker.publisher(TASKS)
async def first(number: int) -> str:
    return str(number + 10)


@broker.subscriber(RabbitQueue("flaky", durable=True), ack_policy=AckPolicy.NACK_ON_ERROR)
async def flaky(text: str) -> None:
    tried = FOLDER / "tried"
    tries = len(tried.read_text()) if tried.exists() else 0
    tried.write_text("x" * (tries + 1))
    if tries < 2:
        raise OSError("not yet")


@broker.subscriber(RabbitQueue("failing", durable=True, arguments=TO_DEAD), ack_policy=AckPolicy.REJECT_ON_ERROR)
async def fail(text: str) -> None:
    raise ValueError(text)


@broker.subscriber(HOLD, ack_policy=AckPolicy.NACK_ON_ERROR)
async def hold(name: str, message: RabbitMessage) -> None:
    """Create the file `name` and wait for the file `release`."""
    (FOLDER / name).touch()
    while not (FOLDER / "release").exists():
        await asyncio.sleep(0.02)
    with (FOLDER / "notes").open("a") as notes:
        notes.write(f"{os.getpid()} {name} {message.raw_message.redelivered}\n")


class Worker:
    """`faststream run` as a process group of its own; it becomes `ready`."""

    started = []

    def __init__(self):
        self.log = FOLDER / f"worker{len(self.started)}.log"
        command = ["faststream", "run", "program:app", "--app-dir", str(Path(__file__).parent)]
        with self.log.open("w") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-W", "ignore", "-m", *command],
                stdout=output, stderr=output, cwd=FOLDER, start_new_session=True,
            )  # fmt: skip
        self.started.append(self)

    async def ready(self):
        await until(lambda: "started successfully" in self.log.read_text())
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


async def ready_count(queue):
    return (await broker.declare_queue(RabbitQueue(queue.name, declare=False))).declaration_result.message_count


async def task():
    await Worker().ready()
    await broker.publish("done", TASKS)
    assert (await until(notes))[0][1] == "done"


async def shared():
    for worker in (Worker(), Worker()):
        await worker.ready()
    for number in range(40):
        await broker.publish(str(number), TASKS)
    await until(lambda: len(notes()) >= 40)
    assert sorted(int(text) for _, text in notes()) == list(range(40)), notes()
    assert len({worker for worker, _ in notes()}) == 2, notes()


async def large():
    await Worker().ready()
    text = "grüße" * 200_000
    await broker.publish(text, TASKS)
    assert (await until(notes))[0][1] == text


async def result():
    await Worker().ready()
    reply = await broker.request(21, "double", timeout=60)
    assert await reply.decode() == 42


async def retry():
    await Worker().ready()
    await broker.publish("x", "flaky")
    await until(lambda: (FOLDER / "tried").exists() and len((FOLDER / "tried").read_text()) == 3)


async def dead_letter():
    queue = await broker.declare_queue(DEAD)
    await Worker().ready()
    await broker.publish("for good", "failing")
    while not (message := await queue.get(fail=False)):
        await asyncio.sleep(0.05)
    assert (message.body, message.headers["x-death"][0]["reason"]) == (b"for good", "rejected"), message.headers


async def priority():
    await broker.declare_queue(TASKS)
    for level in (1, 5, 3):
        await broker.publish(str(level), TASKS, priority=level)
    await Worker().ready()
    await until(lambda: len(notes()) == 3)
    assert [text for _, text in notes()] == ["5", "3", "1"], notes()


async def pipeline():
    await Worker().ready()
    await broker.publish(3, "first")
    assert (await until(notes))[0][1] == "13"


async def quorum():
    await task()


async def prefetch():
    await Worker().ready()
    for number in range(6):
        await broker.publish(f"held-{number}", HOLD)
    while await ready_count(HOLD) != 4:
        await asyncio.sleep(0.05)
    await asyncio.sleep(0.5)
    assert await ready_count(HOLD) == 4
    (FOLDER / "release").touch()
    await until(lambda: len(notes()) == 6)


async def worker_killed():
    victim = await Worker().ready()
    await broker.publish("held", HOLD)
    await until((FOLDER / "held").exists)
    victim.kill()
    (FOLDER / "release").touch()
    await Worker().ready()
    assert (await until(notes))[0][1] == "held True", notes()


async def warm_shutdown():
    worker = await Worker().ready()
    await broker.publish("held", HOLD)
    await broker.publish("later", HOLD)
    await until((FOLDER / "held").exists)
    worker.process.terminate()
    (FOLDER / "release").touch()
    await until(lambda: worker.process.poll() is not None)
    done = [text.split()[0] for _, text in notes()]
    assert done and done[0] == "held", notes()
    while await ready_count(HOLD) + len(done) != 2:
        await asyncio.sleep(0.05)
    await Worker().ready()
    await until(lambda: len(notes()) == 2)
    assert [text.split()[0] for _, text in notes()] == ["held", "later"], notes()


async def reconnect():
    worker = await Worker().ready()
    await broker.publish("before", TASKS, persist=True)
    await until(notes)
    print("ready", flush=True)  # the runner kills the broker and starts it again
    await until(lambda: "econnect" in worker.log.read_text())
    while True:
        with contextlib.suppress(Exception):  # until the broker is back, and the worker, too
            await broker.publish("after", TASKS, persist=True, timeout=5)
        if ["after"] in [line[1:] for line in notes()]:
            return
        await asyncio.sleep(0.2)


async def run(name):
    await broker.connect()
    try:
        await globals()[name.replace("-", "_")]()
    except BaseException:
        for log in FOLDER.glob("*.log"):
            print(log.name, log.read_text()[-2000:], file=sys.stderr)
        raise
    finally:
        for worker in Worker.started:
            worker.kill()
        await broker.stop()


def main(name):
    if name == "version":
        print(version("faststream"))
    elif name in NOT_OFFERED:
        print("not offered:", NOT_OFFERED[name])
    else:
        signal.signal(signal.SIGALRM, lambda *_: sys.exit(f"TimeoutError: not within {TIMEOUT_S} s"))
        signal.alarm(TIMEOUT_S)
        asyncio.run(run(name))
        print("pass")


if __name__ == "__main__":
    main(*sys.argv[1:])
