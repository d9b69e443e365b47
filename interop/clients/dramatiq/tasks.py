"""dramatiq: tasks, delays and workflows."""

import time

import dramatiq
from app import add, broker, fail, flaky, note, now
from common import FOLDER, Worker, notes, run, until


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


def result():
    return "not offered: dramatiq keeps results in Redis or Memcached"


error = result


def retry():
    Worker()
    flaky.send()
    until(lambda: (FOLDER / "tried").exists() and len((FOLDER / "tried").read_text()) == 3)


def dead_letter():
    Worker()
    fail.send()
    until(lambda: broker.get_queue_message_counts("default") == (0, 0, 1))


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
    dramatiq.pipeline([add.message(1, 2), add.message(10), note.message()]).run()
    assert until(notes)[0][1] == "13"


def chord():
    return "not offered: dramatiq counts a group's tasks in Redis or Memcached"


def quorum():
    return "not offered: dramatiq declares its queues without a type"


quorum_eta = quorum

run(globals())
