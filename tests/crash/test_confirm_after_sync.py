"""No confirm leaves for the socket before the sync of the log that holds its message: read off the system calls.

strace attaches to the running broker (and the test skips, visibly, where it is missing or may not). Each message
carries a number that is its publish sequence too, so the trace tells which write holds it, which completed sync came
after that write, and which write to a socket carries its basic.ack.
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

from amqpd.testing import BrokerProcess

CALLS: Final = "write,writev,pwrite64,pwritev,pwritev2,sendto,sendmsg,sendmmsg,fdatasync,fsync,syncfs,sync_file_range"
LINE: Final = re.compile(r"^(?P<thread>\d+) +(?:<\.\.\. (?P<resumed>\w+) resumed>|(?P<call>\w+)\()(?P<rest>.*)$")
DESCRIPTOR: Final = re.compile(r"^\d+<(?P<what>[^>]*)>")
STRING: Final = re.compile(r'"((?:[^"\\]|\\.)*)"')
ACK: Final = b"\x00\x3c\x00\x50"
DURABLE: Final = b"\x10\x00\x02"
PATIENCE_S: Final = 60


class Call(NamedTuple):
    """begin, end: places in the trace. what: the descriptor's path or socket. data: what was written, if shown."""

    begin: int
    end: int
    name: str
    what: str
    data: bytes
    ok: bool


def calls(trace: str) -> Iterator[Call]:
    """The finished calls of a trace, in the order in which they ended."""
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
        yield Call(begin, place, name, descriptor["what"] if descriptor else "", data, ok)


def test_the_reading_of_a_trace() -> None:
    trace = (
        '7 writev(5</d/a.log>, [{iov_base="x\\0\\17y", iov_len=4}], 1 <unfinished ...>\n8 fdatasync(5</d/a.log>) = 0\n'
    )
    first, second = calls(trace + "7 <... writev resumed>)     = 4\n")
    assert first == Call(1, 1, "fdatasync", "/d/a.log", b"", True)
    assert second == Call(0, 2, "writev", "/d/a.log", b"x\x00\x0fy", True)


def unsafe_confirms(trace: str, count: int) -> tuple[list[str], int]:
    """(what is wrong, confirms seen) for messages 1 to `count`, whose bodies are `message-<number>;`."""
    written: dict[int, tuple[int, str]] = {}
    synced: dict[int, int] = {}
    wrong = []
    acked = 0
    directories: set[str] = set()
    for call in sorted(calls(trace), key=lambda call: call.end):
        if call.what.endswith(".log") and "write" in call.name:
            for number in re.findall(rb"message-(\d+);", call.data):
                written[int(number)] = (call.end, call.what)
        elif call.name in ("fdatasync", "fsync", "syncfs") and call.ok:
            if call.name == "fsync":
                directories.add(call.what)
            for number, (place, path) in written.items():
                if number not in synced and place < call.begin and (call.name == "syncfs" or call.what == path):
                    synced[number] = call.end
        elif call.what.startswith(("TCP", "socket")):
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


def test_a_confirm_before_its_sync_is_seen() -> None:
    """The judge itself: the same trace with the sync before and after the confirm."""
    ack = r'5 write(9<TCP:[1->2]>, "\1\0\1\0\0\0\r\0<\0P\0\0\0\0\0\0\0\1\0\316", 21) = 21' + "\n"
    write = '5 writev(7</d/q/0.log>, [{iov_base="message-1;", iov_len=10}], 1) = 10\n'
    sync = "6 fdatasync(7</d/q/0.log>) = 0\n6 fsync(8</d/q>) = 0\n"
    assert unsafe_confirms(write + sync + ack, 1) == ([], 1)
    assert "not synced" in unsafe_confirms(write + ack + sync, 1)[0][0]
    assert "never written" in unsafe_confirms(sync + ack, 1)[0][0]
    assert "directory" in unsafe_confirms(write + sync.splitlines()[0] + "\n" + ack, 1)[0][0]
    assert "not synced" in unsafe_confirms(write + sync.replace("= 0", "= -1 EIO (Input/output error)") + ack, 1)[0][0]


def attach(strace: str, trace: Path, pid: int, *, slow: bool) -> subprocess.Popen[str]:
    delay = ["-e", "inject=fdatasync:delay_enter=3000"] if slow else []
    command = [strace, "-f", "-yy", "-s", "70000", "-e", f"trace={CALLS}", "-o", str(trace), "-p", str(pid), *delay]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize(
    ("queues", "pairs"),
    [
        pytest.param(1, 0, id="fdatasync"),
        pytest.param(20, 0, id="syncfs", marks=pytest.mark.slow),
        pytest.param(1, 300, id="pairs", marks=pytest.mark.slow),
    ],
)
async def test_no_confirm_before_the_sync(tmp_path: Path, queues: int, pairs: int) -> None:
    """One after the other, then many at once; over one log, and over so many that they are synced together.

    pairs: then so many pairs, the second message some milliseconds after the first, while each sync takes 3 ms longer.
    A message that arrives in the very turn in which a sync ends belongs to the next group, and must wait for that one.
    """
    strace = shutil.which("strace")
    if strace is None:
        skip_or_fail("confirm after sync", "strace not installed")
        return
    broker = BrokerProcess(tmp_path / "data", settings={"storage.segment_size_bytes": 1 << 16})
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
        news = asyncio.Event()
        hanging: list[int] = []

        def confirm(tag: int, multiple: bool, acked: bool) -> None:
            nonlocal confirmed
            assert acked
            confirmed = tag if multiple else confirmed + 1
            news.set()

        link.on_confirm = confirm
        for number in range(1, count + 1):
            body = b"message-%d;" % number + b"." * (number % 300)
            link.publish("", f"q{number % queues}", DURABLE, body)
            if number <= 50 or number % 25 == 0:
                while confirmed < number:
                    news.clear()
                    await asyncio.wait_for(news.wait(), 60)
        choose = random.Random(queues)
        for number in range(count + 1, count + 2 * pairs + 1):
            link.publish("", "q0", DURABLE, b"message-%d;" % number + b"." * 20_000)
            if number % 2:
                await asyncio.sleep(choose.uniform(0.002, 0.006))
            while number % 2 == 0 and confirmed < number:
                news.clear()
                try:
                    await asyncio.wait_for(news.wait(), PATIENCE_S)
                except TimeoutError:
                    hanging.append(number)  # the next message may bring it
                    break
        count += 2 * pairs
        while confirmed < count:
            news.clear()
            await asyncio.wait_for(news.wait(), 60)
        link.close()
        await link.gone.wait()
    finally:
        # The tracer first, and by SIGINT: it lets go of the broker, which a killed one would leave stopped.
        if tracer is not None:
            tracer.send_signal(signal.SIGINT)
            await asyncio.to_thread(tracer.communicate, timeout=60)
        await asyncio.to_thread(broker.kill)
    text = trace.read_text(encoding="utf-8", errors="replace")
    wrong, acked = unsafe_confirms(text, count)
    assert not wrong, "\n".join(wrong[:10])
    assert not hanging, f"no confirm within {PATIENCE_S} s of {hanging}"
    assert acked == count, f"the trace shows confirms up to {acked}"
    if queues > 1:
        assert "syncfs(" in text, "many logs and no syncfs: this test does not test what it says"
    syncs = len(re.findall(r"(?:fdatasync|syncfs)\(", text))
    print(f"\n{count} messages over {queues} queues: {syncs} syncs, at {time.strftime('%H:%M')}")
