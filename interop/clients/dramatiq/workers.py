"""dramatiq: workers."""

import contextlib
import time

import dramatiq
from app import broker, hold, note
from common import FOLDER, Worker, notes, run, until


def ready_count():
    return broker.get_queue_message_counts("default")[0]


def prefetch():
    Worker()
    for number in range(6):
        hold.send(f"held-{number}")
    until(lambda: ready_count() == 4)
    time.sleep(0.5)
    assert ready_count() == 4
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
    until(lambda: ready_count() == 2 - len(notes()))
    Worker()
    until(lambda: [text for _, text in notes()] == ["held", "later"])


def remote_control():
    return "not offered: dramatiq has no remote control"


def events():
    return "not offered: dramatiq sends no events"


def monitor():
    return "not offered: Flower is for Celery"


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


run(globals())
