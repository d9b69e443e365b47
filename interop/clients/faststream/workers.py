"""FastStream: workers."""

import asyncio
import contextlib

from app import HOLD, TASKS, broker
from common import FOLDER, Worker, notes, run, until
from faststream.rabbit import RabbitQueue


async def ready_count(queue):
    return (await broker.declare_queue(RabbitQueue(queue.name, declare=False))).declaration_result.message_count


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


async def remote_control():
    return "not offered: FastStream has no remote control"


async def events():
    return "not offered: FastStream sends no events"


async def monitor():
    return "not offered: Flower is for Celery"


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


run(globals(), broker)
