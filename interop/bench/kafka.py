"""`python -m interop.bench.kafka` (make bench-kafka): amqpd's listener for Kafka's clients beside Apache Kafka 4.3.

The clients are Kafka's own performance tools. Both brokers run all the time; runs alternate between them, in changing
order, while the other one is idle. Each round fills new topics, reads them, reads them as a share group, and measures
latencies; starts are measured at the end. `--help` lists the options, README.md has the results.

Exit codes: 0 measured, with any figures; 1 nothing could be measured or a run failed; 130 on Ctrl-C or SIGTERM.
"""

from __future__ import annotations

import argparse
import shlex
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import FrameType

from . import kafka_load, kafka_report, machine
from .brokers import StartFailed
from .generator import Result, RunFailed
from .kafka_load import Records
from .kafka_report import Found
from .kafka_sides import AmqpdListener, ApacheKafka, KafkaSide, memory_mb
from .rounds import PAUSE_S, Run, add_round_options, parse_rounds, say

RECORDS = (Records(100, "none"), Records(100, "lz4"), Records(1024, "none"), Records(1024, "lz4"))
PER_S = {100: 200_000, 1024: 50_000}
"""Size of a value -> records for each second of --time, the same for both brokers."""
WARM_RECORDS, LATENCIES = 500, 1000
STARTS = 5
WHAT = {
    "produce": "kafka-producer-perf-test, acks=all, idempotent, other settings of the client by default; the rate "
    "without the first quarter. amqpd syncs before it answers; Kafka does not, and does in the column `kafka, synced` "
    "(flush.messages=1)",
    "fetch": "kafka-consumer-perf-test, from the first record; the rate without the join of the group",
    "share": "kafka-share-consumer-perf-test with one member, from the first record",
    "latency": f"{LATENCIES} records of 100 bytes, one after the other (linger.ms=0), from the send to a consumer",
    "memory": "after all loads",
    "start": f"from the start of the process until ApiVersions is answered, over the data of the run; {STARTS} starts",
}


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    names = [each.name for each in RECORDS]
    parser = argparse.ArgumentParser(
        prog="python -m interop.bench.kafka", description="amqpd's listener for Kafka's clients beside Apache Kafka"
    )
    parser.add_argument("--records", metavar="KIND,...", default=",".join(names), help=f"of: {', '.join(names)}")
    add_round_options(parser, 5.0, "about, per Produce")
    given = parse_rounds(parser, argv, "records", names)
    given.chosen = [each for each in RECORDS if each.name in given.records.split(",")]
    return given


def _terminate(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


class Measurement:
    """A run of the benchmark: the sides, and what has been found so far."""

    def __init__(self, given: argparse.Namespace, sides: Sequence[KafkaSide], directory: Path, found: Found) -> None:
        self._given = given
        self._sides = sides
        self._found = found
        self._payloads = {each.size: kafka_load.payload_file(directory, each.size) for each in RECORDS}
        self._round = 0

    def warm_up(self) -> None:
        """Have each side do everything once, unmeasured: Java compiles what is used. Raises: RunFailed."""
        for side in self._sides:
            say(f"{side.version} is warmed up")
            for records in self._given.chosen:
                topic = f"warm-{records.size}-{records.codec}"
                side.create_topic(topic, {})
                count = self._count(records)
                kafka_load.produce(side, topic, records, count, self._payloads[records.size])
                kafka_load.fetch(side, topic, count)
                kafka_load.share(side, topic, count // 4)
                side.delete_topic(topic)

    def rounds(self) -> None:
        """Measure all rounds, or those for which there is time."""
        until = time.monotonic() + self._given.limit * 60
        for number in range(1, self._given.rounds + 1):
            if number > 1 and time.monotonic() > until:
                self._found.notes.append(f"{number - 1} rounds instead of {self._given.rounds}: time was up.")
                break
            self._round = number
            for records in self._given.chosen:
                for side in self._in_turn():
                    self._records(side, records)
            for side in self._in_turn():
                self._latencies(side)
        for side in self._sides:
            self._one("memory", next(iter(side.topic_configs)), partial(memory_mb, side.pid))

    def starts(self) -> None:
        """Measure starts over the data of the run."""
        for side in self._sides:
            column = next(iter(side.topic_configs))
            for number, took in enumerate(side.start_times_ms(STARTS), 1):
                self._found.runs.append(Run(number, "start", column, {"start_ms": took}))

    def _in_turn(self) -> Sequence[KafkaSide]:
        return self._sides if self._round % 2 else self._sides[::-1]

    def _count(self, records: Records) -> int:
        return int(PER_S[records.size] * self._given.time)

    def _records(self, side: KafkaSide, records: Records) -> None:
        """Fill a topic for each column of the side, and read the first one."""
        count, payloads = self._count(records), self._payloads[records.size]
        topics = []
        for column, configs in side.topic_configs.items():
            topics.append(f"t{self._round}-{records.size}-{records.codec}-{len(topics)}")
            side.create_topic(topics[-1], configs)
            load = partial(kafka_load.produce, side, topics[-1], records, count, payloads)
            self._one(f"produce {records.name}", column, load)
        column = next(iter(side.topic_configs))
        self._one(f"fetch {records.name}", column, partial(kafka_load.fetch, side, topics[0], count))
        self._one(f"share {records.name}", column, partial(kafka_load.share, side, topics[0], count // 4))
        for topic in topics:
            side.delete_topic(topic)

    def _latencies(self, side: KafkaSide) -> None:
        for number, (column, configs) in enumerate(side.topic_configs.items()):
            topic = f"t{self._round}-latency-{number}"
            side.create_topic(topic, configs)
            self._one("latency", column, partial(kafka_load.latency, side, topic, WARM_RECORDS, LATENCIES))
            side.delete_topic(topic)

    def _one(self, scenario: str, column: str, work: Callable[[], Result]) -> None:
        run = Run(self._round, scenario, column)
        try:
            run.result = work()
        except RunFailed as error:
            run.error = str(error)
        self._found.runs.append(run)
        say(f"[round {self._round} of {self._given.rounds}] {scenario}, {column}: {kafka_report.line(run)}")
        time.sleep(PAUSE_S)


def main(argv: Sequence[str]) -> int:
    """Run the program."""
    given = _arguments(argv)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _terminate)
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="amqpd-bench-", dir=given.directory)))
        sides: list[KafkaSide] = [AmqpdListener(directory / "amqpd")]
        if not given.alone:
            sides.append(ApacheKafka(directory / "kafka"))
        try:
            for side in sides:
                stack.callback(side.stop)
                side.start()
        except StartFailed as error:
            say(f"cannot measure: {error}")
            return 1
        words = (Path(word).name if "/" in word else word for word in argv)
        found = Found(
            date=datetime.now(UTC).strftime("%Y-%m-%d"),
            command=shlex.join(["python", "-m", "interop.bench.kafka", *words]),
            machine=machine.facts(directory),
            versions=[side.version for side in sides],
            what=WHAT,
        )
        return _measure(given, Measurement(given, sides, directory, found), found)


def _measure(given: argparse.Namespace, measurement: Measurement, found: Found) -> int:
    code = 0
    try:
        measurement.warm_up()
        measurement.rounds()
        measurement.starts()
    except KeyboardInterrupt:
        found.notes.append("The run was interrupted before its end.")
        code = 130
    except (RunFailed, StartFailed) as error:
        say(f"cannot measure: {error}")
        return 1
    print(f"\n{kafka_report.markdown(found)}")
    if given.readme and not code:
        kafka_report.write(found, Path(__file__).with_name("README.md"))
    return code or int(any(run.error for run in found.runs))


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
