"""Celery: the tasks. A worker is started with `celery -A app worker`."""

import os
import time

from celery import Celery
from celery.exceptions import Reject
from common import FOLDER, SCENARIO
from kombu import Queue

ARGUMENTS = {
    "priority": {"x-max-priority": 5},
    "dead-letter": {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"},
}

app = Celery("app", broker=os.environ.get("AMQP_URL"), backend=f"file://{FOLDER}" if SCENARIO == "chord" else "rpc://")
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
