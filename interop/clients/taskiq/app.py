"""taskiq-aio-pika: the tasks. A worker is started with `taskiq worker app:broker`."""

import asyncio
import os
import time

from common import FOLDER, SCENARIO
from taskiq import SimpleRetryMiddleware
from taskiq_aio_pika import AioPikaBroker, Queue, QueueType

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
