"""Celery: workers, their control and their events."""

import contextlib
import json
import os
import signal
import socket
import time
import urllib.request

from app import add, app, hold, note
from celery.exceptions import TaskRevokedError
from common import FOLDER, Worker, notes, run, run_celery, until


def ready_count(queue):
    with app.connection_for_read() as connection:
        return connection.default_channel.queue_declare(queue, passive=True).message_count


def prefetch():
    Worker()
    results = [hold.delay(f"held-{number}") for number in range(6)]
    until(lambda: ready_count("celery") == 4)
    time.sleep(0.5)
    assert ready_count("celery") == 4
    (FOLDER / "release").touch()
    assert [each.get() for each in results] == [False] * 6


def worker_killed():
    victim = Worker()
    held = hold.delay("held")
    until((FOLDER / "held").exists)
    victim.kill()
    (FOLDER / "release").touch()
    Worker()
    assert held.get() is True  # redelivered


def warm_shutdown():
    worker = Worker()
    held = hold.delay("held")
    note.delay("later")
    until((FOLDER / "held").exists)
    worker.process.terminate()
    (FOLDER / "release").touch()
    assert worker.process.wait() == 0
    assert held.get() is False
    assert ready_count("celery") == 1
    Worker()
    assert until(notes)[0][1] == "later"


def remote_control():
    worker = Worker()
    inspect = app.control.inspect([worker.node], timeout=30, limit=1)
    assert app.control.ping([worker.node], timeout=30, limit=1) == [{worker.node: {"ok": "pong"}}]
    assert "app.add" in inspect.registered()[worker.node]
    later = add.apply_async((1, 1), countdown=100)
    until(lambda: [each["request"]["id"] for each in inspect.scheduled()[worker.node]] == [later.id])
    held = hold.delay("held")
    until((FOLDER / "held").exists)
    assert [each["id"] for each in inspect.active()[worker.node]] == [held.id]
    app.control.revoke([later.id, held.id], terminate=True, signal="SIGKILL")
    until(lambda: {later.id, held.id} <= set(inspect.revoked()[worker.node]))
    try:
        held.get()
    except TaskRevokedError:
        pass
    else:
        raise AssertionError("not revoked")


def events():
    worker, seen = Worker(), {}

    def on_event(event):
        seen.setdefault(event["type"], set()).add(event.get("uuid", event["hostname"]))

    with app.connection_for_read() as connection:
        receiver = app.events.Receiver(connection, handlers={"*": on_event})
        with receiver.consumer_context() as (served, _channel, _consumers):
            done = add.delay(4, 4)
            while done.id not in seen.get("task-succeeded", ()) or "worker-heartbeat" not in seen:
                with contextlib.suppress(TimeoutError):
                    served.drain_events(timeout=0.5)
    assert done.id in seen["task-received"] and worker.node in seen["worker-heartbeat"], seen


def monitor():
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    os.environ["FLOWER_UNAUTHENTICATED_API"] = "true"
    options = [f"--port={port}", "--address=127.0.0.1", f"--broker-api={os.environ['HTTP_URL']}/api/"]
    flower = run_celery(FOLDER / "flower.log", "flower", *options)

    def get(path):
        with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}{path}") as answer:
            return answer.read().decode()
        return ""

    try:
        worker = Worker()
        until(lambda: worker.node in get("/api/workers?refresh=1"))
        done = add.delay(1, 1)
        until(lambda: json.loads(get("/api/tasks") or "{}").get(done.id, {}).get("state") == "SUCCESS")
        until(lambda: '"name": "celery"' in get("/api/queues/length"))
        assert "celery" in get("/broker")
    finally:
        os.killpg(flower.pid, signal.SIGKILL)
        flower.wait()


def reconnect():
    worker = Worker()
    note.delay("before")
    until(notes)
    print("ready", flush=True)  # the runner kills the broker and starts it again
    until(lambda: "Connection to broker lost" in worker.log.read_text())
    note.apply_async(("after",), retry_policy={"max_retries": 600, "interval_max": 0.2})
    until(lambda: ["after"] in [line[1:] for line in notes()])


run(globals())
