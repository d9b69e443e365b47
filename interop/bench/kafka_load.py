"""The loads of `kafka.py`: Kafka's own performance tools as clients of one side, with the CPU that its broker used.

A tool's figures are taken from its output. CPU is that of the broker's process, all threads, kernel included, from the
start of the tool to its end, divided by all records of the run.
"""

from __future__ import annotations

import re
import resource
import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from .generator import Result, RunFailed, machine_busy
from .kafka_sides import AmqpdListener, KafkaSide, jars
from .sides import cpu_s

TOOLS: Final = "org.apache.kafka.tools"
TIMEOUT_S: Final = 180.0
JAVA_OPTIONS: Final = (
    "-Xmx512m",
    "-Xms512m",
    "-XX:+UseG1GC",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=error",
    "-Dlog4j2.StatusLogger.level=OFF",
)
PRODUCED = re.compile(r"(\d+) (steady state )?records sent, ([\d.]+) records/sec .* ms 50th")
LATENCIES = re.compile(r"p50 ([\d.]+) p99 ([\d.]+)")
PAYLOAD_LINES: Final = 4000


class Records(NamedTuple):
    """Records that a run sends and reads. size: of a value in bytes; codec: `none` or `lz4`."""

    size: int
    codec: str

    @property
    def name(self) -> str:
        return f"{self.size} B{'' if self.codec == 'none' else f' {self.codec}'}"


def java(program: str, *arguments: str) -> list[str]:
    """Return the command of a class, or of a source file. Raises: StartFailed without Kafka's jars."""
    return [shutil.which("java") or "java", *JAVA_OPTIONS, "-cp", f"{jars()}/*", program, *arguments]


def run_tool(command: Sequence[str]) -> str:
    """Return the output of a program. Raises: RunFailed if it fails or does not end.

    It has a session of its own, as amqpd has: Linux schedules sessions as groups, and a client in Kafka's session would
    hand its processor over to Kafka only.
    """
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
            start_new_session=True,
        )
    except subprocess.TimeoutExpired:
        raise RunFailed(f"not ended after {TIMEOUT_S:.0f} s") from None
    except OSError as error:
        raise RunFailed(str(error)) from None
    if done.returncode:
        raise RunFailed(f"exit code {done.returncode}: {(done.stderr.strip() or done.stdout.strip())[-800:]}")
    return done.stdout


def measured(side: KafkaSide, command: Sequence[str], records: int) -> tuple[str, Result]:
    """Run a client of this side. Return its output, and `cpu_us` per record and `other_cores`. Raises: RunFailed."""
    busy, _ = machine_busy()
    cpu, began, clients = cpu_s(side.pid), time.monotonic(), _children_s()
    output = run_tool(command)
    took, used = time.monotonic() - began, cpu_s(side.pid) - cpu
    others = machine_busy()[0] - busy - used - (_children_s() - clients)
    return output, {"cpu_us": used * 1e6 / records, "other_cores": round(max(0.0, others) / took, 2)}


def _children_s() -> float:
    """Return the CPU seconds of the programs that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def produce(side: KafkaSide, topic: str, records: Records, count: int, payloads: Path) -> Result:
    """Send `count` records by kafka-producer-perf-test, acks=all and idempotent; the first quarter is a warm-up.

    Raises: RunFailed.
    """
    warm = count // 4
    options = ["--topic", topic, "--num-records", str(count), "--throughput", "-1", "--warmup-records", str(warm)]
    properties = ["acks=all", "enable.idempotence=true", f"compression.type={records.codec}"]
    output, result = measured(
        side,
        java(
            f"{TOOLS}.ProducerPerformance",
            *["--bootstrap-server", side.bootstrap, *options],
            *["--payload-file", str(payloads), "--command-property", *properties],
        ),
        count,
    )
    sent = {bool(steady): (int(number), float(rate)) for number, steady, rate in PRODUCED.findall(output)}
    if True not in sent or sent[False][0] != count:
        raise RunFailed(f"not all of {count} records were sent: {output[-400:]}")
    return result | {"rate": sent[True][1]}


def payload_file(directory: Path, size: int) -> Path:
    """Return a file of values of this size that compress about as JSON documents do: to a third."""
    path = directory / f"values-{size}.txt"
    lines = []
    for number in range(PAYLOAD_LINES):
        text, field = "", 0
        while len(text) < size:
            field += 1
            text += f'{{"id":{number * 7919 + field * 104729},"kind":"order","value":{(number * field) % 9973}}}'
        lines.append(text[:size])
    path.write_text("\n".join(lines), "ascii")
    return path


def fetch(side: KafkaSide, topic: str, count: int) -> Result:
    """Read `count` records by kafka-consumer-perf-test. The join of its group is not part of the rate.

    Raises: RunFailed.
    """
    options = ["--topic", topic, "--num-records", str(count), "--hide-header", "--timeout", "30000"]
    output, result = measured(
        side, java(f"{TOOLS}.ConsumerPerformance", "--bootstrap-server", side.bootstrap, *options), count
    )
    return result | {"rate": float(_figures(output, count, 10, 4)[9])}


def share(side: KafkaSide, topic: str, count: int) -> Result:
    """Read and acknowledge `count` records by kafka-share-consumer-perf-test with one member. Raises: RunFailed."""
    group = f"share-{topic}"
    if not isinstance(side, AmqpdListener):  # amqpd has a setting for it
        alter = ["--alter", "--entity-type", "groups", "--entity-name", group]
        earliest = [*alter, "--add-config", "share.auto.offset.reset=earliest"]
        run_tool(java("kafka.admin.ConfigCommand", "--bootstrap-server", side.bootstrap, *earliest))
    options = ["--topic", topic, "--group", group, "--num-records", str(count), "--hide-header", "--timeout", "30000"]
    output, result = measured(
        side, java(f"{TOOLS}.ShareConsumerPerformance", "--bootstrap-server", side.bootstrap, *options), count
    )
    return result | {"rate": float(_figures(output, count, 7, 5)[4])}


def _figures(output: str, count: int, columns: int, read: int) -> list[str]:
    """Return the columns of a consumer tool's line. read: the column of the number of records. Raises: RunFailed."""
    for line in output.splitlines():
        fields = [field.strip() for field in line.split(", ")]
        if len(fields) == columns and fields[read].isdigit():
            if int(fields[read]) < count:
                raise RunFailed(f"{fields[read]} of {count} records were read")
            return fields
    raise RunFailed(f"no figures: {output[-400:]}")


def latency(side: KafkaSide, topic: str, warm: int, count: int) -> Result:
    """Send records of 100 bytes one after the other, and read each: `p50_us`, `p99_us`. Raises: RunFailed."""
    source = str(Path(__file__).with_name("KafkaLatency.java"))
    command = java(source, side.bootstrap, topic, str(warm), str(count), "100")
    output, result = measured(side, command, warm + count)
    found = LATENCIES.search(output)
    if found is None:
        raise RunFailed(f"no figures: {output[-400:]}")
    return result | {"p50_us": float(found[1]), "p99_us": float(found[2])}
