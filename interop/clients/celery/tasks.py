"""Celery: tasks, their results, delays and workflows."""

import time

import celery
from app import add, app, echo, fail, flaky, note, now, refuse, total
from common import Worker, notes, run, until
from kombu import Queue


def task():
    Worker()
    note.delay("done")
    assert until(notes)[0][1] == "done"


def shared():
    Worker(), Worker()
    for number in range(40):
        note.delay(str(number))
    until(lambda: len(notes()) >= 40)
    assert sorted(int(text) for _, text in notes()) == list(range(40)), notes()
    assert len({worker for worker, _ in notes()}) == 2, notes()


def large():
    Worker()
    text = "grüße" * 200_000
    assert echo.delay(text).get() == text


def result():
    Worker()
    assert add.delay(2, 3).get() == 5


def error():
    Worker()
    try:
        fail.delay("this one").get()
    except ValueError as raised:
        assert str(raised) == "this one", raised
    else:
        raise AssertionError("no exception")


def retry():
    Worker()
    assert flaky.delay().get() == 2


def dead_letter():
    Worker()
    with app.connection_for_read() as connection:
        dead = Queue("dead", channel=connection.default_channel)
        dead.declare()
        refuse.delay()
        message = until(dead.get)
    assert message.headers["task"] == "app.refuse", message.headers
    assert message.headers["x-death"][0]["reason"] == "rejected", message.headers


def eta():
    Worker()
    sent = time.time()
    assert now.apply_async(countdown=1).get() >= sent + 1


def priority():
    for level in (1, 5, 3):
        note.apply_async((str(level),), priority=level)
    Worker()
    until(lambda: len(notes()) == 3)
    assert [text for _, text in notes()] == ["5", "3", "1"], notes()


def pipeline():
    Worker()
    assert celery.chain(add.s(1, 2), add.s(10), add.s(100)).delay().get() == 113


def chord():
    Worker()
    assert celery.chord([add.s(number, number) for number in range(10)])(total.s()).get() == 90


def quorum():
    task()
    with app.connection_for_read() as connection:  # the same arguments as the queue has
        Queue("celery", queue_arguments={"x-queue-type": "quorum"}, channel=connection.default_channel).queue_declare()


def quorum_eta():
    worker = Worker()
    sent = time.time()
    waiting = now.apply_async(countdown=3)
    scheduled = app.control.inspect([worker.node], timeout=30, limit=1).scheduled()
    assert scheduled == {worker.node: []}, scheduled
    assert waiting.get() >= sent + 2  # Celery counts whole seconds


run(globals())
