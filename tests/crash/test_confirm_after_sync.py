"""No confirm is written to the socket before the sync of the log that holds its message: checked in the system calls.

strace attaches to the running broker; where strace is missing or may not attach, the test skips visibly. Each body
holds its publish sequence number. The trace therefore shows which write holds a message, which sync completed after
that write, and which write to a socket carries its basic.ack.
"""

from __future__ import annotations

import asyncio
import random
import re
import shutil
import signal
import struct
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import pytest
from faults_disk import skip_or_fail
from quickclient import connect

from amqpd.storage.journal import BLOCK_SIZE, MAGIC
from amqpd.testing import BrokerProcess

CALLS: Final = "write,writev,pwrite64,pwritev,pwritev2,sendto,sendmsg,sendmmsg,fdatasync,fsync,syncfs,sync_file_range"
LINE: Final = re.compile(r"^(?P<thread>\d+) +(?:<\.\.\. (?P<resumed>\w+) resumed>|(?P<call>\w+)\()(?P<rest>.*)$")
DESCRIPTOR: Final = re.compile(r"^\d+<(?P<target>[^>]*)>")
STRING: Final = re.compile(r'"((?:[^"\\]|\\.)*)"')
ACK: Final = b"\x00\x3c\x00\x50"
DURABLE: Final = b"\x10\x00\x02"
PATIENCE_S: Final = 60


class Call(NamedTuple):
    """A finished system call.

    begin, end: line numbers in the trace. target: the descriptor's path or socket. data: the written bytes, if shown.
    """

    begin: int
    end: int
    name: str
    target: str
    data: bytes
    ok: bool


def calls(trace: str) -> Iterator[Call]:
    """Yield the finished calls of a trace in the order in which they ended."""
    open_calls: dict[str, tuple[int, str, str]] = {}
    for place, line in enumerate(trace.splitlines()):
        match = LINE.match(line)
        if match is None:
            continue  # a signal, an exit
        begin, name, text = place, match["call"], match["rest"]
        if match["resumed"]:
            begin, name, head = open_calls.pop(match["thread"], (place, match["resumed"], ""))
            text = head + text
        elif text.endswith("<unfinished ...>"):
            open_calls[match["thread"]] = (place, name, text.removesuffix("<unfinished ...>"))
            continue
        descriptor = DESCRIPTOR.match(text)
        data = b"".join(piece.encode().decode("unicode_escape").encode("latin-1") for piece in STRING.findall(text))
        ok = re.search(r"\) += \d+( \(DELAYED\))?$", text) is not None
        yield Call(begin, place, name, descriptor["target"] if descriptor else "", data, ok)


def test_trace_parser_joins_unfinished_and_resumed_calls() -> None:
    trace = (
        '7 writev(5</d/a.log>, [{iov_base="x\\0\\17y", iov_len=4}], 1 <unfinished ...>\n8 fdatasync(5</d/a.log>) = 0\n'
    )
    first, second = calls(trace + "7 <... writev resumed>)     = 4\n")
    assert first == Call(1, 1, "fdatasync", "/d/a.log", b"", True)
    assert second == Call(0, 2, "writev", "/d/a.log", b"x\x00\x0fy", True)


def unsafe_confirms(trace: str, count: int) -> tuple[list[str], int]:
    """Return the violations and the last confirmed tag, for messages 1 to `count` with bodies `message-<number>;`."""
    written: dict[int, tuple[int, str]] = {}
    journaled: dict[int, int] = {}
    synced: dict[int, int] = {}
    wrong = []
    acked = 0
    directories: set[str] = set()
    for call in sorted(calls(trace), key=lambda call: call.end):
        if call.target.endswith(".log") and "write" in call.name:
            for number in re.findall(rb"message-(\d+);", call.data):
                written[int(number)] = (call.end, call.target)
        elif call.target.endswith("/journal") and "write" in call.name:
            for number in re.findall(rb"message-(\d+);", call.data):
                journaled[int(number)] = call.end
        elif call.target.endswith("/journal") and call.name == "fdatasync" and call.ok:
            for number, end in journaled.items():
                if end < call.begin:
                    synced.setdefault(number, call.end)
        elif call.name in ("fdatasync", "fsync", "syncfs") and call.ok:
            if call.name == "fsync":
                directories.add(call.target)
            for number, (place, path) in written.items():
                if number not in synced and place < call.begin and (call.name == "syncfs" or call.target == path):
                    synced[number] = call.end
        elif call.target.startswith(("TCP", "socket")):
            for match in re.finditer(re.escape(ACK) + rb"(.{8})([\x00\x01])\xce", call.data, re.DOTALL):
                (tag,) = struct.unpack(">Q", match[1])
                first = acked + 1 if match[2] == b"\x01" else tag
                for number in range(first, tag + 1):
                    if number not in written:
                        wrong.append(f"{number} was confirmed and never written")
                    elif synced.get(number, call.begin) >= call.begin:
                        wrong.append(
                            f"{number} was confirmed at {call.begin}, written at {written[number]}, not synced"
                        )
                    elif Path(written[number][1]).parent.as_posix() not in directories:
                        wrong.append(f"{number} was confirmed before the directory of its log was synced")
                acked = max(acked, tag)
    return wrong, acked if acked <= count else -1


def test_judge_finds_confirm_before_sync() -> None:
    """The same trace, with the sync before and after the confirm."""
    ack = r'5 write(9<TCP:[1->2]>, "\1\0\1\0\0\0\r\0<\0P\0\0\0\0\0\0\0\1\0\316", 21) = 21' + "\n"
    write = '5 writev(7</d/q/0.log>, [{iov_base="message-1;", iov_len=10}], 1) = 10\n'
    sync = "6 fdatasync(7</d/q/0.log>) = 0\n6 fsync(8</d/q>) = 0\n"
    assert unsafe_confirms(write + sync + ack, 1) == ([], 1)
    assert "not synced" in unsafe_confirms(write + ack + sync, 1)[0][0]
    assert "never written" in unsafe_confirms(sync + ack, 1)[0][0]
    frame = '6 pwrite64(9</d/journal>, "message-1;", 10, 4096) = 10\n'
    journal_sync = "6 fdatasync(9</d/journal>) = 0\n"
    directory = "6 fsync(8</d/q>) = 0\n"
    assert unsafe_confirms(write + directory + frame + journal_sync + ack, 1) == ([], 1)
    assert "not synced" in unsafe_confirms(write + directory + journal_sync + frame + ack, 1)[0][0]
    assert "directory" in unsafe_confirms(write + sync.splitlines()[0] + "\n" + ack, 1)[0][0]
    assert "not synced" in unsafe_confirms(write + sync.replace("= 0", "= -1 EIO (Input/output error)") + ack, 1)[0][0]


def attach(strace: str, trace: Path, pid: int, *, slow: bool) -> subprocess.Popen[str]:
    delay = ["-e", "inject=fdatasync:delay_enter=3000"] if slow else []
    command = [strace, "-f", "-yy", "-s", "70000", "-e", f"trace={CALLS}", "-o", str(trace), "-p", str(pid), *delay]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)


def is_used(journal: Path) -> bool:
    """Return whether the journal has a frame. The first commit to many logs creates it, in the background."""
    return journal.exists() and MAGIC in journal.read_bytes()[BLOCK_SIZE:-BLOCK_SIZE]


@pytest.mark.parametrize(
    ("queues", "pairs", "journal"),
    [
        pytest.param(1, 0, False, id="fdatasync"),
        pytest.param(20, 0, False, id="syncfs", marks=pytest.mark.slow),
        pytest.param(1, 300, False, id="pairs", marks=pytest.mark.slow),
        pytest.param(20, 0, True, id="journal", marks=pytest.mark.slow),
    ],
)
async def test_no_confirm_is_sent_before_log_sync(tmp_path: Path, queues: int, pairs: int, journal: bool) -> None:
    """Publish one by one, then many at once, to one log, and to so many logs that they are synced together.

    pairs: the number of pairs that follow. The second message of a pair is published some milliseconds after the first,
    while each sync takes 3 ms longer. A message that arrives in the turn in which a sync ends must wait for the next
    sync.
    """
    strace = shutil.which("strace")
    if strace is None:
        skip_or_fail("confirm after sync", "strace not installed")
        return
    settings = {"storage.segment_size_bytes": 1 << 16, "storage.journal": journal}
    broker = BrokerProcess(tmp_path / "data", settings=settings)
    trace = tmp_path / "trace"
    tracer: subprocess.Popen[str] | None = None
    count = 400
    try:
        await asyncio.to_thread(broker.start)
        tracer = attach(strace, trace, broker.pid, slow=pairs > 0)
        assert tracer.stderr is not None
        line = await asyncio.to_thread(tracer.stderr.readline)
        if "attached" not in line:
            skip_or_fail("confirm after sync", f"strace may not attach: {line.strip()}")
        link = await connect(broker.amqp_port)
        for number in range(queues):
            await link.declare_queue(f"q{number}")
        await link.confirm_select()
        confirmed = 0
        confirm_arrived = asyncio.Event()
        late: list[int] = []

        def confirm(tag: int, multiple: bool, acked: bool) -> None:
            nonlocal confirmed
            assert acked
            confirmed = tag if multiple else confirmed + 1
            confirm_arrived.set()

        link.on_confirm = confirm
        deadline_s = time.monotonic() + PATIENCE_S
        number = 0
        while number < count:
            number += 1
            body = b"message-%d;" % number + b"." * (number % 300)
            link.publish("", f"q{number % queues}", DURABLE, body)
            if number == count and journal and not is_used(broker.data_dir / "journal"):
                assert time.monotonic() < deadline_s, "no commit uses the journal"
                count += 100
            if number <= 50 or number % 25 == 0:
                while confirmed < number:
                    confirm_arrived.clear()
                    await asyncio.wait_for(confirm_arrived.wait(), 60)
        rng = random.Random(queues)
        for number in range(count + 1, count + 2 * pairs + 1):
            link.publish("", "q0", DURABLE, b"message-%d;" % number + b"." * 20_000)
            if number % 2:
                await asyncio.sleep(rng.uniform(0.002, 0.006))
            while number % 2 == 0 and confirmed < number:
                confirm_arrived.clear()
                try:
                    await asyncio.wait_for(confirm_arrived.wait(), PATIENCE_S)
                except TimeoutError:
                    late.append(number)  # the next message's confirm may include it
                    break
        count += 2 * pairs
        while confirmed < count:
            confirm_arrived.clear()
            await asyncio.wait_for(confirm_arrived.wait(), 60)
        link.close()
        await link.gone.wait()
    finally:
        # End the tracer first, by SIGINT, so that it detaches: a killed tracer would leave the broker stopped.
        if tracer is not None:
            tracer.send_signal(signal.SIGINT)
            await asyncio.to_thread(tracer.communicate, timeout=60)
        await asyncio.to_thread(broker.kill)
    text = trace.read_text(encoding="utf-8", errors="replace")
    wrong, acked = unsafe_confirms(text, count)
    assert not wrong, "\n".join(wrong[:10])
    assert not late, f"no confirm within {PATIENCE_S} s of {late}"
    assert acked == count, f"the trace shows confirms up to {acked}"
    if journal:
        assert re.search(r"fdatasync\(\d+<[^>]*/journal>", text), "no commit used the journal"
    elif queues > 1:
        assert "syncfs(" in text, "many logs but no syncfs: the test missed its case"
    syncs = len(re.findall(r"(?:fdatasync|syncfs)\(", text))
    print(f"\n{count} messages over {queues} queues: {syncs} syncs, at {time.strftime('%H:%M')}")
