"""Sends every case to a server, one after the other, with plain chats beside it.

What must hold: no process ends, no answer is a 5xx, and a plain chat takes at most ``MOST_RATIO``
times as long as when nothing else is asked.
"""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from statistics import median

import msgspec

from hostile import bodies, files, grammars, sockets, templates
from hostile.case import Case, posted
from penstock import demo_model_path
from service.process import HOST, Served, environment, serving

PATIENCE_S = 30.0
"""Seconds after which the client of a case hangs up."""
LAST_WORDS_S = 1.0
"""Seconds after an answer for the server to close the connection or to answer once more."""
LOAD_S = 60.0
MOST_RATIO = 3.0
NUM_QUIET = 7
NUM_BESIDE = 3
"""Plain chats at least that are sent while a case is answered, or right after."""
_STATUS = re.compile(rb"^HTTP/1\.1 (\d{3}) ", re.MULTILINE)
GROUPS = ("grammars", "bodies", "sockets", "templates", "files")


class Outcome(msgspec.Struct, frozen=True):
    name: str
    status: int | None
    """None where the connection was closed without an answer; of files, the exit code."""
    seconds: float
    ratio: float
    """Median of the plain chats beside it, over the median of those right before."""
    worst_ratio: float
    trouble: str | None


class Group(msgspec.Struct, frozen=True):
    name: str
    cases: int
    quiet_ms: float
    """Median of plain chats between the cases."""
    median_ratio: float
    highest_ratio: float
    troubles: list[Outcome]


class Attack(msgspec.Struct, frozen=True):
    groups: list[Group]
    ok: bool


def measure(names: Iterable[str]) -> Attack:
    groups = [_files() if name == "files" else _served(name) for name in names]
    return Attack(groups, not any(group.troubles for group in groups))


def _served(name: str) -> Group:
    if name == "templates":
        parts = []
        with tempfile.TemporaryDirectory() as scratch:
            for bomb, text in templates.BOMBS.items():
                folder = Path(scratch) / bomb
                templates.checkpoint(demo_model_path(), folder, text)
                parts.append(_against(bomb, [_bomb(bomb)], str(folder)))
        return Group(
            name,
            len(parts),
            median(part.quiet_ms for part in parts),
            median(part.median_ratio for part in parts),
            max(part.highest_ratio for part in parts),
            [trouble for part in parts for trouble in part.troubles],
        )
    make = {"grammars": grammars.cases, "bodies": bodies.cases, "sockets": sockets.cases}[name]
    return _against(name, list(make("demo")))


def _against(name: str, cases: list[Case], *model: str) -> Group:
    options = [*model, "--served-model-name", "demo", "--no-access-log"]
    with tempfile.TemporaryFile() as log, serving(options, log) as served:
        return asyncio.run(_group(name, served, cases))


async def _group(name: str, served: Served, cases: list[Case]) -> Group:
    await _plain(served.port)
    engine, restarts = served.engine_pid, served.status()["engine"]["restarts"]
    outcomes: list[Outcome] = []
    quiet: list[float] = []
    for case in cases:
        # Anew for each, since other work of the machine comes and goes.
        quiet.append(median([await _plain(served.port) for _ in range(NUM_QUIET)]))
        outcomes.append(await _one(served, case, quiet[-1]))
        print(f"{name}: {outcomes[-1]}", file=sys.stderr, flush=True)
        if served.process.poll() is not None:
            break
        status = served.status()["engine"]
        if (status["pid"], status["restarts"]) != (engine, restarts):
            outcomes[-1] = msgspec.structs.replace(
                outcomes[-1], trouble="the server or its engine was restarted"
            )
            engine, restarts = status["pid"], status["restarts"]
    troubles = [outcome for outcome in outcomes if outcome.trouble is not None]
    return Group(
        name,
        len(outcomes),
        round(median(quiet) * 1000, 2),
        median(outcome.ratio for outcome in outcomes),
        max(outcome.ratio for outcome in outcomes),
        troubles,
    )


async def _one(served: Served, case: Case, quiet: float) -> Outcome:
    began = time.monotonic()
    asked = asyncio.ensure_future(_send(served.port, case))
    beside: list[float] = []
    trouble = None
    try:
        while len(beside) < NUM_BESIDE or not asked.done():
            beside.append(await _plain(served.port))
    except (OSError, EOFError, ValueError, TimeoutError) as error:
        trouble = f"a plain chat beside it failed: {error!r}"
    status = await asked
    seconds = time.monotonic() - began
    ratio = median(beside) / quiet if beside else 0.0
    if status is not None and status >= 500:
        trouble = f"status {status}"
    elif served.process.poll() is not None:
        trouble = "the server ended"
    elif trouble is None and ratio > MOST_RATIO:
        trouble = f"plain chats took {ratio:.1f} times as long"
    worst = max(beside, default=0.0) / quiet
    return Outcome(case.name, status, round(seconds, 3), round(ratio, 2), round(worst, 2), trouble)


async def _send(port: int, case: Case) -> int | None:
    """The status of the last answer to it, None if there is none."""
    reader, writer = await asyncio.open_connection(HOST, port)
    status = None

    async def write() -> None:
        writer.write(case.data)
        await writer.drain()
        if case.closes_early:
            writer.write_eof()

    writing = asyncio.ensure_future(write())
    try:
        async with asyncio.timeout(PATIENCE_S) as limit:
            while data := await reader.read(1 << 16):
                if found := _STATUS.findall(data):
                    status = int(found[-1])
                    limit.reschedule(asyncio.get_running_loop().time() + LAST_WORDS_S)
    except (TimeoutError, OSError):
        pass
    finally:
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)
        writer.transport.abort()
    return status


async def _plain(port: int) -> float:
    """The time that a short chat takes. Raises ValueError if it is not answered."""
    began = time.monotonic()
    messages = [{"role": "user", "content": "add two numbers"}]
    body = {"model": "demo", "messages": messages, "max_tokens": 16, "temperature": 0}
    case = posted("plain", "/v1/chat/completions", body)
    async with asyncio.timeout(PATIENCE_S):
        reader, writer = await asyncio.open_connection(HOST, port)
        try:
            writer.write(case.data)
            answer = await reader.read()
        finally:
            writer.transport.abort()
    if not answer.startswith(b"HTTP/1.1 200"):
        raise ValueError(f"a plain chat was answered {answer[:200]!r}")
    return time.monotonic() - began


def _bomb(name: str) -> Case:
    body = {"model": "demo", "messages": [{"role": "user", "content": "bomb"}], "max_tokens": 1}
    return posted(name, "/v1/chat/completions", body)


def _files() -> Group:
    outcomes = []
    with tempfile.TemporaryDirectory() as scratch:
        for number, (name, harm) in enumerate(files.breakages()):
            folder = Path(scratch) / str(number)
            files.broken(demo_model_path(), folder, harm)
            outcomes.append(_load(name, folder))
            print(f"files: {outcomes[-1]}", file=sys.stderr, flush=True)
    troubles = [outcome for outcome in outcomes if outcome.trouble is not None]
    return Group("files", len(outcomes), 0.0, 0.0, 0.0, troubles)


def _load(name: str, folder: Path) -> Outcome:
    """Generate with it: an error of one line that names the cause, soon, and nothing else."""
    command = [sys.executable, "-m", "penstock", "generate", str(folder), "-p", "a"]
    began = time.monotonic()
    try:
        done = subprocess.run(
            [*command, "--max-tokens", "1"],
            capture_output=True,
            text=True,
            env=environment(),
            timeout=LOAD_S,
        )
        trouble = fault(done)
        status = done.returncode
    except subprocess.TimeoutExpired:
        status, trouble = None, f"it was not over after {LOAD_S:g} s"
    return Outcome(name, status, round(time.monotonic() - began, 3), 0.0, 0.0, trouble)


def fault(done: subprocess.CompletedProcess[str]) -> str | None:
    """Why a command did not end as one should that was given a broken checkpoint."""
    if done.returncode < 0:
        return f"it died by signal {-done.returncode}"
    if "Traceback" in done.stderr:
        return f"a traceback: {done.stderr.strip().splitlines()[-1]}"
    if done.returncode != 0 and len(done.stderr.strip().splitlines()) != 1:
        return f"not an error of one line: {done.stderr[:300]!r}"
    return None
