"""dramatiq: the tasks. A worker is started with `dramatiq app`."""

import os
import time

import dramatiq
from common import FOLDER, SCENARIO
from dramatiq.brokers.rabbitmq import RabbitmqBroker

os.environ.setdefault("dramatiq_queue_prefetch", "2" if SCENARIO == "prefetch" else "1")
broker = RabbitmqBroker(
    url=os.environ.get("AMQP_URL", "amqp://localhost"),
    confirm_delivery=True,
    max_priority=5 if SCENARIO == "priority" else None,
)
dramatiq.set_broker(broker)


@dramatiq.actor
def note(text):
    """Write a line to the file that the program reads."""
    with (FOLDER / "notes").open("a") as notes:
        notes.write(f"{os.getppid()} {text}\n")
    time.sleep(0.02)


@dramatiq.actor
def add(x, y):
    return x + y


@dramatiq.actor(min_backoff=100, max_backoff=200, max_retries=3)
def flaky():
    tried = FOLDER / "tried"
    tries = len(tried.read_text()) if tried.exists() else 0
    tried.write_text("x" * (tries + 1))
    if tries < 2:
        raise OSError("not yet")


@dramatiq.actor(max_retries=0)
def fail():
    raise ValueError("for good")


@dramatiq.actor
def now(sent):
    note.fn(str(time.time() - sent))


@dramatiq.actor
def hold(name):
    """Create the file `name` and wait for the file `release`."""
    (FOLDER / name).touch()
    while not (FOLDER / "release").exists():
        time.sleep(0.02)
    note.fn(name)
