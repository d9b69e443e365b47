"""FastStream: the tasks. A worker is started with `faststream run app:app`."""

import asyncio
import os

from common import FOLDER, SCENARIO
from faststream import AckPolicy, FastStream
from faststream.rabbit import Channel, QueueType, RabbitBroker, RabbitMessage, RabbitQueue

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
