"""FastStream: tasks, their replies and dead letters."""

import asyncio

from app import DEAD, TASKS, broker
from common import FOLDER, Worker, notes, run, until


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


async def error():
    return "not offered: FastStream sends no reply when a handler fails"


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


async def eta():
    return "not offered: FastStream delays messages with the exchange type x-delayed-message only"


quorum_eta = eta


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


async def chord():
    return "not offered: FastStream has no groups of tasks"


quorum = task

run(globals(), broker)
