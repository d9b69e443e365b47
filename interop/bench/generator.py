"""The load generator: amqpload.c, compiled on first use and run once per measurement; and echo.c, without a broker.

A run answers with one JSON object (see `answer` in amqpload.c). This module adds the load of the rest of the machine:
`other_cores` (neither broker nor generator) and `steal_cores`, so that a disturbed figure is visible.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
PROGRAM, ECHO = "amqpload", "echo"
RUN_TIMEOUT_S = 180.0

Result = dict[str, float]


class RunFailed(Exception):
    """A measurement gave no figure; the text is the generator's."""


def build(directory: Path) -> Path:
    """Compile generator and echo into `directory`; return the generator. Raises: RunFailed without a C compiler."""
    compiler = os.environ.get("CC", "cc")
    for name in (PROGRAM, ECHO):
        command = [compiler, "-O2", "-Wall", "-o", directory / name, HERE / f"{name}.c"]
        try:
            subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
        except FileNotFoundError:
            raise RunFailed(f"no C compiler ({compiler}); on Debian: apt install gcc") from None
        except subprocess.CalledProcessError as error:
            raise RunFailed(f"{name}.c does not compile: {error.stderr}") from None
    return directory / PROGRAM


def echo(program: Path, seconds: float, warm_s: float, messages_per_s: int) -> Result:
    """Measure the latency of the machine itself. program: the generator; echo is beside it. Raises: RunFailed."""
    command = [program.with_name(ECHO), f"{seconds}", f"{warm_s}", f"{messages_per_s}"]
    try:
        done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=seconds + warm_s + 30)
    except subprocess.CalledProcessError as error:
        raise RunFailed(f"echo: {error.stderr.strip()}") from None
    except subprocess.TimeoutExpired:
        raise RunFailed("echo has not ended") from None
    found: Result = json.loads(done.stdout)
    return found


def machine_busy() -> tuple[float, float]:
    """Return CPU seconds since boot: busy (all cores), and stolen by the hypervisor."""
    fields = [int(word) for word in Path("/proc/stat").read_text("ascii").split("\n", 1)[0].split()[1:9]]
    ticks = os.sysconf("SC_CLK_TCK")
    return (sum(fields) - fields[3] - fields[4]) / ticks, fields[7] / ticks


def run(
    program: Path, host: str, port: int, pid: int, options: Sequence[str], timeout_s: float = RUN_TIMEOUT_S
) -> Result:
    """Run one measurement. pid: the broker's, 0 if it is not on this machine. Raises: RunFailed."""
    command = [str(program), "--host", host, "--port", str(port), "--pid", str(pid), *options]
    busy, stolen = machine_busy()
    began = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        out, err = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        raise RunFailed(f"not ended after {timeout_s:.0f} s") from None
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    took = time.monotonic() - began
    if not out.strip():
        raise RunFailed(err.strip() or f"exit code {process.returncode}")
    try:
        answer = json.loads(out)
    except ValueError:
        raise RunFailed(f"no answer but {out[:200]!r}; {err.strip()}") from None
    del answer["name"]
    result: Result = {key: float(value) for key, value in answer.items()}
    if result.get("wrong"):
        raise RunFailed(
            f"{result['wrong']:.0f} of {result['checked']:.0f} deliveries were wrong (tag, order, header or body)"
        )
    if result["nacks"]:
        raise RunFailed(f"the broker refused publishes: {result['nacks']:.0f} basic.nack")
    if not result["messages"]:
        raise RunFailed("no message came through while it was measured")
    now_busy, now_stolen = machine_busy()
    cores = result["broker_cores"] + result.get("beside_cores", 0.0) + result["generator_cores"]
    ours = cores * result["seconds"]
    result["other_cores"] = round(max(0.0, now_busy - busy - ours) / took, 2)
    result["steal_cores"] = round((now_stolen - stolen) / took, 2)
    return result
