"""The order of password checks, the delay after a wrong password, and login statistics."""

from __future__ import annotations

import asyncio

import pytest

from amqpd.auth.login_throttle import (
    DELAY_MAX_S,
    FORGET_S,
    AttemptSource,
    FailureBackoff,
    LoginStats,
    PasswordCheckQueue,
    network,
)


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("", ""),
        ("10.1.2.3", "10.1.2.3"),
        ("::ffff:10.1.2.3", "10.1.2.3"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::9", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("no:address", "no:address"),
    ],
)
def test_addresses_are_grouped_by_network(address: str, expected: str) -> None:
    assert network(address) == expected


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_delay_doubles_per_user_and_address_and_is_forgotten() -> None:
    clock = Clock()
    failures = FailureBackoff(clock)
    delays = [failures.record_failure("10.0.0.1", "anna") for _ in range(8)]
    assert delays == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 3.2, DELAY_MAX_S, DELAY_MAX_S])
    assert (
        failures.record_failure("10.0.0.1", "bert") == failures.record_failure("10.0.0.2", "anna") == pytest.approx(0.1)
    )
    clock.now += FORGET_S
    assert failures.record_failure("10.0.0.1", "anna") == pytest.approx(0.1)
    assert [failures.record_failure("x", "y") for _ in range(5000)][-1] == DELAY_MAX_S


def test_failure_table_is_bounded() -> None:
    failures = FailureBackoff(Clock(), entries_max=100)
    failures.record_failure("10.0.0.1", "anna")
    for number in range(99):
        failures.record_failure("10.0.0.2", f"{number}")
    assert failures.record_failure("10.0.0.1", "anna") == pytest.approx(0.2)  # this entry is the newest now
    for number in range(99):
        failures.record_failure("10.0.0.3", f"{number}" * 100_000)
    assert len(failures) <= 100
    assert failures.record_failure("10.0.0.1", "anna") == pytest.approx(0.4)
    assert sum(len(user) for _, user in failures._entries) < 100 * 256


async def test_checks_alternate_between_addresses_then_users() -> None:
    queue = PasswordCheckQueue(1)
    await queue.acquire("", "")
    order: list[str] = []

    async def check(address: str, user: str) -> None:
        await queue.acquire(address, user)
        order.append(f"{address}-{user}")
        queue.release()

    sources = [("1", "a"), ("1", "a"), ("1", "a"), ("1", "b"), ("2", "a"), ("2", "a"), ("3", "c")]
    tasks = [asyncio.ensure_future(check(*each)) for each in sources]
    await asyncio.sleep(0)
    queue.release()
    await asyncio.gather(*tasks)
    assert order == ["1-a", "2-a", "3-c", "1-b", "2-a", "1-a", "1-a"]
    await asyncio.wait_for(queue.acquire("", ""), 30)  # the queue is free again


async def test_check_cancelled_when_its_turn_comes_passes_the_turn_on() -> None:
    queue = PasswordCheckQueue(1)
    await queue.acquire("", "")
    first = asyncio.ensure_future(queue.acquire("1", "a"))
    second = asyncio.ensure_future(queue.acquire("2", "a"))
    await asyncio.sleep(0)
    queue.release()
    first.cancel()
    await asyncio.wait_for(second, 30)
    with pytest.raises(asyncio.CancelledError):
        await first


async def test_turn_is_not_lost_to_a_check_cancelled_just_before() -> None:
    queue = PasswordCheckQueue(1)
    await queue.acquire("", "")
    left = [asyncio.ensure_future(queue.acquire(*each)) for each in (("1", "a"), ("1", "a"), ("1", "b"))]
    waits = asyncio.ensure_future(queue.acquire("2", "a"))
    await asyncio.sleep(0)
    for each in left:
        each.cancel()  # its coroutine has not run when the turn ends
    queue.release()
    await asyncio.wait_for(waits, 30)
    assert all(isinstance(each, asyncio.CancelledError) for each in await asyncio.gather(*left, return_exceptions=True))
    queue.release()
    await asyncio.wait_for(queue.acquire("", ""), 30)  # the queue is free again


def test_logins_are_counted_by_protocol_and_optionally_by_source() -> None:
    attempts = LoginStats(sources_max=2)
    attempts.count_login("amqp091", "10.0.0.1", "anna", True)
    assert (attempts.by_protocol, attempts.by_source) == ({"amqp091": [1, 0]}, {})
    attempts.track_sources = True
    attempts.count_login("amqp091", "10.0.0.1", "anna", False)
    attempts.count_login("http", "10.0.0.1", "x" * 1000, False)
    attempts.count_login("http", "10.0.0.2", "anna", True)
    attempts.count_login("http", "10.0.0.2", "anna", True)
    assert attempts.by_protocol == {"amqp091": [1, 1], "http": [2, 1]}
    assert attempts.by_source == {
        AttemptSource("10.0.0.1", "x" * 255, "http"): [0, 1],
        AttemptSource("10.0.0.2", "anna", "http"): [2, 0],
    }, "the table of sources drops its oldest entry"
    attempts.reset(sources_only=True)
    assert (attempts.by_protocol["http"], attempts.by_source) == ([2, 1], {})
    attempts.reset()
    assert attempts.by_protocol == {}
