"""What the broker's threads do: `runtime_thread_stats` and `maybe_stuck`, each of which looks twice or oftener."""

from __future__ import annotations

import time
from datetime import datetime
from typing import Any, Final

from amqpd.cli.command import Command, Context
from amqpd.cli.errors import UsageError

GROUP: Final = "Monitoring, observability and health checks"
INTERVAL_S: Final = 5
INTERVAL_MAX_S: Final = 3600
ROUNDS: Final = 5
PAUSE_S: Final = 0.5
COLUMNS: Final = ("thread", "user", "system", "idle")


def _threads(context: Context) -> dict[int, dict[str, Any]]:
    return {each["id"]: each for each in context.client.get("/api/amqpd/threads")}


def runtime_thread_stats(context: Context) -> None:
    """Shares of the time in between, in percent; a thread that has come meanwhile is counted from its beginning."""
    interval_s = context.line.number("sample-interval") if "sample-interval" in context.line.given else INTERVAL_S
    if not 0 < interval_s <= INTERVAL_MAX_S:
        raise UsageError(f"Invalid options for this command:\n--sample-interval : {interval_s}")
    context.say(f"Will collect runtime thread stats on {context.node} for {interval_s} seconds...")
    before, began = _threads(context), time.monotonic()
    time.sleep(interval_s)
    after, took_s = _threads(context), time.monotonic() - began
    rows = []
    for number, each in after.items():
        first = before.get(number, {"user_s": 0.0, "system_s": 0.0})
        user, system = (
            round(100 * max(0.0, each[name] - first[name]) / took_s, 2) for name in ("user_s", "system_s")
        )
        rows.append([each["name"], user, system, round(max(0.0, 100 - user - system), 2)])
    context.show(COLUMNS, rows)


def maybe_stuck(context: Context) -> None:
    """rabbit: processes that stand at the same place in every round. Here threads, and not those that wait: a thread
    that waits sleeps, one that cannot go on runs at one place, or waits for a disk."""
    context.say(f"Asking node {context.node} to detect potentially stuck threads...")
    suspicious = {number: each for number, each in _threads(context).items() if each["state"] in ("R", "D")}
    _tell(context, f"There are {len(_threads(context))} threads.")
    for turn in range(ROUNDS, 0, -1):
        _tell(context, f"Investigated {len(suspicious)} threads this round, {int(turn * PAUSE_S * 1000)}ms to go.")
        time.sleep(PAUSE_S)
        now = _threads(context)
        suspicious = {
            number: each
            for number, each in suspicious.items()
            if number in now and now[number]["state"] == each["state"] and now[number]["at"] == each["at"] != []
            # Whoever answers was in the middle of answering each time.
            and not any("get_threads" in place for place in each["at"])
        }
    _tell(context, f"Found {len(suspicious)} suspicious threads.")
    for each in suspicious.values():
        what = "waits for a disk" if each["state"] == "D" else "runs"
        context.out.write(f"{each['name']} {what} at {' < '.join(each['at'])}\n")


def _tell(context: Context, text: str) -> None:
    context.out.write(f"{datetime.now().astimezone():%Y-%m-%d %H:%M:%S} {text}\n")
    context.out.flush()


COMMANDS: Final = (
    Command(
        "maybe_stuck",
        GROUP,
        "Detects threads of the broker that do not get on",
        maybe_stuck,
        "[--timeout <timeout>]",
        examples=(("maybe_stuck", "looks for two seconds and a half, and says where they stand"),),
        needs_app=False,
    ),
    Command(
        "runtime_thread_stats",
        GROUP,
        "Displays how busy each thread of the broker is",
        runtime_thread_stats,
        "[--sample-interval <seconds>] [--no-table-headers] [--timeout <timeout>]",
        options=("sample-interval", "no-table-headers"),
        examples=(("runtime_thread_stats --sample-interval 10", "in percent of ten seconds"),),
        needs_app=False,
    ),
)
