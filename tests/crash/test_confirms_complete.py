"""Every publish on a confirm channel gets exactly one ack or nack, without a later publish.

First part: bursts of all sizes to durable queues over several connections, each burst awaited before the next. A
confirm that is missing, or that needs the next publish, fails the test.

Second part: publishes to all kinds of destinations: several queues, none, none with `mandatory`, a full queue with
reject-publish, and a queue that is deleted and declared again meanwhile.
"""

from __future__ import annotations

import asyncio
import random
import struct
from pathlib import Path

import pytest
from quickclient import Link, Message, connect, content, publish_prefix, shortstr

from amqpd.testing import BrokerProcess

DURABLE = b"\x10\x00\x02"
PATIENCE_S = 60.0


async def bursts(port: int, number: int, rounds: int) -> None:
    """Publish a burst and wait for its confirms, `rounds` times."""
    rng = random.Random(number)
    link = await connect(port)
    queue = f"bursts{number}"
    await link.declare_queue(queue)
    await link.confirm_select()
    confirmed = published = 0
    doubled: list[int] = []
    confirm_arrived = asyncio.Event()

    def confirm(tag: int, multiple: bool, acked: bool) -> None:
        nonlocal confirmed
        assert acked
        if tag <= confirmed or (not multiple and tag != confirmed + 1):
            doubled.append(tag)  # one queue, so acks arrive in order
        confirmed = tag
        confirm_arrived.set()

    link.on_confirm = confirm
    for burst in range(rounds):
        body = b"." * rng.choice([0, 10, 1000, 20_000, 100_000])
        for _ in range(rng.choice([1, 1, 2, 5, 30])):
            link.publish("", queue, DURABLE, body)
            published += 1
            if rng.random() < 0.3:
                await asyncio.sleep(rng.uniform(0.0, 0.004))
        try:
            async with asyncio.timeout(PATIENCE_S):
                while confirmed < published:
                    confirm_arrived.clear()
                    await confirm_arrived.wait()
        except TimeoutError:
            raise AssertionError(
                f"round {burst}: confirms up to {confirmed} of {published} after {PATIENCE_S} s"
            ) from None
    assert not doubled, f"confirmed twice or out of order: {doubled[:5]}"
    assert confirmed == published
    link.close()
    await link.gone.wait()


@pytest.mark.slow
async def test_every_burst_is_confirmed_without_later_publish(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "data", settings={"log.level": "error", "storage.segment_size_bytes": 4 << 20})
    try:
        await asyncio.to_thread(broker.start)
        await asyncio.gather(*(bursts(broker.amqp_port, number, 150) for number in range(4)))
    finally:
        await asyncio.to_thread(broker.kill)


REJECT_PUBLISH = shortstr("x-max-length") + b"I" + struct.pack(">i", 3) + shortstr("x-overflow")
REJECT_PUBLISH += b"S" + struct.pack(">I", 14) + b"reject-publish"
DESTINATIONS = ("durable", "transient", "everywhere", "nowhere", "nowhere, mandatory", "full", "comes and goes")


class Answers:
    """The confirms and returns that one channel received."""

    def __init__(self, link: Link) -> None:
        self.destination_of: dict[int, str] = {}
        self.acked: dict[int, bool] = {}
        self.returned: set[int] = set()
        self.wrong: list[str] = []
        self.news = asyncio.Event()
        self._lowest = 1
        link.on_confirm, link.on_return = self._confirm, self._return

    def _confirm(self, tag: int, multiple: bool, acked: bool) -> None:
        for number in range(self._lowest, tag + 1) if multiple else [tag]:
            if number not in self.acked:
                self.acked[number] = acked
            elif not multiple:
                self.wrong.append(f"{number} was answered twice")
            if number not in self.destination_of:
                self.wrong.append(f"{number} was answered and never published")
            elif self.destination_of[number] == "nowhere, mandatory" and number not in self.returned:
                self.wrong.append(f"{number} was confirmed before it was returned")
        while self._lowest in self.acked:
            self._lowest += 1
        self.news.set()

    def _return(self, message: Message) -> None:
        number = int(message.body.partition(b";")[0])
        if self.destination_of[number] != "nowhere, mandatory" or number in self.returned:
            self.wrong.append(f"{number} to {self.destination_of[number]} was returned")
        self.returned.add(number)


async def all_kinds(port: int, count: int, seed: int) -> None:
    """Publish to all kinds of destinations and check that each publish is answered once."""
    rng = random.Random(seed)
    link, other = await connect(port), await connect(port)
    for number in range(4):
        await link.declare_queue(f"{seed}.{number}")
        await link.bind(f"{seed}.{number}", "amq.fanout")
    await link.declare_queue(f"{seed}.transient", durable=False)
    await link.declare_queue(f"{seed}.full", table=struct.pack(">I", len(REJECT_PUBLISH)) + REJECT_PUBLISH)
    await link.declare_queue(f"{seed}.moving")
    await link.confirm_select()
    answers = Answers(link)
    prefixes = {
        "durable": publish_prefix("", f"{seed}.0"),
        "transient": publish_prefix("", f"{seed}.transient"),
        "everywhere": publish_prefix("amq.fanout", ""),
        "nowhere": publish_prefix("", f"{seed}.nobody"),
        "nowhere, mandatory": publish_prefix("", f"{seed}.nobody", mandatory=True),
        "full": publish_prefix("", f"{seed}.full"),
        "comes and goes": publish_prefix("", f"{seed}.moving"),
    }
    moving_exists = True
    while len(answers.destination_of) < count:
        for _ in range(rng.choice([1, 1, 10, 60])):
            number = len(answers.destination_of) + 1
            destination_of = answers.destination_of[number] = rng.choice(DESTINATIONS)
            body = b"%d;" % number + bytes(rng.choice([0, 100, 20_000]))
            link.write(prefixes[destination_of] + content(rng.choice([DURABLE, b"\x10\x00\x01"]), body))
        if rng.random() < 0.1:
            moving_exists = not moving_exists
            await (other.declare_queue(f"{seed}.moving") if moving_exists else other.delete_queue(f"{seed}.moving"))
        if rng.random() < 0.2:
            await link.writable()
            await asyncio.sleep(0)
    async with asyncio.timeout(PATIENCE_S * 4):
        while len(answers.acked) < len(answers.destination_of):
            answers.news.clear()
            await answers.news.wait()
    await asyncio.sleep(0.1)  # a second answer would arrive in this time
    assert not answers.wrong, answers.wrong[:5]
    refused = {answers.destination_of[number] for number, acked in answers.acked.items() if not acked}
    assert refused == {"full"}, f"nacked: {refused}"
    mandatory = {
        number for number, destination_of in answers.destination_of.items() if destination_of == "nowhere, mandatory"
    }
    assert answers.returned == mandatory
    for burst in (link, other):
        burst.close()
        await burst.gone.wait()


@pytest.mark.slow
async def test_nack_at_end_of_turn_is_not_covered_by_next_multiple_ack(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "data")
    try:
        await asyncio.to_thread(broker.start)
        link = await connect(broker.amqp_port)
        await link.declare_queue("full", table=struct.pack(">I", len(REJECT_PUBLISH)) + REJECT_PUBLISH)
        await link.declare_queue("q")
        await link.confirm_select()
        answers_received: list[tuple[int, bool, bool]] = []
        link.on_confirm = lambda *answer: answers_received.append(answer)
        accepted, refused = publish_prefix("", "q") + content(DURABLE, b"x"), publish_prefix("", "full")
        refused += content(DURABLE, b"x")
        link.write(refused * 3)
        async with asyncio.timeout(PATIENCE_S * 4):
            for turn, last in ((accepted + refused, 5), (refused, 6), (refused, 7), (accepted, 8)):
                link.write(turn)
                while not any(tag >= last for tag, _, _ in answers_received):  # noqa: ASYNC110  # one loop turn may bring several
                    await asyncio.sleep(0.01)
        await asyncio.sleep(0.3)  # a second answer would arrive in this time
        single = [tag for tag, multiple, _ in answers_received if not multiple]
        assert len(single) == len(set(single)), answers_received
        nacked = [tag for tag, _, acked in answers_received if not acked]
        assert nacked == [5, 6, 7] and answers_received[-1][::2] == (8, True), answers_received
        link.close()
    finally:
        await asyncio.to_thread(broker.kill)


@pytest.mark.slow
async def test_publish_to_any_destination_is_answered_once(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "data", settings={"log.level": "error", "storage.segment_size_bytes": 4 << 20})
    try:
        await asyncio.to_thread(broker.start)
        await asyncio.gather(*(all_kinds(broker.amqp_port, 3000, seed) for seed in range(3)))
        assert "Traceback" not in broker.stderr, broker.stderr
    finally:
        await asyncio.to_thread(broker.kill)
