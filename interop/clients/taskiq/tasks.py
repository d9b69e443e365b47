"""taskiq-aio-pika: tasks, retries and delays."""

import time

from app import broker, flaky, note, now
from common import FOLDER, Worker, notes, run, until


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


async def result():
    return "not offered: taskiq-aio-pika has no results; they need Redis, for example"


error = result


async def retry():
    await Worker().ready()
    await flaky.kiq()
    await until(lambda: (FOLDER / "tried").exists() and len((FOLDER / "tried").read_text()) == 3)


async def dead_letter():
    return "not offered: taskiq acknowledges a task that fails"


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


async def pipeline():
    return "not offered: taskiq's pipelines are another package"


chord = pipeline
quorum = task
quorum_eta = eta

run(globals(), broker)
