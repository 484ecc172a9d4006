"""Stages that wait for their engine on a port, as on another host."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from support.bitwise import Requests, prompt, run
from support.checkpoints import tiny_checkpoint
from support.needs import needs_native
from support.waiting import PATIENCE_S, until

from penstock import LLM, SamplingParams
from penstock.cli.listen import bind
from penstock.cli.main import main
from penstock.engine.stages import sockets
from penstock.engine.stages.listening import StageServer
from penstock.engine.stages.options import StageOptions
from penstock.errors import ConfigError, EngineDeadError, ModelError

REQUESTS = Requests.product(
    [prompt(seed, length, 200) for seed, length in enumerate((1, 33, 70))],
    SamplingParams(temperature=0, max_tokens=8, ignore_eos=True, logprobs=3),
    SamplingParams(temperature=0.9, seed=7, max_tokens=8, ignore_eos=True, logprobs=3),
)
SECRET = b"0123456789abcdef"


@dataclass
class Waiting:
    """A stage that waits, in a thread of this process."""

    address: str
    server: StageServer
    said: list[str] = field(default_factory=list)

    def until_said(self, words: str) -> None:
        until(lambda: any(words in line for line in self.said), PATIENCE_S, words)


@contextlib.contextmanager
def waiting(model: str = "", secret: bytes | None = None, **options: Any) -> Iterator[Waiting]:
    listener = bind("127.0.0.1", 0)
    asked = StageOptions(model=model, revision=None, backend=None, threads=1)
    said: list[str] = []
    server = StageServer(listener, StageOptions(**{**vars(asked), **options}), secret, said.append)
    thread = threading.Thread(target=server.run)
    thread.start()
    host, port = listener.getsockname()
    try:
        yield Waiting(f"{host}:{port}", server, said)
    finally:
        server.stop()
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


@pytest.mark.parametrize(
    ("engine", "stage"),
    [
        pytest.param("cpu", None, marks=needs_native),
        pytest.param("cpu", "reference", marks=needs_native),
        ("reference", "reference"),
    ],
)
def test_bits_are_those_of_one_process(engine: str, stage: Any) -> None:
    """A stage on another backend leaves the tokens of this model as they are, if not all bits."""
    folder = str(tiny_checkpoint("qwen3"))
    with LLM(model=folder, backend=engine, artifact=False) as one:
        expected = REQUESTS.together(one)
    with waiting(folder, backend=stage) as there:
        for _ in range(2):  # one engine after the other
            options: dict[str, Any] = {"pipeline_stages": there.address, "artifact": False}
            with LLM(model=folder, backend=engine, **options) as llm:
                got = REQUESTS.together(llm)
                llm.check_integrity()
            if stage == engine or stage is None:
                assert got == expected
            else:
                tokens = [[each[0] for each in bits] for bits in got]
                assert tokens == [[each[0] for each in bits] for bits in expected]


def test_three_stages_here_and_there() -> None:
    folder = str(tiny_checkpoint("qwen3", num_hidden_layers=3))
    with LLM(model=folder, backend="reference") as one:
        expected = REQUESTS.together(one)
    with waiting(folder) as first, waiting(folder) as second:
        both = f"{first.address},{second.address}"
        with LLM(model=folder, backend="reference", pipeline_stages=both) as llm:
            assert REQUESTS.together(llm) == expected
        with LLM(
            model=folder,
            backend="reference",
            pipeline_stages=first.address,
            pipeline_parallel=3,
        ) as llm:
            assert REQUESTS.together(llm) == expected


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


def test_a_second_engine_is_told_that_the_stage_is_busy() -> None:
    with waiting() as there, engine(there.address) as llm:
        with pytest.raises(ConfigError, match="it serves another engine; end that, or start"):
            engine(there.address)
        run(llm, [prompt(1, 5, 200)], SamplingParams(max_tokens=2))


def test_nobody_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sockets, "CONNECT_S", 0.3)
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


def test_who_says_nothing_or_garbage_keeps_nobody_out() -> None:
    with waiting() as there:
        host, port = there.address.split(":")
        quiet = [socket.create_connection((host, int(port))) for _ in range(3)]
        with socket.create_connection((host, int(port))) as rude:
            rude.sendall(b"GET / HTTP/1.1\r\nHost: somewhere.example\r\n\r\n")
            there.until_said("is refused: the peer is no stage of a pipeline")
        with engine(there.address) as llm:
            run(llm, [prompt(1, 5, 200)], SamplingParams(max_tokens=2))
        for sock in quiet:
            sock.close()


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


def test_the_command_serves_an_engine_and_dies_with_a_message(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "penstock", "stage", "--port", "0", "--threads", "1"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    ) as stage:
        assert stage.stdout is not None
        address = stage.stdout.readline().split()[-1]
        with engine(address) as llm:
            stream = llm.stream(
                [{"prompt_token_ids": prompt(1, 5, 200)}],
                SamplingParams(max_tokens=200, ignore_eos=True),
            )
            next(stream)
            stage.kill()
            message = rf"^stage 0 \({address}\) has ended the connection; see its messages on its"
            with pytest.raises(EngineDeadError, match=message):
                for _ in stream:
                    pass


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--host", "0.0.0.0"], "give it a secret, by --pipeline-secret-file or PENSTOCK_PIPELINE"),
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
    assert "is in use" in capsys.readouterr().err
