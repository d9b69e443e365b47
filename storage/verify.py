"""Holds the files of a queue's log against each other, without changing any of them: `amqpctl verify_log`.

What each file tells is log_inspect.py's; here it must agree: segments that go on where the one before ended, totals that
are there, and what is settled of what is in the logs.
"""

from __future__ import annotations

import json

from amqpd.storage.filesystem import FileSystem
from amqpd.storage.log import checkpoint
from amqpd.storage.log.batch import CONTROL
from amqpd.storage.acks.ack_set import SettledSet
from amqpd.storage.acks.settled_reader import SettledFile, settle_told, totals_of
from amqpd.storage.log_inspect import IN_BETWEEN, Batch, Damage, Text, beside, is_known, is_segment_file, look_into, plain_name


class QueueReport:
    """What `check_queue` found. settled_count: offsets of the logs present that are settled, lost or no message."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.queue = ""
        self.vhost = ""
        self.segment_count = 0
        self.batch_count = 0
        self.record_count = 0
        self.settled_count = 0
        self.size_bytes = 0
        self.start_offset = 0
        self.next_offset = 0
        self.epoch_count = 0
        self.damage: list[Damage] = []
        self.foreign: list[str] = []

    @property
    def bad(self) -> list[Damage]:
        """The damage that is not harmless."""
        return [each for each in self.damage if not each.harmless]


def check_queue(filesystem: FileSystem, directory: str) -> QueueReport:
    """Reads all files of one queue's directory and holds them against each other. Cost: one read of everything.

    Raises: OSError. Files that go while it reads (of a live queue) are passed over.
    """
    report = QueueReport(directory)
    names = sorted(filesystem.listdir(directory))
    report.epoch_count = len(checkpoint.read_lines(filesystem, f"{directory}/{checkpoint.LEADER_EPOCH}", 2))
    logs = [name for name in names if is_segment_file(name) and name.endswith(".log")]
    bases = [int(name[:20]) for name in logs]
    report.start_offset = bases[0] if bases else 0
    for name in names:
        path = f"{directory}/{name}"
        if name.endswith(IN_BETWEEN):
            continue  # coming or going: recovery knows what to do
        if not is_known(name):
            report.foreign.append(name)
            continue
        try:
            if name.endswith(".log"):
                number = bases.index(int(name[:20]))
                _check_log(filesystem, path, report, bases[number + 1] if number + 1 < len(bases) else -1)
            else:
                for event in look_into(filesystem, path):
                    if isinstance(event, Damage):
                        report.damage.append(event)
                    elif isinstance(event, Text) and name == "queue.json":
                        described = json.loads(event.text)
                        if isinstance(described, dict):
                            report.queue = str(described.get("queue", ""))
                            report.vhost = str(described.get("vhost", ""))
        except FileNotFoundError:
            continue
    report.segment_count = len(logs)
    return report


def _check_log(filesystem: FileSystem, path: str, report: QueueReport, next_base: int) -> None:
    base = int(plain_name(path)[:20])
    end = base
    count = 0
    for event in look_into(filesystem, path):
        if isinstance(event, Damage):
            report.damage.append(event)
        elif isinstance(event, Batch):
            if 0 <= next_base <= event.last_offset:
                text = f"offsets {event.base_offset} to {event.last_offset} belong into the next segment"
                report.damage.append(Damage(path, event.position, text))
            end = event.last_offset + 1
            report.batch_count += 1
            if not event.attributes & CONTROL:
                count += event.record_count
            report.size_bytes += event.size
    known = SettledSet(base)
    data = beside(filesystem, path, ".settled") + beside(filesystem, path, ".settled.swap")
    entries = SettledFile(data).entries
    settle_told(entries, known, end)
    for told, size in totals_of(entries):
        if next_base >= 0 and size > filesystem.size(path) and told > end:
            text = f"{size} bytes were sealed here, of which the rest is missing"
            report.damage.append(Damage(path, filesystem.size(path), text))
    report.record_count += count
    report.settled_count += int(known.count)
    report.next_offset = max(report.next_offset, end)


def queue_directories(filesystem: FileSystem, data_dir: str) -> list[str]:
    """The directories of all logs in a data directory, sorted: of queues, then of delayed messages, vhost by vhost;
    empty where it is none.
    """
    root = f"{data_dir}/vhosts"
    found: list[str] = []
    for vhost in sorted(filesystem.listdir(root)):
        found += _below(filesystem, f"{root}/{vhost}/queues")
        for exchange in _below(filesystem, f"{root}/{vhost}/delays"):
            found += _below(filesystem, exchange)
    return found


def _below(filesystem: FileSystem, directory: str) -> list[str]:
    return [f"{directory}/{name}" for name in sorted(filesystem.listdir(directory))]
