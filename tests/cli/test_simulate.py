"""``penstock simulate``: its report and JSON, and what it refuses."""

from __future__ import annotations

import gc
import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.calibrations import demo_calibration
from support.needs import needs_native
from support.profiles import profile_of

from penstock.cli import main as cli
from penstock.cli.simulate_configs import read_configs
from penstock.config import EngineConfig
from penstock.engine.loader import plan_engine
from penstock.errors import ConfigError
from penstock.profile import ProfileOptions
from penstock.written_file import write_json

CONFIGS = Path(__file__).parents[2] / "benchmarks/configs"
SHAPE = str(CONFIGS / "qwen3-0.6b/config.json")
LLAMA = str(CONFIGS / "llama-3.1-8b/config.json")


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.csv"
    lines = ["TIMESTAMP,ContextTokens,GeneratedTokens"]
    lines += [f"2023-11-16 18:00:{i:02d}.5,{50 + 9 * i},{5 + i % 7}" for i in range(40)]
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture
def calibration(tmp_path: Path) -> Path:
    path = tmp_path / "here.json"
    write_json(path, demo_calibration())
    return path


def simulated(tmp_path: Path, *words: str) -> dict[str, Any]:
    path = tmp_path / "out.json"
    assert cli.main(["simulate", *words, "--json", str(path)]) == 0
    made: dict[str, Any] = json.loads(path.read_text())
    return made


def test_a_report(
    trace: Path, calibration: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [str(trace), "one:max_num_seqs=1", "many:replicas=2,routing=least-tokens"]
    here = ["--calibration", str(calibration), "--speed", "1,400", "--slo", "ttft:100ms"]
    made = simulated(tmp_path, *words, *here)
    out = capsys.readouterr().out
    for text in (
        *("trace.csv, 40 conversations", "SLO ttft:100ms", "many (2 x, least-tokens)"),
        *(
            "best by goodput at 400 x the trace: many, one",
            "the calibration: 5 rounds; half of them predicts the medians",
        ),
        "steps of 401 tokens, and 256 were measured at most",
    ):
        assert text in " ".join(out.split()), out
    assert made["version"] == 1
    assert [(run["config"], run["requests"]) for run in made["runs"]] == [
        (name, 40) for name in ("one", "many", "one", "many")
    ]
    assert [(run["rate"], run["speed"]) for run in made["runs"]] == [
        *[(None, 1.0)] * 2,
        *[(None, 400.0)] * 2,
    ]
    assert "speed" not in made["workload"]  # each run has its own
    run = made["runs"][0]
    assert run["distributions"]["input_tokens"]["min"] == 50
    assert set(run["distributions"]) >= {"ttft", "ttst", "itl", "tpot", "e2el", "longest_gap"}
    assert run["options"] == {"max_num_seqs": "1"}
    assert run["engine"]["most_sequences"] == 1
    assert run["failed"] == 0
    assert made["rankings"][1]["configs"] == ["many", "one"]
    again = simulated(tmp_path, *words, *here)
    for one, other in zip(made["runs"], again["runs"], strict=True):
        assert one | {"simulated_in_s": 0} == other | {"simulated_in_s": 0}


def test_what_planning_leaves_in_cycles_is_not_hidden_from_the_collector(
    trace: Path, calibration: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    frozen: list[str] = []

    def planned(*args: Any, **options: Any) -> Any:
        frozen.clear()  # of what was imported before
        return plan_engine(*args, **options)

    monkeypatch.setattr(gc, "freeze", lambda: frozen.append("once more"))
    monkeypatch.setattr("penstock.simulate.machine_setups.plan_engine", planned)
    simulated(tmp_path, str(trace), "--calibration", str(calibration))
    assert frozen == []


def test_a_device_of_the_catalogue(trace: Path, tmp_path: Path) -> None:
    made = simulated(
        tmp_path, str(trace), "--gpu", "L4", "--model", SHAPE, "--repeat", "3", "--rate", "9"
    )
    (run,) = made["runs"]
    assert (run["requests"], run["replicas"], run["beyond"]) == (120, 1, [])
    assert (run["rate"], run["speed"]) == (9, None)
    assert "roofline of L4" in run["notes"][0]
    assert made["workload"]["repeat"] == 3


def test_devices_that_share_a_model(trace: Path, tmp_path: Path) -> None:
    gpu = ["--gpu", "H100", "--model", LLAMA, "--rate", "9", "--scale", "3"]
    configs = ["one:", "two:tp=2", "again:tensor_parallel=2", "four:tp=2,pp=2"]
    runs = simulated(tmp_path, str(trace), *configs, *gpu)["runs"]
    one, two, again, four = (run["distributions"] for run in runs)
    assert two == again
    assert two["itl"]["p50"] < one["itl"]["p50"]
    assert two["ttft"]["p50"] < one["ttft"]["p50"]
    assert four["output_tokens"] == one["output_tokens"]
    assert "one GPU so far" in " ".join(runs[1]["notes"])
    assert "one GPU so far" not in " ".join(runs[0]["notes"])
    words = ["a:tp=16,network=Ethernet 100G", "b:tp=8,pp=2,network=XDR"]
    slow, fast = simulated(tmp_path, str(trace), *words, *gpu)["runs"]
    assert fast["distributions"]["itl"]["p50"] < slow["distributions"]["itl"]["p50"] / 2


@needs_native
def test_prompts_that_are_computed_apart(
    calibration: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Long prompts come while an answer is decoded, which waits for none of them then."""
    path = tmp_path / "long.csv"
    rows = ["0.0,20,900", *(f"{0.2 + i / 2},1900,2" for i in range(8))]
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + "\n".join(rows) + "\n")
    configs = ["one:", "apart:prefill=1", "two:prefill=2,network=Ethernet 100G"]
    words = [str(path), *configs, "--calibration", str(calibration)]
    one, apart, two = simulated(tmp_path, *words)["runs"]
    assert one["handovers"] is None
    assert apart["handovers"]["completed"] == two["handovers"]["completed"] == 8
    assert apart["handovers"]["tokens"] == 8 * 1888
    assert one["distributions"]["longest_gap"]["max"] > 0.009
    assert apart["distributions"]["longest_gap"]["max"] < 0.006
    told = r"apart at [\d.]+/s: 8 prompts were handed over, of 15,104 tokens and"
    assert re.search(told, capsys.readouterr().out)


def test_objectives_that_nothing_meets(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [str(trace), "--gpu", "L4", "--model", SHAPE, "--slo", "e2el:1ms", "ttft:10s"]
    made = simulated(tmp_path, *words)
    (run,) = made["runs"]
    assert (run["good"], run["goodput_per_s"]) == (0, 0.0)
    assert run["missed"]["limit"] == "e2el:1ms"
    assert "no answer is good; e2el:1ms is met by 0.0% alone" in capsys.readouterr().out


def test_longer_than_the_context_is_refused_as_a_server_does(
    trace: Path, calibration: Path, tmp_path: Path
) -> None:
    here = ["--calibration", str(calibration)]
    made = simulated(tmp_path, str(trace), "small:max_model_len=200", *here)
    (run,) = made["runs"]
    assert run["errors"] == {"http 400": run["failed"]}
    assert 0 < run["failed"] < 40


def test_configurations_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "fleet.toml"
    path.write_text(
        'kv_cache_bytes = "2GiB"\nmax_num_seqs = 8\nenable_prefix_caching = false\nreplicas = 3\n'
    )
    (one,) = read_configs([str(path)], "")
    assert (one.name, one.replicas) == ("fleet", 3)
    assert one.engine.kv_cache_bytes == 2 << 30
    assert (one.engine.max_num_seqs, one.engine.enable_prefix_caching) == (8, False)
    profile = tmp_path / "profile.json"
    write_json(profile, profile_of(ProfileOptions(max_num_seqs=4, max_waiting=16)))
    (made,) = read_configs([f"made:profile={profile}"], "")
    assert (made.engine.max_num_seqs, made.max_waiting) == (4, 16)
    path.write_text("[a]\nmax_num_seqs = 8\n[b]\nrouting = 'random'\n")
    assert [each.name for each in read_configs([str(path)], "")] == ["a", "b"]
    plain, named = read_configs(["max_num_seqs=4", "default"], "")
    assert (plain.name, named.name, named.engine) == ("max_num_seqs=4", "default", EngineConfig())


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ("a:max_num_seq=4", "there is no option 'max_num_seq' of a configuration; did you mean"),
        ("a:max_num_seqs", "'max_num_seqs' of 'a:max_num_seqs' is no key=value"),
        ("a:max_num_seqs=x", "a: argument --max-num-seqs: invalid"),
        ("a:max_num_seqs=4,max_num_seqs=5", "names max_num_seqs twice"),
        ("a:enable_prefix_caching=maybe", "enable_prefix_caching must be true or false"),
        ("a:routing=best", "routing is one of round-robin, random"),
        ("a:replicas=0", "replicas must be a whole number from 1 on, not '0'"),
        ("a:max_waiting=x", "max_waiting must be a whole number from 0 on, not 'x'"),
        ("a:model=b", "there is no option 'model'"),
        ("a:kv_cache_dtype=int3", "argument --kv-cache-dtype: invalid choice"),
    ],
)
def test_configurations_that_are_none(config: str, told: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read_configs([config], "")
    assert told in str(refused.value)


def refusal(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert cli.main(["simulate", *words]) == 2
    return capsys.readouterr().err


@pytest.mark.slow
def test_what_cannot_be_simulated(
    trace: Path, calibration: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    here = ["--calibration", str(calibration)]
    gpu = ["--gpu", "L4", "--model", SHAPE]
    own = demo_calibration().key.threads
    for words, told in (
        ([*here, *gpu], "--calibration is of this machine"),
        (["a:", "a:", *gpu], "two configurations are called 'a'"),
        (["a:kv_cache_dtype=int8", *here], "no calibration is of what it runs"),
        (["a:speculative=ngram", *here], "speculative cannot be simulated yet"),
        (["a:tp=2", *here], "ranks 2 instead of 1"),
        (["a:pp=2,threads=3", *here], "3 threads are not the same for 2 stages"),
        (["a:pp=7", *here], "the model has 6 layers; take at most 6 stages"),
        (
            [f"a:pp=2,threads={2 * own + 2}", *here],
            f"the same options but pipeline_parallel, and threads={own + 1}",
        ),
        (["a:pipeline_stages=10.0.0.1:50052", *here], "pipeline_stages names hosts"),
        (["a:prefill=1,tp=2", *here], "blocks of an engine of several ranks cannot be copied yet"),
        (["a:prefill=1,enable_prefix_caching=false", *here], "prefill= finds blocks by their cont"),
        (["a:prefill=1", *gpu], "prefill=1 is simulated of machines that were calibrated"),
        (["a:kv_cache_bytes=900GiB", *gpu], "has room for"),
        (["a:tp=32,network=NDR", *gpu], "a: 32 ranks cannot share 16 heads of attention; take at"),
        (["a:tp=2,pp=8", *gpu], "a: 16 x L4 (TP 2 x PP 8) are more than one machine"),
        (["a:pp=99,network=NDR", *gpu], "a: the model has 28 layers; take at most 28 stages"),
        (["a:tp=0", *gpu], "a: tensor_parallel and pipeline_parallel are at least 1"),
        (["a:tp=2,tensor_parallel=2", *gpu], "tensor_parallel and tp are one option"),
        (["a:network=Token Ring", *gpu], "no network 'Token Ring' in the catalogue; there are"),
        (["a:threads=4", *gpu], "threads is not taken into account with --gpu"),
        (["--rate", "1", "--speed", "2", *gpu], "a rate takes the place"),
        (["--rate", "1,2", "--concurrency", "1,2", *gpu], "several of one at most"),
        (["--arrivals", "constant", *gpu], "--arrivals: constant needs a --rate"),
        (["--slo", "ttft", *gpu], "write MEASURE:TIME"),
        (["--seed", "-1", *gpu], "--seed: not a whole number from 0"),
        (["--json", "/nowhere/a.json", *gpu], "there is no folder /nowhere"),
    ):
        assert told in refusal(capsys, str(trace), *words), words
    bad = tmp_path / "bad.csv"
    for text, told in (
        ("a,b\n1,2\n", "no trace that is known here"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n-5,10,10\n", "is no request"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n5,0,10\n", "no request with a prompt"),
    ):
        bad.write_text(text)
        assert told in refusal(capsys, str(bad), *gpu)
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "a text"}\n')
    assert "is no trace" in refusal(capsys, str(prompts), *gpu)


def test_calibrations_that_are_none(
    trace: Path, calibration: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = msgspec.json.decode(calibration.read_bytes())
    here = ["--calibration", str(calibration)]
    for change, told in (
        ({"version": 9}, "a calibration of version 9"),
        ({"steps": 3}, "is no calibration"),
        ({"key": made["key"] | {"threads": 77}}, "threads 77 instead of"),
    ):
        calibration.write_bytes(msgspec.json.encode(made | change))
        err = refusal(capsys, str(trace), *here)
        if "key" in change:
            assert "no calibration is of what it runs" in err
            assert "77" in err
        else:
            assert told in err
