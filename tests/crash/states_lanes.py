"""The walk on several processors.

Each lane is a process that takes the next seed, walks every workload with it and returns the states, which count once
over all lanes.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import traceback
from array import array
from collections.abc import Iterator
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from multiprocessing.sharedctypes import Synchronized
from typing import NamedTuple

from states_all import ALL, walk_through


class Walked(NamedTuple):
    """The result of one workload with one seed.

    new, new_doubles: keys of states new to the lane, see Search. failure: a violation with its traceback, or "".
    """

    seed: int
    name: str
    new: array[int]
    new_doubles: array[int]
    judged: int
    lives: int
    failure: str = ""


def walk_wide(seed: int, lanes: int, arguments: dict[str, float]) -> Iterator[Walked]:
    """Walk every workload with seed, seed + 1, ... until the caller stops. Keys are equal in all lanes."""
    context = multiprocessing.get_context("fork")  # a fork shares the seed of `hash`
    next_seed = context.Value("q", seed)
    readers: list[Connection] = []
    processes: list[BaseProcess] = []
    for _ in range(lanes):
        reader, writer = context.Pipe(duplex=False)
        process = context.Process(target=_lane, args=(next_seed, writer, arguments), daemon=True)
        process.start()
        writer.close()
        readers.append(reader)
        processes.append(process)
    try:
        while readers:
            for reader in wait(readers):
                assert isinstance(reader, Connection)
                try:
                    yield reader.recv()
                except EOFError:
                    raise AssertionError("a process of the walk has died") from None
    finally:
        for process in processes:
            process.kill()
            process.join()


def _lane(next_seed: Synchronized[int], writer: Connection, arguments: dict[str, float]) -> None:
    seen: set[int] = set()
    with contextlib.suppress(BrokenPipeError):
        while True:
            with next_seed.get_lock():
                seed = next_seed.value
                next_seed.value += 1
            for workload in ALL:
                try:
                    search = walk_through(workload, seed, seen, **arguments)
                except AssertionError:
                    nothing = array("q")
                    writer.send(Walked(seed, workload.name, nothing, nothing, 0, 0, traceback.format_exc()))
                    return
                writer.send(Walked(seed, workload.name, search.new, search.new_doubles, search.judged, search.lives))
