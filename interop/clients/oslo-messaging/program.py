"""oslo.messaging, the client of OpenStack: tasks are calls and notifications. Output and scenarios: ../README.md."""

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from urllib.parse import urlsplit

import oslo_messaging
from oslo_config import cfg

TOPIC = "tasks"
NOT_OFFERED = {
    "dead-letter": "oslo.messaging has no queue for failed messages",
    "eta": "oslo.messaging has no delays",
    "quorum-eta": "oslo.messaging has no delays",
    "priority": "oslo.messaging has no priorities within a queue",
    "pipeline": "a call does not start another one",
    "chord": "calls have no groups",
    "prefetch": "a worker acknowledges a call before it is done",
    "worker-killed": "a worker acknowledges a call before it is done",
    "warm-shutdown": "a worker acknowledges a call before it is done",
    "remote-control": "workers have no remote control",
    "events": "workers send no events",
    "monitor": "Flower is for Celery",
}


def transport(get):
    """Return a transport to the broker of AMQP_URL, with quorum queues for the scenario of this name."""
    parts = urlsplit(os.environ["AMQP_URL"])
    cfg.CONF([], project="tasks")
    made = get(cfg.CONF, url=parts._replace(scheme="rabbit").geturl())
    if sys.argv[1] == "quorum":
        cfg.CONF.set_override("rabbit_quorum_queue", True, group="oslo_messaging_rabbit")
    return made


class Endpoint:
    """The methods that a worker offers. It notes calls in `file`."""

    def __init__(self, file):
        self.file = file
        self.tries = 0

    def note(self, _context, text):
        with self.file.open("a") as notes:
            notes.write(f"{os.getpid()} {text}\n")
        time.sleep(0.02)

    def add(self, _context, a, b):
        return a + b

    def fail(self, _context):
        raise ValueError("no number")

    def info(self, context, _publisher, _event, payload, _metadata):
        """Refuse a notification twice."""
        self.tries += 1
        if self.tries < 3:
            return oslo_messaging.NotificationResult.REQUEUE
        self.note(context, payload)
        return oslo_messaging.NotificationResult.HANDLED


def work(file):
    endpoint = Endpoint(Path(file))
    if sys.argv[1] == "retry":
        server = oslo_messaging.get_notification_listener(
            transport(oslo_messaging.get_notification_transport),
            [oslo_messaging.Target(topic=TOPIC)], [endpoint], executor="threading", allow_requeue=True,
        )  # fmt: skip
    else:
        target = oslo_messaging.Target(topic=TOPIC, server=f"worker-{os.getpid()}")
        server = oslo_messaging.get_rpc_server(
            transport(oslo_messaging.get_rpc_transport), target, [endpoint], executor="threading"
        )
    server.start()
    print("started", flush=True)
    server.wait()


def main(name):
    with tempfile.TemporaryDirectory(prefix="oslo-") as folder, contextlib.ExitStack() as workers:
        file = Path(folder) / "notes"
        for _ in range(2 if name == "shared" else 1):
            command = [sys.executable, "-W", "ignore", __file__, name, str(file)]
            worker = workers.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
            workers.callback(worker.kill)
            assert worker.stdout.readline() == "started\n"

        def notes(count):
            """Wait for this many lines of workers, and return them as worker and text."""
            while not file.exists() or file.read_text().count("\n") < count:
                time.sleep(0.05)
            return [line.split(" ", 1) for line in file.read_text().splitlines()]

        if name == "retry":
            made = transport(oslo_messaging.get_notification_transport)
            oslo_messaging.Notifier(made, "program", driver="messagingv2", topics=[TOPIC]).info({}, "made", "done")
            assert notes(1)[0][1] == "done"
            return
        made = transport(oslo_messaging.get_rpc_transport)
        client = oslo_messaging.get_rpc_client(made, oslo_messaging.Target(topic=TOPIC), timeout=60)
        if name in ("task", "quorum"):
            client.cast({}, "note", text="done")
            assert notes(1)[0][1] == "done"
        elif name == "shared":
            for number in range(40):
                client.cast({}, "note", text=str(number))
            found = notes(40)
            assert sorted(int(text) for _, text in found) == list(range(40)), found
            assert len({worker for worker, _ in found}) == 2, found
        elif name == "large":
            client.cast({}, "note", text="grüße" * 200_000)
            assert notes(1)[0][1] == "grüße" * 200_000
        elif name == "result":
            assert client.call({}, "add", a=2, b=3) == 5
        elif name == "error":
            try:
                client.call({}, "fail")
            except ValueError as error:  # built-in exceptions are raised again as they are
                assert "no number" in str(error), error
            else:
                raise AssertionError("no exception")
        else:
            assert client.call({}, "add", a=1, b=1) == 2
            print("ready", flush=True)  # the runner kills the broker and starts it again
            time.sleep(1)
            while True:
                with contextlib.suppress(oslo_messaging.MessagingException):
                    assert client.prepare(timeout=5).call({}, "add", a=2, b=2) == 4
                    break


if sys.argv[1] == "version":
    print(version("oslo.messaging"))
elif sys.argv[1] in NOT_OFFERED:
    print("not offered:", NOT_OFFERED[sys.argv[1]])
elif sys.argv[2:]:
    work(sys.argv[2])
else:
    main(sys.argv[1])
    print("pass", flush=True)
    os._exit(0)  # threads of the transport would wait for the broker
