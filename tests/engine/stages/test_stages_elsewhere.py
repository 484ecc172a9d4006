"""Stages that wait for their engine on a port, as on another host."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.bitwise import Requests, prompt, run
from support.checkpoints import tiny_checkpoint
from support.needs import needs_native
from support.tiny_plans import Chunk, step_of, tokens_of
from support.waiting import PATIENCE_S
from support.waiting_stage import waiting

from penstock import LLM, SamplingParams
from penstock.cli.main import main
from penstock.engine.ranks.wire import Failed
from penstock.engine.stages import listening, places, serving
from penstock.engine.stages.executor import ProfilingStages, StagedExecutor
from penstock.engine.stages.wire import FROM_STAGE, FeedStage, JoinPipeline, Rows, engine_party
from penstock.errors import ConfigError, EngineDeadError, ModelError
from penstock.peers.address import Address
from penstock.peers.channel import EndedError
from penstock.peers.sockets import connect

pytestmark = pytest.mark.slow

REQUESTS = Requests.product(
    [prompt(seed, length, 200) for seed, length in enumerate((1, 33, 70))],
    SamplingParams(temperature=0, max_tokens=8, ignore_eos=True, logprobs=3),
    SamplingParams(temperature=0.9, seed=7, max_tokens=8, ignore_eos=True, logprobs=3),
)
SECRET = b"0123456789abcdef"


@pytest.mark.parametrize(
    ("engine", "stage", "ranks"),
    [
        pytest.param("cpu", None, 1, marks=needs_native),
        pytest.param("cpu", None, 2, marks=[needs_native, pytest.mark.slow]),
        pytest.param("cpu", "reference", 1, marks=needs_native),
        pytest.param("cpu", "reference", 2, marks=[needs_native, pytest.mark.slow]),
        ("reference", "reference", 1),
    ],
)
def test_bits_are_those_of_one_process(engine: str, stage: Any, ranks: int) -> None:
    """A stage on another backend leaves the tokens of this model as they are, if not all bits; each
    stage may be shared by ranks, on its host."""
    folder = str(tiny_checkpoint("qwen3"))
    with LLM(model=folder, backend=engine, artifact=False) as one:
        expected = REQUESTS.together(one)
    with waiting(folder, backend=stage) as there:
        for _ in range(2):  # one engine after the other
            options: dict[str, Any] = {"pipeline_stages": there.address, "artifact": False}
            options |= {"tensor_parallel": ranks}
            with LLM(model=folder, backend=engine, **options) as llm:
                got = REQUESTS.together(llm)
                llm.check_integrity()
            if stage == engine or stage is None:
                assert got == expected
            else:
                tokens = [[each[0] for each in bits] for bits in got]
                assert tokens == [[each[0] for each in bits] for bits in expected]


def feeding(llm: LLM) -> set[int]:
    """The stages that hand on to the next one directly."""
    executor = llm._core._core._executor  # type: ignore[attr-defined]
    assert isinstance(executor, StagedExecutor)
    return executor.links.flights.feeding


@pytest.mark.slow
def test_several_stages_here_and_there() -> None:
    """Those elsewhere hand on to each other, and the last of them to the engine's host."""
    folder = str(tiny_checkpoint("qwen3", num_hidden_layers=4))
    with LLM(model=folder, backend="reference") as one:
        expected = REQUESTS.together(one)
    with waiting(folder) as first, waiting(folder) as second:
        both = f"{first.address},{second.address}"
        for addresses, count, fed in ((both, 3, {0}), (both, 4, {0}), (first.address, 3, set())):
            options: dict[str, Any] = {"pipeline_stages": addresses, "pipeline_parallel": count}
            with LLM(model=folder, backend="reference", **options) as llm:
                assert REQUESTS.together(llm) == expected
                assert feeding(llm) == fed
                llm.check_integrity()


def test_stages_that_do_not_reach_each_other(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What is handed on goes through the engine's host, as where addresses are those of tunnels."""
    reach, tried = serving.reach_next, list[str]()

    def astray(join: JoinPipeline, secret: bytes) -> Any:
        tried.append(str(join.next))
        return reach(msgspec.structs.replace(join, next=Address.parse(first.address)), secret)

    monkeypatch.setattr(serving, "reach_next", astray)
    with LLM(backend="reference") as one:
        expected = REQUESTS.together(one)
    with (
        waiting() as first,
        waiting() as second,
        engine(f"{first.address},{second.address}") as llm,
    ):
        assert REQUESTS.together(llm) == expected
        assert feeding(llm) == set()
    assert tried == [second.address]
    message = rf"stage 0: it does not reach stage 1 at {second.address} \(it is stage 0, not 1\);"
    assert re.search(message, caplog.text)


def test_who_may_feed_a_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listening, "HANDSHAKE_S", 0.2)
    with waiting(secret=SECRET) as there:

        def feed(message: Any, secret: bytes = SECRET) -> Any:
            sock = connect(Address.parse(there.address), PATIENCE_S)
            channel = engine_party(secret).greet(sock, FROM_STAGE, connected=True)
            channel.set_deadline(PATIENCE_S)
            channel.send(message)
            try:
                return channel.receive().message
            except EndedError:
                return None
            finally:
                channel.close()

        assert feed(FeedStage(b"session", 1)) == Failed("ConfigError", "it is of another pipeline")
        assert feed(Rows(0)) is None
        there.until_said("is refused: a Rows message came out of turn")
        with pytest.raises(ConfigError, match="another secret"):
            feed(FeedStage(b"session", 1), SECRET[::-1])


@pytest.mark.parametrize("victim", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_stage_of_a_chain_that_is_killed_is_named(victim: int) -> None:
    """Its neighbour notices as well, and the cause is told."""
    with started() as first, started() as second:
        stages = (first, second)
        with engine(",".join(stage.address for stage in stages)) as llm:
            assert feeding(llm) == {0}
            stream = llm.stream(
                [{"prompt_token_ids": prompt(1, 5, 200)}],
                SamplingParams(max_tokens=200, ignore_eos=True),
            )
            next(stream)
            stages[victim].process.kill()
            message = rf"^stage {victim} \({stages[victim].address}\) has ended the connection; see"
            with pytest.raises(EngineDeadError, match=message):
                for _ in stream:
                    pass


def test_a_connection_between_stages_that_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "_GRACE_S", 0.2)
    with waiting() as first, waiting() as second:
        with engine(f"{first.address},{second.address}") as llm:
            feed = second.server._feed
            assert feed is not None
            feed.shutdown()
            message = r"stage (0 hands nothing on|1 takes nothing in), as this one sees it: "
            with pytest.raises(EngineDeadError, match=message):
                run(llm, [prompt(1, 5, 200)], SamplingParams(max_tokens=20, ignore_eos=True))
        for there in (first, second):  # and they wait for the next
            there.until_said("has left")
        with engine(f"{first.address},{second.address}") as llm:
            run(llm, [prompt(1, 5, 200)], SamplingParams(max_tokens=2))


def engine(address: str, **options: Any) -> LLM:
    return LLM(**{"backend": "reference", "pipeline_stages": address, **options})


def test_a_secret_on_both_sides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PENSTOCK_PIPELINE_SECRET", raising=False)
    file = tmp_path / "secret"
    file.write_bytes(SECRET)
    file.chmod(0o600)
    with waiting(secret=SECRET) as there:
        with engine(there.address, pipeline_secret_file=str(file)) as llm:
            run(llm, [prompt(1, 5, 200)], SamplingParams(max_tokens=2))
        with pytest.raises(ConfigError, match=r"^stage 0 \(.*\): the stage has a secret and the"):
            engine(there.address)
        file.write_bytes(SECRET[::-1])
        with pytest.raises(ConfigError, match="the engine has another secret than the stage"):
            engine(there.address, pipeline_secret_file=str(file))


def test_another_model_is_refused_by_name(tmp_path: Path) -> None:
    ours, theirs = (str(tiny_checkpoint("qwen3", seed=seed)) for seed in (1, 2))
    with waiting(theirs) as there:
        message = r"^stage 0 \(.*\): it has another model .* since the weight files \(\w+, and \w+ "
        with pytest.raises(ConfigError, match=message):
            engine(there.address, model=ours)
        with engine(there.address, model=theirs) as llm:  # and it still waits
            run(llm, [prompt(1, 5, 200)], SamplingParams(max_tokens=2))
    message = r"^stage 0 \(.*\): there is no folder .*nowhere"
    nowhere = str(tmp_path / "nowhere")
    with waiting(nowhere) as there, pytest.raises(ModelError, match=message):
        engine(there.address, model=ours)


def test_the_next_engine_waits_for_the_one_before_to_be_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As where a server is started again at once, and the stage puts its model away meanwhile."""
    serve = listening.serve_engine

    def leave_slowly(*args: Any) -> None:
        serve(*args)
        time.sleep(0.5)

    monkeypatch.setattr(listening, "serve_engine", leave_slowly)
    with waiting() as there:
        for _ in range(2):
            with engine(there.address) as llm:
                run(llm, [prompt(1, 5, 200)], SamplingParams(max_tokens=2))


def test_a_second_engine_is_told_that_the_stage_is_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listening, "_LEAVING_S", 0.2)
    with waiting() as there, engine(there.address) as llm:
        with pytest.raises(ConfigError, match="it serves another engine; end that, or start"):
            engine(there.address)
        run(llm, [prompt(1, 5, 200)], SamplingParams(max_tokens=2))


def test_nobody_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "CONNECT_S", 0.3)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        message = rf"^stage 0 \(127.0.0.1:{port}\): it cannot be reached: .* start it there with 'p"
        with pytest.raises(EngineDeadError, match=message):
            engine(f"127.0.0.1:{port}")


@pytest.mark.parametrize("answer", [b"HTTP/1.1 400 Bad Request\r\nServer: none\r\n\r\n", b""])
def test_somebody_else_there(answer: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            sock, _ = listener.accept()
            with sock:
                sock.recv(1000)
                sock.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        port = listener.getsockname()[1]
        with pytest.raises(EngineDeadError, match="is 'penstock stage' what listens there"):
            engine(f"127.0.0.1:{port}")
        thread.join()


def test_an_engine_that_is_killed_leaves_the_stage_to_the_next() -> None:
    with waiting() as there:
        code = (
            "import os, signal; from penstock import LLM; "
            f"llm = LLM(backend='reference', pipeline_stages='{there.address}'); "
            "os.kill(os.getpid(), signal.SIGKILL)"
        )
        killed = subprocess.run(
            [sys.executable, "-c", code],
            timeout=2 * PATIENCE_S,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        assert killed.returncode == -signal.SIGKILL
        there.until_said("has left")
        with engine(there.address) as llm:
            run(llm, [prompt(1, 5, 200)], SamplingParams(max_tokens=2))


@dataclass(frozen=True)
class Started:
    """A stage in a process of its own."""

    process: subprocess.Popen[str]
    address: str


@contextlib.contextmanager
def started() -> Iterator[Started]:
    with subprocess.Popen(
        [sys.executable, "-m", "penstock", "stage", "--port", "0", "--threads", "1"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    ) as process:
        assert process.stdout is not None
        yield Started(process, process.stdout.readline().split()[-1])
        process.kill()


def test_the_command_serves_an_engine_and_dies_with_a_message() -> None:
    with started() as stage, engine(stage.address) as llm:
        stream = llm.stream(
            [{"prompt_token_ids": prompt(1, 5, 200)}],
            SamplingParams(max_tokens=200, ignore_eos=True),
        )
        next(stream)
        stage.process.kill()
        message = rf"^stage 0 \({stage.address}\) has ended the connection; see its messages on its"
        with pytest.raises(EngineDeadError, match=message):
            for _ in stream:
                pass


def test_a_stage_that_is_ended_tells_its_engine() -> None:
    with started() as stage, engine(stage.address) as llm:
        stage.process.terminate()
        with pytest.raises(
            EngineDeadError, match=rf"^stage 0 \({stage.address}\): it was ended on its host"
        ):
            for _ in llm.stream(
                [{"prompt_token_ids": prompt(1, 5, 200)}],
                SamplingParams(max_tokens=200, ignore_eos=True),
            ):
                pass
        assert stage.process.wait(PATIENCE_S) == 0


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--host", "0.0.0.0"], "give it by --pipeline-secret-file or PENSTOCK_PIPELINE"),
        (["--port", "70000"], "--port must be 0 to 65535, not 70000"),
        (["--pipeline-secret-file", "/no/such"], "cannot read /no/such: No such file"),
        (["no/such/model"], "there is no folder no/such/model"),
    ],
)
def test_what_the_command_refuses(
    argv: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("PENSTOCK_PIPELINE_SECRET", raising=False)
    assert main(["stage", *argv]) in (1, 2)
    assert message in capsys.readouterr().err


def test_a_port_in_use(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert main(["stage", "--port", str(taken.getsockname()[1])]) == 2
    assert "already in use; choose another address or port" in capsys.readouterr().err


@needs_native
def test_a_stage_elsewhere_that_cannot_time_ops_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(serving, "_GRACE_S", 0.2)
    with waiting(backend="reference") as there, engine(there.address, backend="cpu") as llm:
        executor = llm._core._core._executor  # type: ignore[attr-defined]
        assert isinstance(executor, ProfilingStages)
        message = r"^stage 0 \(.*\): its backend does not time single ops; leave --ops out, or"
        with pytest.raises(ConfigError, match=message):
            executor.profile(step_of([Chunk(tokens_of(1, 1), 0, 1, (0,))]))
