"""Celery: the scenarios for frameworks of ../README.md. Workers import this module (`celery -A program worker`)."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

import celery
from celery import Celery, chain, chord
from celery.exceptions import Reject, TaskRevokedError
from kombu import Queue

TIMEOUT_S = 150  # less than the runner's: this program must end its workers
if "TASKS_FOLDER" not in os.environ:  # not a worker
    OWN = tempfile.TemporaryDirectory(prefix="celery-")
    os.environ |= {"SCENARIO": sys.argv[1], "TASKS_FOLDER": OWN.name, "TMPDIR": OWN.name}
SCENARIO = os.environ["SCENARIO"]
FOLDER = Path(os.environ["TASKS_FOLDER"])
ARGUMENTS = {
    "priority": {"x-max-priority": 5},
    "dead-letter": {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"},
}

app = Celery(
    "program", broker=os.environ.get("AMQP_URL"), backend="rpc://" if SCENARIO != "chord" else f"file://{FOLDER}"
)
app.conf.task_acks_late = True
app.conf.task_reject_on_worker_lost = True
app.conf.worker_prefetch_multiplier = 2 if SCENARIO == "prefetch" else 1
app.conf.broker_transport_options = {"confirm_publish": True}
app.conf.broker_connection_retry_on_startup = True
if SCENARIO in ("quorum", "quorum-eta"):
    app.conf.task_default_queue_type = "quorum"
    app.conf.worker_detect_quorum_queues = True
    app.conf.task_default_exchange_type = "topic"  # Celery delays tasks by topic exchanges
    app.conf.task_default_routing_key = "celery"
if SCENARIO in ARGUMENTS:
    app.conf.task_queues = [Queue("celery", queue_arguments=ARGUMENTS[SCENARIO])]


@app.task
def add(x, y):
    return x + y


@app.task
def total(numbers):
    return sum(numbers)


@app.task
def echo(text):
    return text


@app.task
def note(text):
    """Write a line to the file that the program reads."""
    with (FOLDER / "notes").open("a") as notes:
        notes.write(f"{os.getppid()} {text}\n")
    time.sleep(0.02)


@app.task
def fail(text):
    raise ValueError(text)


@app.task
def refuse():
    raise Reject("for good", requeue=False)


@app.task(bind=True, max_retries=5)
def flaky(self):
    if self.request.retries < 2:
        raise self.retry(countdown=0.1)
    return self.request.retries


@app.task
def now():
    return time.time()


@app.task(bind=True)
def hold(self, name):
    """Create the file `name` and wait for the file `release`. Return whether the broker delivered the task again."""
    (FOLDER / name).touch()
    while not (FOLDER / "release").exists():
        time.sleep(0.02)
    return self.request.delivery_info["redelivered"]


class Worker:
    """`celery worker` in a process group of its own; ready when it is made."""

    started = []

    def __init__(self):
        self.node = f"worker{len(self.started)}@{socket.gethostname()}"
        self.log = FOLDER / f"{self.node}.log"
        command = ["worker", "--concurrency", "1", "--loglevel", "info", "--hostname", self.node, "--events"]
        self.process = run_celery(self.log, *command)
        self.started.append(self)
        until(lambda: " ready." in self.log.read_text())

    def kill(self):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def run_celery(log, *arguments):
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent)}
    with log.open("w") as output:
        return subprocess.Popen(
            [sys.executable, "-P", "-W", "ignore", "-m", "celery", "-A", "program", *arguments],
            stdout=output, stderr=output, env=environment, cwd=FOLDER, start_new_session=True,
        )  # fmt: skip


def until(condition):
    """Return the first true value."""
    while not (value := condition()):
        time.sleep(0.05)
    return value


def notes():
    """Return worker and text of each whole line."""
    path = FOLDER / "notes"
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    return [line.decode().split(maxsplit=1) for line in lines]


def ready_count(queue):
    with app.connection_for_read() as connection:
        return connection.default_channel.queue_declare(queue, passive=True).message_count


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
    assert message.headers["task"] == "program.refuse", message.headers
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
    assert chain(add.s(1, 2), add.s(10), add.s(100)).delay().get() == 113


def run_chord():
    Worker()
    assert chord([add.s(number, number) for number in range(10)])(total.s()).get() == 90


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
    assert "program.add" in inspect.registered()[worker.node]
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
        until(
            lambda: (
                "celery"
                in [
                    each["name"]
                    for each in json.loads(get("/api/queues/length") or '{"active_queues": []}')["active_queues"]
                ]
            )
        )
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


def main(name):
    if name == "version":
        print(celery.__version__)
        return
    signal.signal(signal.SIGALRM, lambda *_: sys.exit(f"TimeoutError: not within {TIMEOUT_S} s"))
    signal.alarm(TIMEOUT_S)
    try:
        (run_chord if name == "chord" else globals()[name.replace("-", "_")])()
    except BaseException:
        for log in FOLDER.glob("*.log"):
            print(log.name, log.read_text()[-2000:], file=sys.stderr)
        raise
    finally:
        for worker in Worker.started:
            worker.kill()
    print("pass")


if __name__ == "__main__":
    main(*sys.argv[1:])
