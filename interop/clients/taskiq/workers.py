"""taskiq-aio-pika: workers."""

import asyncio

from app import broker, hold, note
from common import FOLDER, Worker, notes, run, until
from taskiq.exceptions import SendTaskError


async def ready_count():
    channel = await broker.write_conn.channel()
    queue = await channel.get_queue("taskiq")
    count = (await channel.declare_queue(queue.name, passive=True)).declaration_result.message_count
    await channel.close()
    return count


async def wait_for_ready_count(count):
    while await ready_count() != count:
        await asyncio.sleep(0.05)


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


async def remote_control():
    return "not offered: taskiq has no remote control"


async def events():
    return "not offered: taskiq sends no events"


async def monitor():
    return "not offered: Flower is for Celery"


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


run(globals(), broker)
