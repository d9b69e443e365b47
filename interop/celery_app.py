"""The Celery application of test_celery.py and its workers, like a module of a user's project.

The test sets CELERY_INTEROP_URL (the broker) and CELERY_INTEROP_NAME (part of the names of queue, control and event
exchanges, so that parallel runs are separate).
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from celery import Celery, Task

URL = os.environ.get("CELERY_INTEROP_URL", "amqp://")
NAME = os.environ.get("CELERY_INTEROP_NAME", "celery-interop")

app = Celery("interop", broker=URL, backend="rpc://")
app.conf.update(
    task_default_queue=NAME,
    control_exchange=f"{NAME}-control",
    event_exchange=f"{NAME}-events",
    event_queue_prefix=f"{NAME}-events",
    result_exchange=f"{NAME}-results",
    broker_connection_retry_on_startup=True,
    broker_connection_timeout=30,
    task_track_started=True,
    worker_hijack_root_logger=False,
)


@app.task(name="add")
def add(x: int, y: int) -> int:
    return x + y


@app.task(name="fail")
def fail(text: str) -> None:
    raise ValueError(text)


@app.task(name="flaky", bind=True, max_retries=5)
def flaky(self: Task, failures: int) -> int:
    """Fail `failures` times, with a short pause before each retry. Return the number of retries."""
    if self.request.retries < failures:
        raise self.retry(countdown=0.05)
    return int(self.request.retries)


@app.task(name="when")
def when() -> float:
    return time.time()


@app.task(name="echo")
def echo(value: Any) -> Any:
    return value


@app.task(name="hold")
def hold(started: str, release: str) -> str:
    """Create the file `started` and wait up to 300 s for the file `release`."""
    Path(started).touch()
    deadline = time.monotonic() + 300
    while not Path(release).exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    return "released"


@app.task(name="careful", bind=True, acks_late=True, reject_on_worker_lost=True)
def careful(self: Task, started: str, release: str) -> bool:
    """Like `hold`, but acked at the end. Return whether it was redelivered."""
    hold(started, release)
    return bool(self.request.delivery_info["redelivered"])
