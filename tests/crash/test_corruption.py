"""Damaged data directories: no wrong bytes are delivered, only the damaged part is lost, and the broker starts.

The damage: torn tails, flipped bits, and missing, duplicated, empty or foreign files. The data directory is in memory;
the real recovery opens it.
"""

from __future__ import annotations

import os
import random

import pytest
from corruption_lab import QUEUE, Specimen, examine
from states_disk import Image

pytestmark = pytest.mark.usefixtures("quiet")


# -- torn tails


def check_torn_tails(length: int, step: int) -> None:
    """Tear the log at each of its last `length` bytes.

    At every `step`-th byte also put other bytes behind the tear: zeros, ones, the start of the log, and batches that
    were valid elsewhere.
    """
    specimen = Specimen(clean=False, segment_size_bytes=1 << 20, turns=length // 280, size=500, settle=False)
    (log,) = specimen.logs()
    data = specimen.data(log)
    # The other files as before any sync of this log: a torn tail is then not damage.
    image = {path: content for path, content in specimen.image.items() if "high-watermark" not in path}
    assert len(data) > length
    batches = specimen.batches(log)
    bodies = list(specimen.messages)
    fills = (bytes(length), b"\xff" * length, data[:length], data[batches[1][0] :])
    checked = 0
    for cut in range(len(data) - length, len(data)):
        complete = max([last + 1 for _, end, _, last in batches if end <= cut], default=0)
        tails = [b""]
        if cut % step == 0:
            tails.append(fills[cut // step % 4][: len(data) - cut])
        for tail in tails:
            checked += 1
            found = examine(specimen, {**image, log: data[:cut] + tail}, reopen=cut % 64 == 0)
            assert found.bodies == bodies[:complete], f"torn at {cut} of {len(data)}, {len(tail)} bytes behind"
            assert found.next_offset == complete and not found.degraded
    print(f"\n{checked} torn tails, 0 lost before them")


@pytest.mark.slow
def test_log_torn_at_every_byte_of_4_kib_keeps_complete_batches() -> None:
    check_torn_tails(4096, 4)


@pytest.mark.on_demand
@pytest.mark.timeout(1200)
def test_log_torn_at_every_byte_of_64_kib_keeps_complete_batches() -> None:
    check_torn_tails(65536, 16)


# -- flipped bits


def kind_of(path: str) -> str:
    name = path.rpartition("/")[2]
    return name.rpartition(".")[2] if name[:1].isdigit() else name


def check_flipped_bits(seed: int, count: int) -> None:
    """Flip `count` single bits, equally many in each kind of file."""
    rng = random.Random(seed)
    specimens = [
        Specimen(clean=clean, segment_size_bytes=6000, turns=45, size=900, seed=seed + clean) for clean in (False, True)
    ]
    tally: dict[str, list[int]] = {}
    for number in range(count):
        specimen = specimens[number % 2]
        kinds: dict[str, list[str]] = {}
        for path in specimen.files():
            if specimen.image[path]:
                kinds.setdefault(kind_of(path), []).append(path)
        kind = sorted(kinds)[number // 2 % len(kinds)]
        path = rng.choice(kinds[kind])
        bad = bytearray(specimen.data(path))
        position = rng.randrange(len(bad))
        bad[position] ^= 1 << rng.randrange(8)
        where = f"seed {seed}, flip {number}: byte {position} of {path}"
        try:
            found = examine(specimen, specimen.with_file(path, bytes(bad)), reopen=number % 8 < 2)
        except AssertionError as error:
            raise AssertionError(f"{where}: {error}") from error
        missing = [specimen.messages[body].offset for body in specimen.unsettled if body not in found.bodies]
        tally.setdefault(kind, [0, 0, 0])
        tally[kind][0] += 1
        if kind != "log":
            assert not missing, f"{where}: {missing} are missing"
            if kind != "settled":
                assert found.bodies == specimen.unsettled, f"{where}: settled messages are there again"
            continue
        (hit,) = [batch for batch in specimen.batches(path) if batch[0] <= position < batch[1]]
        assert all(hit[2] <= offset <= hit[3] for offset in missing), f"{where}: {missing} missing, damaged: {hit}"
        if missing:
            tally[kind][1] += 1
            assert found.degraded, f"{where}: {missing} are missing, and the queue is not degraded"
            assert all(any(a <= offset <= b for a, b in found.lost) for offset in missing), f"{where}: {found.lost}"
        assert found.next_offset >= max(each.offset for each in specimen.messages.values()), where
    print(f"\n{count} flips, 0 wrong bytes: " + ", ".join(f"{kind} {each[0]}" for kind, each in sorted(tally.items())))
    print(f"{tally['log'][1]} of {tally['log'][0]} flips in logs cost the damaged batch and nothing else")


@pytest.mark.slow
def test_flipped_bit_costs_at_most_its_batch_1_000_flips() -> None:
    check_flipped_bits(1, 1000)


@pytest.mark.ci_long
@pytest.mark.timeout(1200)
def test_flipped_bit_costs_at_most_its_batch_5_000_flips() -> None:
    check_flipped_bits(2, 5000)


@pytest.mark.slow
def test_flipped_bit_of_batch_length_costs_at_most_its_batch() -> None:
    """No checksum covers a batch's length, which says where the next batch starts."""
    for specimen in new_specimens():
        for path in specimen.logs()[::3]:
            for position, _, first, last in specimen.batches(path):
                for bit in range(32):
                    bad = bytearray(specimen.data(path))
                    bad[position + 8 + bit // 8] ^= 1 << bit % 8
                    found = examine(specimen, specimen.with_file(path, bytes(bad)), reopen=False)
                    missing_bodies = set(specimen.unsettled) - set(found.bodies)
                    missing = [specimen.messages[body].offset for body in missing_bodies]
                    where = f"bit {bit} of the length of {first} to {last}"
                    assert all(first <= offset <= last for offset in missing), f"{where}: {missing} missing"
                    assert found.degraded or not missing, where


@pytest.mark.on_demand
@pytest.mark.timeout(0)
def test_flipped_bit_costs_at_most_its_batch_many_flips() -> None:
    remaining = int(os.environ.get("TEST_CRASH_FLIPS", "100000"))
    seed = 1000
    while remaining > 0:
        check_flipped_bits(seed, min(remaining, 5000))
        remaining -= 5000
        seed += 10


# -- files


def new_specimens() -> list[Specimen]:
    return [Specimen(clean=clean, segment_size_bytes=6000, turns=45, size=900) for clean in (False, True)]


@pytest.mark.parametrize("damage", ["missing", "empty", "garbage", "shorter", "zeros"])
def test_damaged_file_loses_only_messages_of_a_damaged_log(damage: str) -> None:
    """A damaged log loses only its own messages and reports them as lost; any other damaged file loses none."""
    for specimen in new_specimens():
        logs = specimen.logs()
        for path in specimen.files():
            data = specimen.data(path)
            bad = {
                "missing": None,
                "empty": b"",
                "garbage": random.Random(7).randbytes(len(data)),
                "shorter": data[: len(data) * 2 // 3],
                "zeros": bytes(len(data)),
            }[damage]
            try:
                found = examine(specimen, specimen.with_file(path, bad))
            except AssertionError as error:
                raise AssertionError(f"{damage} {path}: {error}") from error
            missing = [specimen.messages[body].offset for body in specimen.unsettled if body not in found.bodies]
            if path not in logs:
                assert not missing, f"{damage} {path}: {missing}"
                continue
            batches = specimen.batches(path)
            assert all(batches[0][2] <= offset <= batches[-1][3] for offset in missing), f"{damage} {path}: {missing}"
            if missing:
                assert found.degraded, f"{damage} {path}: {missing} are missing, and the queue is not degraded"
                assert all(any(a <= each <= b for a, b in found.lost) for each in missing), f"{path}: {found.lost}"


def test_foreign_and_duplicate_files_are_ignored() -> None:
    for specimen in new_specimens():
        logs = specimen.logs()
        first = specimen.data(logs[0])
        middle = int(logs[1].rpartition("/")[2][:20])
        additions: list[Image] = [
            {f"{QUEUE}/core": b"x" * 100},
            {f"{QUEUE}/notes.txt": b"hello", f"{QUEUE}/lost+found": None},
            {f"{QUEUE}/0000000000000000000x.log": first},
            {f"{QUEUE}/00000000000000000000.log.bak": first},
            {f"{QUEUE}/00000000000000000000.deleted": b""},
            {f"{QUEUE}/00000000000000000001.log": first},  # the first segment again, within its own offsets
            {f"{QUEUE}/{middle + 1:020d}.log": specimen.data(logs[1])},
            {f"{QUEUE}/00000000000000900000.log": first},  # and again, far beyond the end
            {f"{QUEUE}/00000000000000900000.log": b""},
            {f"{QUEUE}/00000000000000900000.settled": b"\x00" * 64},
            {f"{QUEUE}/00000000000000900000.index": b"junk"},
            {f"{QUEUE}/00000000000000000000.log.swap": first},  # an editor's copy
            {f"{QUEUE}/00000000000000000000.log.swap": first[: len(first) // 2]},
            {f"{QUEUE}/{middle:020d}.log.swap": first},
            {f"{QUEUE}/{middle + 1:020d}.log.swap": specimen.data(logs[1])},
            {f"{QUEUE}/00000000000000000000.log.swap": b"junk" * 100},
            {f"{QUEUE}/00000000000000000000.log.swap": b""},
            {f"{QUEUE}/00000000000000900000.log.swap": b"junk" * 100},
            {logs[-1] + ".swap": specimen.data(logs[-1])[:200]},
            {f"{QUEUE}/000000.log.swap": first},
            {f"{QUEUE}/00000000000000000000.settled.swap": b"junk" * 100},
            {f"{QUEUE}/00000000000000000000.settled.swap": specimen.data(logs[1].replace(".log", ".settled"))},
            {f"{QUEUE}/high-watermark.swap": b"junk", f"{QUEUE}/recovery-point-checkpoint.swap": b"junk"},
            {"/data/vhosts/v/queues/foreign": None, "/data/vhosts/v/queues/foreign/file": b"1"},
            {"/data/vhosts/v/note": b"1"},
            {"/data/vhosts/note": b"1"},
            {"/data/vhosts/v/queues/note": b"1"},
            {"/data/spill": None, "/data/spill/old": None, "/data/spill/old/00000000000000000000.log": first},
        ]
        for extra in additions:
            name = ", ".join(extra)
            try:
                found = examine(specimen, {**specimen.image, **extra})
            except AssertionError as error:
                raise AssertionError(f"{name}: {error}") from error
            assert found.bodies == specimen.unsettled, name


def test_swapped_logs_lose_only_their_own_messages() -> None:
    """Valid batches in the wrong file do not count as messages of that file."""
    for specimen in new_specimens():
        one, other = specimen.logs()[:2]
        image = {**specimen.image, one: specimen.data(other), other: specimen.data(one)}
        found = examine(specimen, image)
        batches = specimen.batches(one) + specimen.batches(other)
        hit = {offset for batch in batches for offset in range(batch[2], batch[3] + 1)}
        missing = {specimen.messages[body].offset for body in specimen.unsettled if body not in found.bodies}
        assert missing <= hit and found.degraded
