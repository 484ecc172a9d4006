"""Benchmarks on the real engine, with the reference backend and a tiny model."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from support.checkpoints import tiny_checkpoint
from support.latents import over_latents
from support.tiny_plans import make_spec

from penstock.backends.cpu import native
from penstock.backends.cpu.measure import Ceiling
from penstock.bench import machine as machine_module
from penstock.bench import session as session_module
from penstock.bench.latency import LatencyWorkload, run_latency
from penstock.bench.machine import Speeds, describe_machine, measure_reading, measure_speeds
from penstock.bench.meter import linear_flops, weight_bytes_per_step
from penstock.bench.session import Session
from penstock.bench.throughput import StaticBatches, run_throughput
from penstock.bench.workload import Lengths, random_requests
from penstock.cache.geometry import BLOCK_SIZE
from penstock.cli import main as cli
from penstock.cli.bench_common import engine_rows, machine_rows
from penstock.config import EngineConfig
from penstock.engine.loader import plan_engine
from penstock.errors import ConfigError
from penstock.hardware import detect
from penstock.models.spec import ExpertsSpec
from penstock.plan import ops
from penstock.plan.explain import explain
from penstock.plan.fuse import fuse
from penstock.plan.lower import lower
from penstock.plan.ops import Rows
from penstock.plan.plan import Plan
from penstock.plan.weight_bytes import weight_bytes
from penstock.quant import GridScheme, GroupScheme, Quantization, QuantScheme
from penstock.weights.model_folder import load_model_spec

HIDDEN, FFN, VOCAB, LAYERS, KV = 32, 64, 96, 2, 2 * 8
LAYER_MATRICES = HIDDEN * (2 * HIDDEN + 2 * KV + 3 * FFN)


def config(model: Path, **options: object) -> EngineConfig:
    return EngineConfig(
        model=str(model),
        load_format="dummy",
        backend="reference",
        **{"kv_cache_bytes": 1 << 20, **options},  # type: ignore[arg-type]
    )


def test_bytes_and_flops_are_the_models(tiny_model: Path) -> None:
    with Session.open(config(tiny_model)) as session:
        norms = (2 * LAYERS + 1) * HIDDEN
        elements = LAYERS * LAYER_MATRICES + norms + VOCAB * HIDDEN
        assert session.weight_bytes == 4 * elements
        # The last layer runs for all rows only as far as its keys and values.
        last = LAYER_MATRICES - HIDDEN * (HIDDEN + 2 * KV)
        plan = session.engine_plan.plan
        assert linear_flops(plan, Rows.TOKENS) == 2 * (LAYERS * LAYER_MATRICES - last)
        assert linear_flops(plan, Rows.LOGITS) == 2 * (last + VOCAB * HIDDEN)


def test_products_of_heads_are_counted() -> None:
    """Five heads take queries of 24 into a latent of 40, and 40 into values of 20."""
    plan = fuse(lower(over_latents(make_spec())))
    heads = 2 * 5 * (24 * 40 + 40 * 20)
    without = replace(plan, ops=tuple(x for x in plan.ops if not isinstance(x, ops.HeadLinear)))
    for rows in (Rows.TOKENS, Rows.LOGITS):
        counted = linear_flops(plan, rows) - linear_flops(without, rows)
        # The last layer takes selected rows alone from its attention on.
        assert counted == {Rows.TOKENS: heads + 2 * 5 * 24 * 40, Rows.LOGITS: 2 * 5 * 40 * 20}[rows]


def mixture(chosen: int, scheme: QuantScheme | None = None) -> Plan:
    """The plan of a mixture of six experts, of which a token has ``chosen``."""
    spec = load_model_spec(tiny_checkpoint("qwen3_moe"))
    layers = []
    for layer in spec.layers:
        assert isinstance(layer.mlp, ExpertsSpec)
        layers.append(replace(layer, mlp=replace(layer.mlp, top_k=chosen)))
    return fuse(lower(replace(spec, layers=tuple(layers)), quantization=Quantization(scheme)))


@pytest.mark.parametrize("scheme", [None, GridScheme(4), GroupScheme(8, 32)], ids=str)
def test_bytes_of_experts_are_of_those_that_tokens_have(scheme: QuantScheme | None) -> None:
    """One token reads exactly its own, and many read all."""
    plan, experts = mixture(2, scheme), 6
    hidden, layers = plan.spec.hidden_size, len(plan.spec.layers)
    expert = 4 * 3 * hidden * 28
    if scheme is not None:
        expert = 2 * scheme.nbytes(28, hidden) + scheme.nbytes(hidden, 28)
    all_read = weight_bytes_per_step(plan, 10**6)
    assert weight_bytes(plan) - all_read == 4 * plan.spec.vocab_size * hidden  # the embedding
    for rows, read in ((1, 2.0), (2, experts * (1 - (4 / 6) ** 2))):
        moved = all_read - layers * (experts - read) * expert
        assert weight_bytes_per_step(plan, rows) == pytest.approx(moved, abs=1)


def test_operations_and_parameters_of_experts_are_of_those_that_a_token_has() -> None:
    two, three = mixture(2), mixture(3)
    expert, layers = 3 * two.spec.hidden_size * 28, len(two.spec.layers)
    for rows, number in ((Rows.TOKENS, layers - 1), (Rows.LOGITS, 1)):
        assert linear_flops(three, rows) - linear_flops(two, rows) == number * 2 * expert
    assert two.num_parameters - two.active_parameters == layers * 4 * expert
    assert three.active_parameters - two.active_parameters == layers * expert
    assert f"{two.active_parameters:,} of them for a token" in explain(two)
    assert "for a token" not in explain(mixture(6))


def test_latency_counts_every_token(tiny_model: Path) -> None:
    workload = LatencyWorkload(batch_size=2, input_len=20, output_len=5, repeats=2, warmup=1)
    with Session.open(config(tiny_model)) as session:
        result = run_latency(session.core, session.meter, session.vocab_size, workload)
    assert len(result.runs) == 2
    # Four steps decode both requests; contexts grow from 21 to 24 tokens.
    assert result.decode_step_s.count == 2 * 4
    per_token = 2 * KV * LAYERS * 4
    assert result.kv_bytes_per_step == int(np.mean([2 * n + 2 for n in (21, 22, 23, 24)])) * (
        per_token
    )
    for run in result.runs:
        assert run.seconds > run.ttft_s > 0
        assert 0 < run.host_step_s < run.decode_step_s
        assert run.prefill_tokens_per_s >= 40 / run.ttft_s  # the offer is in ttft_s alone
    assert result.decode_tokens_per_s == max(r.decode_tokens_per_s for r in result.runs)
    assert result.output_tokens_per_s == 10 / min(r.seconds for r in result.runs)


def test_states_are_read_and_written_in_every_step() -> None:
    workload = LatencyWorkload(batch_size=3, input_len=20, output_len=5, repeats=1, warmup=0)
    with Session.open(config(tiny_checkpoint("qwen3_5_text"), kv_cache_bytes=1 << 22)) as session:
        result = run_latency(session.core, session.meter, session.vocab_size, workload)
        plan = session.engine_plan.plan
    per_token = plan.kv_groups.page_bytes // BLOCK_SIZE
    attended = int(np.mean([3 * (n + 1) for n in (21, 22, 23, 24)]) * per_token)
    assert result.kv_bytes_per_step == attended + 3 * 2 * plan.state_bytes(log=0)


def test_latency_refuses_a_batch_that_never_runs_together(tiny_model: Path) -> None:
    workload = LatencyWorkload(batch_size=3, input_len=4, output_len=3, repeats=1, warmup=1)
    with (
        Session.open(config(tiny_model, max_num_seqs=2)) as session,
        pytest.raises(ConfigError, match="--max-num-seqs"),
    ):
        run_latency(session.core, session.meter, session.vocab_size, workload)


def test_throughput_accounts_for_every_request(tiny_model: Path) -> None:
    lengths = [Lengths(30, 4), Lengths(5, 1), Lengths(60, 9)]
    with Session.open(config(tiny_model, max_num_batched_tokens=64, max_num_seqs=8)) as session:
        requests = random_requests(lengths, session.vocab_size, 0)
        result = run_throughput(session.core, session.meter, requests)
    assert (result.requests, result.prompt_tokens, result.output_tokens) == (3, 95, 14)
    assert result.output_tokens_per_s == pytest.approx(14 / result.seconds)
    assert result.total_tokens_per_s == pytest.approx(109 / result.seconds)
    assert result.ttft_s.count == result.request_latency_s.count == 3
    assert result.itl_s is not None
    assert result.itl_s.count == 3 + 0 + 8
    assert result.tpot_s is not None
    assert result.tpot_s.count == 2
    assert result.request_latency_s.max <= result.seconds
    assert result.decode_tokens_per_s is not None


def test_static_batches_count_what_was_asked_for_and_no_padding(tiny_model: Path) -> None:
    lengths = [Lengths(30, 4), Lengths(5, 9), Lengths(60, 2), Lengths(8, 3), Lengths(9, 5)]
    seen = {}
    for padded_to in (None, 128):
        with Session.open(config(tiny_model, max_num_seqs=2)) as session:
            requests = random_requests(lengths, session.vocab_size, 0)
            static = StaticBatches(2, padded_to)
            result = run_throughput(session.core, session.meter, requests, static)
            stats = session.core.stats()
        assert (result.prompt_tokens, result.output_tokens) == (112, 23)
        assert result.mean_sequences_per_step <= 2
        seen[padded_to] = (stats.tokens_computed, stats.tokens_generated)
    assert seen[None] == (112 + 23 - 5, 23)
    # Rectangles of 30 by 9, 60 by 3 and 9 by 5, two rows each but for the last.
    assert seen[128] == (2 * (30 + 8) + 2 * (60 + 2) + 9 + 4, 2 * 9 + 2 * 3 + 5)


def test_a_padded_batch_stays_within_the_context() -> None:
    requests = random_requests([Lengths(90, 2), Lengths(10, 30)], 50, 0)
    (batch,) = StaticBatches(8, 100).batches(requests)
    assert [len(r.prompt_token_ids) for r in batch] == [90, 70]
    assert [r.params.max_tokens for r in batch] == [10, 30]


def test_this_machines_speeds(monkeypatch: pytest.MonkeyPatch) -> None:
    span = machine_module._span
    # Eight times the last cache, a GiB and more on a server, takes many seconds to read.
    monkeypatch.setattr(machine_module, "_span", lambda hardware: min(span(hardware), 1 << 26))
    speeds = measure_speeds(1)
    if speeds.unmeasured is not None:
        pytest.skip(speeds.unmeasured)
    for ceiling in (speeds.read, speeds.f32, speeds.bf16):
        assert ceiling is not None
        assert ceiling.rate > 1e8
        assert 0 <= ceiling.spread <= 1


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Two CPUs with a GiB of memory, whose speeds are the threads that measure them."""
    found: dict[str, int] = {}

    def speed(name: str, threads: int) -> Ceiling:
        found[name] = threads
        return Ceiling(float(threads))

    for name in ("f32", "bf16", "int8"):
        monkeypatch.setattr(machine_module.measure, name, partial(speed, name))
    monkeypatch.setattr(
        machine_module.measure, "reading", lambda num_bytes, threads: speed("reading", threads)
    )
    machine = replace(detect(), cpus=(0, 1), memory_total=1 << 30, memory_available=1 << 30)
    monkeypatch.setattr(machine_module, "detect", lambda: machine)
    return found


@pytest.mark.parametrize(("threads", "at_once"), [(1, 1), (2, 2), (5, 2)])
def test_no_cpu_counts_twice(measured: dict[str, int], threads: int, at_once: int) -> None:
    """Threads that take turns would each be measured with a CPU of their own."""
    assert measure_speeds(threads).f32 == Ceiling(at_once)
    assert set(measured.values()) == {at_once}
    measured.clear()
    assert measure_reading(threads) == Ceiling(at_once)


def test_reading_is_not_measured_with_memory_that_is_not_there(
    measured: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    short = replace(machine_module.detect(), memory_available=300 << 20)
    monkeypatch.setattr(machine_module, "detect", lambda: short)
    speeds = measure_speeds(1)
    assert (speeds.read, speeds.f32) == (None, Ceiling(1.0))
    words = "over 256 MiB, and only 300 MiB of memory are free"
    assert words in (speeds.unmeasured or "")
    rows = dict(machine_rows(describe_machine(speeds, 1)))
    assert words in rows["read bandwidth"]
    assert "f32 peak" in rows
    with pytest.raises(ConfigError, match=words):
        measure_reading(1)
    before = Speeds(read=Ceiling(2.0))
    assert before.best(speeds) == Speeds(
        read=Ceiling(2.0), f32=Ceiling(1.0), bf16=Ceiling(1.0), int8=Ceiling(1.0)
    )
    untold = replace(short, memory_total=0, memory_available=0)
    monkeypatch.setattr(machine_module, "detect", lambda: untold)
    assert measure_reading(1) == Ceiling(1.0)


def test_speeds_keep_the_better() -> None:
    a = Speeds(read=Ceiling(2.0, 0.1), bf16=Ceiling(5.0))
    b = Speeds(read=Ceiling(3.0, 0.2), bf16=Ceiling(4.0))
    assert a.best(b) == Speeds(read=Ceiling(3.0, 0.2), bf16=Ceiling(5.0))


@pytest.mark.parametrize("benchmark", ["latency", "throughput"])
def test_the_command_writes_what_it_measured(
    benchmark: str,
    tiny_model: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    speeds = Speeds(read=Ceiling(1e9, 0.01), bf16=Ceiling(2e9))
    monkeypatch.setattr(session_module, "measure_speeds", lambda threads: speeds)
    out = tmp_path / "out.json"
    words = ["bench", benchmark, str(tiny_model), "--load-format", "dummy"]
    words += ["--backend", "reference", "--kv-cache-bytes", "1MiB", "--json", str(out)]
    words += ["--input-len", "8", "--output-len", "3"]
    words += ["--repeats", "1"] if benchmark == "latency" else ["--num-prompts", "3"]
    assert cli.main(words) == 0
    printed = capsys.readouterr().out
    assert " M parameters in float32, keys and values in float32\n" in printed
    if benchmark == "latency":
        assert "1 request, 8 tokens in and 3 out; best and median of 1 run\n" in printed
    assert "tokens/s" in printed
    assert f", kernels for {native.load().isa}\n" in printed
    document = json.loads(out.read_text())
    assert document["benchmark"] == benchmark
    assert document["engine"]["backend"] == "reference"
    assert document["machine"]["threads"] >= 1
    for name in ("prefill_tokens_per_s", "decode_tokens_per_s", "output_tokens_per_s"):
        assert document[name] > 0, name
    for name in ("weight_bytes_per_step", "kv_bytes_per_step", "step_host_us"):
        assert document[name] > 0, name
    machine = document["machine"]
    assert machine["kernels"] == native.load().isa
    assert (machine["read_bandwidth_bytes_per_s"], machine["bf16_flops"]) == (1e9, 2e9)
    assert machine["int8_ops"] is None
    assert machine["spreads"] == {"read_bandwidth": 0.01, "f32": None, "bf16": 0.0, "int8": None}
    if benchmark == "latency":
        moved = document["weight_bytes_per_step"] + document["kv_bytes_per_step"]
        fraction = moved * document["decode_tokens_per_s"] / 1e9
        assert document["decode_bandwidth_fraction"] == pytest.approx(fraction)


def test_what_ran_is_said_with_the_notes_of_its_options(tiny_model: Path) -> None:
    crowded = 4 * len(os.sched_getaffinity(0))
    asked = EngineConfig(
        model=str(tiny_model),
        load_format="dummy",
        backend="cpu",
        quantization="int8",
        kv_cache_dtype="int8",
        kv_cache_bytes=1 << 20,
        threads=crowded,
    )
    model, *notes = engine_rows(plan_engine(asked))
    assert model[0] == "model"
    assert model[1].endswith(" M parameters in int8, keys and values in int8")
    taking_turns = f"{crowded} threads take turns on"
    assert sum(name == "note" and text.startswith(taking_turns) for name, text in notes) == 1


@pytest.mark.parametrize(
    "benchmark", ["latency", "throughput", "spec", "replay azure --trace x", "replay mooncake"]
)
def test_a_file_that_cannot_be_written_is_named_before_anything_is_measured(
    benchmark: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["bench", *benchmark.split(), "--json", "/nowhere/a.json"]) == 2
    assert "--json /nowhere/a.json: there is no folder /nowhere" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--scale", "2"], "only a --trace is scaled"),
        (["--trace", "x.csv", "--input-len", "3"], "it gives the lengths"),
        (["--trace", "x.csv", "--scale", "0"], "must be above 0"),
        (["--trace", "/nowhere.csv"], "/nowhere.csv: No such file"),
        (["--num-prompts", "0"], "not a positive integer"),
    ],
)
def test_options_that_make_no_sense(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["bench", "throughput", *words]) != 0
    assert message in capsys.readouterr().err


def test_a_batch_that_no_step_holds_is_refused_before_it_runs(
    tiny_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["bench", "latency", str(tiny_model), "--load-format", "dummy", "--max-num-seqs", "3"]
    words += ["--backend", "reference", "--kv-cache-bytes", "1MiB", "--batch-size", "4"]
    assert cli.main(words) == 2
    errors = capsys.readouterr().err
    assert "at most 3 of 4 requests; raise --max-num-seqs" in errors
    assert "warm-up" not in errors
