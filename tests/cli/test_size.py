"""``penstock size``: what it prints, its JSON, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.needs import needs_native

from penstock.bench.machine import Speeds
from penstock.bench.machine_calibration import calibrate
from penstock.cli import main as cli
from penstock.cli import size_this_machine
from penstock.config import EngineConfig
from penstock.sizing.machine_times import MachineTimes, Pace

CONFIG = str(Path(__file__).parents[2] / "benchmarks/configs/llama-3.1-8b/config.json")
SHAPE = str(Path(__file__).parents[2] / "benchmarks/configs/qwen3-0.6b")
ARGV = ["size", CONFIG, "--gpu", "H100", "--isl", "2k", "--osl", "300", "--concurrency", "64"]


def test_one_screen_says_what_fits_what_binds_and_what_it_costs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.main([*ARGV, "--slo", "ttft:500ms", "tpot:0.03s"]) == 0
    out = capsys.readouterr().out
    for text in (
        "GQA, 8 KV heads of 128 for 32 heads, 128.0 KiB a token",
        *("14.96 GiB as they are (bfloat16)", "objectives: TTFT 500ms, TPOT 30.0ms"),
        *("cheapest", "fastest", "memory", "prompts compute", "next ", "prices "),
    ):
        assert text in out
    assert len(out.splitlines()) < 25


def test_json_has_every_configuration(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "size.json"
    assert cli.main([*ARGV, "--tp", "1,2", "--quantization", "none", "--json", str(path)]) == 0
    made = json.loads(path.read_text())
    assert [each["tensor"] for each in made["configurations"]] == [1, 2]
    assert made["load"]["isl"] == 2000
    assert cli.main([*ARGV, "--tp", "1,2", "--quantization", "none", "--json", "-"]) == 0
    printed = capsys.readouterr().out
    assert json.loads(printed[printed.index("{\n") :]) == made


@pytest.mark.slow
def test_ranks_and_stages_on_several_machines(tmp_path: Path) -> None:
    path = tmp_path / "size.json"
    words = ["--tp", "4,8,16", "--pp", "1,2,4", "--network", "ndr", "--quantization", "none"]
    assert cli.main([*ARGV, *words, "--json", str(path)]) == 0
    found = {
        (each["tensor"], each["pipeline"]): each
        for each in json.loads(path.read_text())["configurations"]
    }
    assert {shape: each["machines"] for shape, each in found.items()} == {
        **{(4, 1): 1, (4, 2): 1, (4, 4): 2},
        **{(8, 1): 1, (8, 2): 2, (8, 4): 4, (16, 1): 2, (16, 2): 4, (16, 4): 8},
    }
    # Ranks on two machines wait for the network, four times a layer; stages hand over once.
    assert found[16, 1]["at_load"]["tpot"] > found[8, 1]["at_load"]["tpot"]
    assert found[8, 2]["at_load"]["tpot"] < found[16, 1]["at_load"]["tpot"]


def test_the_nearest_is_named_where_nothing_meets(capsys: pytest.CaptureFixture[str]) -> None:
    few = ["--quantization", "none", "--tp", "1"]
    argv = ["size", CONFIG, "--gpu", "L4", *few, "--slo", "tpot:10ms"]
    assert cli.main(argv) == 0
    out = capsys.readouterr().out
    assert "nothing meets the objectives; the nearest is" in out
    assert "instead of 10.0ms" in out
    assert "of the whole catalogue" in out


def test_any_json_is_a_configuration(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "small.json"
    path.write_text((Path(SHAPE) / "config.json").read_text())
    assert cli.main(["size", str(path), "--gpu", "L4", "--tp", "1"]) == 0
    assert "Qwen3ForCausalLM, 596.0 million" in capsys.readouterr().out
    path.write_text("{")
    assert cli.main(["size", str(path)]) == cli.EXIT_FAILED
    assert str(path) in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--gpu", "H110"], "no accelerator 'H110' in the catalogue; the nearest are H100"),
        (["--slo", "ttft:500"], "not a duration: '500' (write 500ms"),
        (["--slo", "p99:1s"], "not an objective: 'p99:1s'"),
        (["--slo", "tpot:0ms"], "not a duration"),
        (["--slo", "tpot:1s", "--slo", "tpot:2s"], "--slo names tpot twice"),
        (["--isl", "0"], "not a number of tokens"),
        (["--isl", "2.5kk"], "not a number of tokens"),
        (["--isl", "500k"], "longer than the model's context of 131,072"),
        (["--concurrency", "-3"], "not a positive integer"),
        (["--tp", "64", "--network", "NDR"], "64 ranks cannot share 32 heads of attention"),
        (["--tp", "12", "--network", "NDR"], "do not fill machines of 8 H100; take 8 or 16 ranks"),
        (["--pp", "64", "--network", "NDR"], "the model has 32 layers; take at most 32 stages"),
        (["--network", "NVR"], "no network 'NVR' in the catalogue; the nearest are InfiniBand"),
        (["--tp", "16"], "at most 8 that are linked"),
        (["--quantization", "int3"], "'int3' is none of none, int8, int4"),
        (["--speculate", "tokens=0,accept=0.5"], "not drafts"),
        (["--speculate", "tokens=4,accept=7"], "between 0 and 1"),
        (["--catalogue", "/no/such"], "cannot be read"),
    ],
)
def test_bad_input_is_one_line(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([*ARGV, *words]) == cli.EXIT_USAGE
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line


TIMES = MachineTimes(
    op=1e-6,
    product_column=3e-10,
    paces=(
        Pace("bfloat16", (1, 512), (60e-12, 2000e-12)),
        Pace("int8", (1, 512), (30e-12, 1200e-12)),
        Pace("int4", (1, 512), (18e-12, 1100e-12)),
    ),
    attention=(8e-10, 7e-11, 6e-12, 2e-10),
    cache_column=(4e-10, 5e-10),
    row_column=7e-11,
    step=3e-4,
    sequence=4e-6,
)


def test_this_machine_is_predicted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(size_this_machine, "calibrate", lambda *args: TIMES)
    monkeypatch.setattr(size_this_machine, "measure_speeds", lambda _: Speeds(unmeasured="a test"))
    path = tmp_path / "here.json"
    argv = ["size", SHAPE, "--this-machine", "--isl", "500", "--price", "1", "--json", str(path)]
    assert cli.main([*argv, "--slo", "tpot:1s"]) == 0
    out = capsys.readouterr().out
    for text in ("not measured: a test", "GQA, 8 KV heads", "decode 1", "most open", "int4"):
        assert text in out
    made = json.loads(path.read_text())
    one = {each["weights"]: each["decode_s"]["1"] for each in made["predictions"]}
    assert one["int4"] < one["int8"] < one["none"]
    # 0.44 billion weights in layers at 60 ps each, the output matrix's 0.16 as well.
    assert one["none"] == pytest.approx(0.6e9 * 60e-12, rel=0.2)
    assert cli.main([*argv, "--slo", "tpot:1ms"]) == 0
    assert "not even one request alone" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--this-machine", "--gpu", "H100"], "--gpu is of other machines"),
        (["--this-machine", "--kv-cache-dtype", "int8,fp8"], "measures one type"),
        (["--threads", "2"], "--threads and --price are of --this-machine"),
        (["--this-machine", "--price", "free"], "not a price"),
    ],
)
def test_bad_input_of_this_machine(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["size", SHAPE, *words]) == cli.EXIT_USAGE
    assert message in capsys.readouterr().err


@needs_native
@pytest.mark.slow
def test_a_calibration_finds_constants_of_this_machine() -> None:
    found = calibrate(["int8"], EngineConfig(threads=1))
    pace = found.pace("int8")
    assert pace.rows[0] == 1
    assert pace.rows[-1] == 512
    assert 0 < pace.seconds[0] < pace.seconds[-1]
    assert max(found.attention) > 0
    assert found.step > 0
