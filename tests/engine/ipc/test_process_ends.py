"""Engines in their own process that do not start, die, or are closed."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap

import pytest
from support.engine_processes import Recorder, engine, request, run
from support.waiting import PATIENCE_S, runs, until

from penstock.config import EngineConfig
from penstock.engine.ipc.process import EngineProcess
from penstock.engine.ipc.spawn import EngineChild
from penstock.errors import ConfigError, EngineDeadError, WeightError
from penstock.processes.frames import HEADER


@pytest.mark.thinned(2)
@pytest.mark.parametrize(
    ("core", "error", "message"),
    [
        ("support.fake_core:load_fails", WeightError, "^layer 3 is missing; download"),
        (
            "support.fake_core:load_crashes",
            EngineDeadError,
            "ZeroDivisionError: a defect in a loader",
        ),
        (
            "support.fake_core:load_dies",
            EngineDeadError,
            "was ended by SIGKILL; if nobody killed it",
        ),
        ("support.fake_core:nothing", ConfigError, "cannot be imported"),
        ("no_such_module:load", ConfigError, "cannot be imported"),
        ("fake_core", ConfigError, "module:function"),
    ],
)
def test_a_failed_start_raises_the_cause(core: str, error: type[Exception], message: str) -> None:
    async def main() -> None:
        with pytest.raises(error, match=message) as caught:
            async with engine(core):
                raise AssertionError("it started")
        assert type(caught.value) is error

    run(main())


def test_a_start_that_hangs_is_given_up() -> None:
    async def main() -> None:
        child = EngineChild.spawn(EngineConfig(), "support.fake_core:load_hangs")
        process = await EngineProcess.connect(child, Recorder())
        with pytest.raises(EngineDeadError, match=r"not ready after 0\.3 s"):
            await process.ready(0.3)
        assert child.process.returncode == -signal.SIGKILL

    run(main())


def test_a_number_that_no_message_holds_is_refused_and_nothing_is_started() -> None:
    with pytest.raises(ConfigError, match="max_num_seqs: more than 64 bits"):
        EngineChild.spawn(EngineConfig(max_num_seqs=10**30), "support.fake_core:load")


@pytest.mark.parametrize(
    ("salt", "message"), [("crash", "RuntimeError: the fake core"), ("kill", "SIGKILL")]
)
def test_death_is_reported_once_with_its_cause(salt: str, message: str) -> None:
    async def main() -> None:
        async with engine() as (process, seen, _):
            process.add_request(request("r", [1], salt=salt))
            await seen.until(lambda: seen.deaths)
            assert message in str(seen.deaths[0])
            assert process.death is seen.deaths[0]
            with pytest.raises(EngineDeadError, match=message):
                process.add_request(request("s", [1]))
            with pytest.raises(EngineDeadError, match=message):
                await process.stats()
        assert len(seen.deaths) == 1

    run(main())


def test_a_query_that_waits_when_the_engine_dies_is_answered() -> None:
    async def main() -> None:
        async with engine(step_ms=200) as (process, seen, _):
            process.add_request(request("r", [1]))
            query = asyncio.ensure_future(process.stats())
            await asyncio.sleep(0)
            os.kill(process.pid, signal.SIGKILL)
            with pytest.raises(EngineDeadError, match="SIGKILL"):
                await query
            await seen.until(lambda: seen.deaths)

    run(main())


def test_garbage_on_the_socket_ends_the_engine_with_a_reason() -> None:
    async def main() -> None:
        async with engine() as (process, seen, _):
            assert process._transport is not None
            process._transport.write(HEADER.pack(4) + b"\xc1\xc1\xc1\xc1")
            await seen.until(lambda: seen.deaths)
            assert "no known message" in str(seen.deaths[0])

    run(main())


def test_close_ends_the_engine_in_order_and_ctrl_c_does_not() -> None:
    async def main() -> None:
        async with engine() as (process, seen, _):
            os.kill(process.pid, signal.SIGINT)
            await asyncio.sleep(0.05)
            assert (await process.stats()).running == 0
            await process.aclose(grace=PATIENCE_S)
            assert process._child.process.returncode == 0  # it was not killed
            assert str(process.death) == "the engine was closed"
            await process.aclose()
        assert len(seen.deaths) == 1

    run(main())


def test_the_end_collects_what_was_loaded(capfd: pytest.CaptureFixture[str]) -> None:
    """Or native modules would report its objects as leaks."""

    async def main() -> None:
        async with engine("support.fake_core:load_cycle") as (process, _, _):
            await process.aclose(grace=PATIENCE_S)
            assert process._child.process.returncode == 0

    run(main())
    assert "the core was collected" in capfd.readouterr().err


def test_the_engine_dies_with_its_parent() -> None:
    script = textwrap.dedent("""
        import asyncio, os, signal, sys
        from penstock.config import EngineConfig
        from penstock.engine.ipc.process import EngineProcess
        from penstock.engine.ipc.spawn import EngineChild
        from penstock.interface.messages import EngineRequest
        from penstock.sampling.params import SamplingParams

        class Silent:
            def located(self, path): pass
            def loading(self, now): pass
            def updated(self, updates): pass
            def refused(self, refused): pass
            def died(self, error): pass

        async def main():
            child = EngineChild.spawn(EngineConfig(seed=2000), "support.fake_core:load")
            process = await EngineProcess.connect(child, Silent())
            await process.ready()
            process.add_request(EngineRequest(
                request_id="r", prompt_token_ids=[1], params=SamplingParams()))
            await asyncio.sleep(0.1)
            print(process.pid, flush=True)
            os.kill(os.getpid(), signal.SIGKILL)  # while the engine is inside a step of 2 s

        asyncio.run(main())
    """)
    path = os.pathsep.join(entry for entry in sys.path if entry)
    parent = subprocess.run(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": path},
        timeout=PATIENCE_S,
        check=False,
    )
    assert parent.returncode == -signal.SIGKILL
    pid = int(parent.stdout)
    until(lambda: not runs(pid), PATIENCE_S, "the engine ends with its parent")


def test_an_idle_engine_waits_without_work() -> None:
    async def main() -> None:
        async with engine() as (process, _, _ready):
            before = (await process.stats()).steps
            spent = []
            # An engine that spins does so in every window; a fault-in or a sample of the kernel's
            # coarse clock hits one.
            for _ in range(5):
                ticks = _cpu_ticks(process.pid)
                await asyncio.sleep(0.3)
                spent.append(_cpu_ticks(process.pid) - ticks)
            assert (await process.stats()).steps == before
            assert min(spent) <= 2

    run(main())


def _cpu_ticks(pid: int) -> int:
    with open(f"/proc/{pid}/stat", encoding="ascii") as stat:
        fields = stat.read().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])
