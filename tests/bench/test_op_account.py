"""Time accounted for op by op: what ops cost, and that nothing is left out."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
from support.needs import needs_native
from support.tiny_plans import make_spec

from penstock.backends.cpu.measure import Ceiling
from penstock.bench import session as session_module
from penstock.bench.account_table import account_table
from penstock.bench.machine import Machine, Speeds, describe_machine
from penstock.bench.meter import (
    ExecutorRun,
    Step,
    StepProfile,
    linear_flops,
    weight_bytes_per_step,
)
from penstock.bench.op_account import WAITING, OpLine, Part, StepAccount, Steps, account, op_title
from penstock.cli import main as cli
from penstock.interface.executor import OpTime
from penstock.plan import ops
from penstock.plan.costs import StepSize, op_cost
from penstock.plan.fuse import fuse
from penstock.plan.lower import lower
from penstock.plan.ops import Rows
from penstock.quant import GridScheme, Quantization

SPEEDS = Speeds(read=Ceiling(1e9), f32=Ceiling(1e9), bf16=Ceiling(2e9), int8=Ceiling(4e9))


def size(*contexts: int, tokens: int = 1) -> StepSize:
    """Sequences that compute their last ``tokens``, with a row of logits each."""
    positions = [np.arange(n - tokens, n, dtype=np.int32) for n in contexts]
    rows = len(contexts)
    lens = np.array(contexts, np.int32)
    return StepSize(rows * tokens, rows, rows, lens, np.concatenate(positions))


@pytest.mark.parametrize("scheme", [None, GridScheme(8)], ids=str)
def test_costs_of_ops_add_up_to_those_of_the_step(scheme: GridScheme | None) -> None:
    plan = fuse(lower(make_spec(), quantization=Quantization(scheme)))
    step = size(7, 30)
    costs = [(op, op_cost(plan, op, step)) for op in plan.ops]
    cached = sum(layer.block_bytes(plan.kv_dtype) for layer in plan.kv_layers) // 32
    moved = weight_bytes_per_step(plan, 2) + cached * (7 + 30 + 2)
    assert sum(cost.num_bytes for _, cost in costs) == moved
    products = [cost for op, cost in costs if isinstance(op, ops.Linear)]
    flops = linear_flops(plan, Rows.TOKENS) + linear_flops(plan, Rows.LOGITS)
    assert sum(cost.operations for cost in products) == 2 * flops
    kinds = [cost.arithmetic for cost in products]  # the output matrix is not quantized
    assert set(kinds[:-1]) == {"f32" if scheme is None else "int8"}


def test_titles_tell_products_of_quantized_weights_alone_apart() -> None:
    titles = []
    for activations in (True, False):
        scheme = Quantization(GridScheme(8), activations=activations)
        plan = fuse(lower(make_spec(), quantization=scheme))
        titles.append(op_title(plan, next(op for op in plan.ops if isinstance(op, ops.Linear))))
    assert titles[1] == titles[0] + " weight-only"


def test_attention_multiplies_what_each_token_sees() -> None:
    plan = fuse(lower(make_spec()))
    op = next(op for op in plan.ops if isinstance(op, ops.Attention))
    windowed = replace(op, window=4)
    step = size(9, tokens=6)  # at positions 3 to 8
    each = 2 * 2 * op.heads * op.head_dim
    assert op_cost(plan, op, step).operations == each * sum(range(4, 10))
    assert op_cost(plan, windowed, step).operations == each * 6 * 4
    assert op_cost(plan, windowed, step).num_bytes * 9 == op_cost(plan, op, step).num_bytes * 4


def test_products_without_rows_cost_nothing() -> None:
    plan = fuse(lower(make_spec()))
    step = replace(size(9, tokens=6), selected=0, logits=0)
    costs = [op_cost(plan, op, step).num_bytes for op in plan.ops if isinstance(op, ops.Linear)]
    assert costs[-1] == 0 < costs[0]


def test_every_second_is_some_lines() -> None:
    """Two steps of ops that take 1 ms and wait a tenth of it, a call of 50 and a step of 80 ms."""
    plan = fuse(lower(make_spec()))

    profile = StepProfile(size(5), [OpTime(1e-3, 1e-4)] * len(plan.ops), 4e-3)
    step = Step(80e-3, ExecutorRun(50e-3, 1, 1, 5, 0, profile))
    made = account([Part(plan, describe_machine(SPEEDS, 1))], [Steps([step, step])])
    assert (made.steps, made.tokens) == (2, 2)
    assert made.seconds == pytest.approx(160e-3)
    assert sum(line.count for line in made.ops) == len(plan.ops)
    parts = sum(line.seconds for line in made.ops) + made.call_s + made.sampling_s + made.host_s
    assert parts == pytest.approx(made.seconds)
    assert sum(line.share for line in made.ops) == pytest.approx(2e-3 * len(plan.ops) / 160e-3)
    product = next(line for line in made.ops if line.op.startswith("Linear"))
    assert product.waiting_s == pytest.approx(0.1 * product.seconds)
    assert product.floor_s == pytest.approx(max(product.bytes, product.operations) / 1e9)
    assert product.bound == ("memory" if product.bytes > product.operations else "compute")
    table = account_table("decode step", made)
    assert table.startswith("decode step, 2 tokens in 2 steps")
    assert "together" in table
    assert product.op in table


def test_an_op_is_bound_by_what_takes_longer() -> None:
    """Weights of a row take longer to read than to multiply, those of many rows do not."""
    plan = fuse(lower(make_spec()))
    found = {}
    for tokens in (1, 64):
        times = [OpTime(1e-3, 0.0)] * len(plan.ops)
        profile = StepProfile(size(64, tokens=tokens), times, 0.0)
        step = Step(80e-3, ExecutorRun(50e-3, tokens, 1, 64, 0, profile))
        made = account([Part(plan, describe_machine(SPEEDS, 1))], [Steps([step])])
        line = next(line for line in made.ops if line.op.startswith("Linear q+k+v"))
        found[line.bound] = line.bytes / 1e9, line.operations / 1e9
        assert line.floor_s == pytest.approx(max(found[line.bound]))
        embed = next(line for line in made.ops if line.op == "Embed")
        assert (embed.bound, embed.floor_s) == (None, 0)
    assert found["memory"][0] > found["memory"][1]
    assert found["compute"][0] < found["compute"][1]


def test_the_table_is_as_wide_as_what_it_says() -> None:
    """Names and numbers of a model of 8B parameters, and a step of one token."""
    lines = [
        OpLine(
            op="Linear lm_head 128256x4096 bfloat16",
            count=1,
            seconds=1.234567,
            least_s=0.0451,
            waiting_s=0.1234567,
            share=1.0,
            bytes=1_050_673_152,
            operations=1_050_673_152,
            floor_s=0.04202692,
            bound="memory",
        ),
        OpLine(
            op="Attention",
            count=32,
            seconds=75.7e-6,
            least_s=75.7e-6,
            waiting_s=0.0,
            share=0.0,
            bytes=0,
            operations=12_345_678,
            floor_s=12.3e-6,
            bound="compute",
        ),
    ]
    parts = {"call_s": 1e-3, "sampling_s": 1e-3, "host_s": 1e-3}
    made = StepAccount(steps=1, tokens=1, seconds=1.2376427, ops=lines, **parts)
    head, linear, attention, *_, together = account_table("decode step", made).splitlines()
    assert head.split("  ")[0] == "decode step, 1 token"
    assert linear.split()[-9:] == ["1", "1,235", "45.10", "100.0%", "10.0%"] + [
        *("1,051", "MB", "42.03", "3.4%")
    ]
    assert attention.split()[-6:] == ["0.0%", "0.0%", "0.012", "Gop", "0.012", "16.2%"]
    assert together.split() == ["together", "1,238", "100.0%", "42.04", "3.4%"]
    assert len(head) == len(linear) == len(attention) == len(together) <= 100


def test_the_median_step_is_accounted_for_not_the_median_of_each_op() -> None:
    """Each of five steps has one slow op, another each time: the median of every op is 1 ms."""
    plan = fuse(lower(make_spec()))
    samples = []
    for slow in range(5):
        extra = 0.1 + slow / 100
        times = [OpTime(1e-3 + extra * (i == slow), 0.0) for i in range(len(plan.ops))]
        spent = sum(each.seconds for each in times)
        run = ExecutorRun(spent + 2e-3, 1, 1, 5, 0, StepProfile(size(5), times, 4e-3))
        samples.append(Steps([Step(spent + 9e-3, run)]))
    made = account([Part(plan, describe_machine(SPEEDS, 1))], samples[::-1])
    assert made.seconds == samples[2].seconds
    parts = [made.call_s, made.sampling_s, made.host_s, *(line.seconds for line in made.ops)]
    assert sum(parts) == pytest.approx(made.seconds)
    assert (made.call_s, made.sampling_s) == pytest.approx((2e-3, 4e-3))
    slow = next(line for line in made.ops if line.seconds > 0.1)
    assert slow.least_s == pytest.approx(1e-3 * slow.count)


@needs_native
def test_the_command_accounts_for_prompts_and_steps(
    tiny_model: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(session_module, "measure_speeds", lambda threads: SPEEDS)
    out = tmp_path / "out.json"
    words = ["bench", "latency", str(tiny_model), "--load-format", "dummy", "--ops"]
    words += ["--kv-cache-bytes", "1MiB", "--input-len", "40", "--output-len", "3"]
    words += ["--repeats", "2", "--max-num-batched-tokens", "32", "--threads", "1"]
    assert cli.main([*words, "--backend", "cpu", "--json", str(out)]) == 0
    printed = capsys.readouterr().out
    found = json.loads(out.read_text())["ops"]
    assert (found["prefill"]["tokens"], found["prefill"]["steps"]) == (40, 2)
    assert (found["decode_step"]["tokens"], found["decode_step"]["steps"]) == (1, 1)
    for line in found["decode_step"]["ops"]:
        assert line["op"] in printed
        assert line["seconds"] > 0
    assert cli.main([*words, "--backend", "reference"]) != 0
    assert "does not time single ops" in capsys.readouterr().err


@pytest.mark.slow
@needs_native
def test_waiting_for_ranks_is_a_line_of_its_own(
    tiny_model: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(session_module, "measure_speeds", lambda threads: SPEEDS)
    out = tmp_path / "out.json"
    words = ["bench", "latency", str(tiny_model), "--load-format", "dummy", "--ops"]
    words += ["--kv-cache-bytes", "1MiB", "--input-len", "40", "--output-len", "3"]
    words += ["--tensor-parallel", "2", "--repeats", "2", "--no-artifact"]
    assert cli.main([*words, "--backend", "cpu", "--json", str(out)]) == 0
    assert WAITING in capsys.readouterr().out
    for each in json.loads(out.read_text())["ops"].values():
        lines = {line["op"]: line for line in each["ops"]}
        waited, gathers = lines[WAITING], lines["AllGather"]
        assert waited["count"] == gathers["count"] + lines["GatherToFirst"]["count"]
        assert waited["seconds"] > 0
        assert gathers["seconds"] > 0
        parts = sum(line["seconds"] for line in each["ops"])
        parts += each["call_s"] + each["sampling_s"] + each["host_s"]
        assert parts == pytest.approx(each["seconds"])
    assert cli.main([*words, "--backend", "reference"]) != 0
    assert "does not time single ops" in capsys.readouterr().err


@needs_native
@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_the_ops_of_all_stages_are_accounted_for(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ranks: int
) -> None:
    """They are those of one process, and what is handed on is outside them."""
    monkeypatch.setattr(session_module, "measure_speeds", lambda threads: SPEEDS)

    def lines_of(*options: str) -> dict[str, dict[str, OpLine]]:
        out = tmp_path / "out.json"
        words = ["bench", "latency", str(tiny_model), "--load-format", "dummy", "--ops"]
        # One step that decodes: of several the median is accounted for, and contexts differ.
        words += ["--kv-cache-bytes", "1MiB", "--input-len", "40", "--output-len", "2"]
        words += ["--threads", "2", "--repeats", "2", "--no-artifact", "--backend", "cpu"]
        assert cli.main([*words, *options, "--json", str(out)]) == 0
        found = {}
        for name, each in json.loads(out.read_text())["ops"].items():
            made = msgspec.convert(each, StepAccount)
            parts = made.call_s + made.sampling_s + made.host_s
            parts += sum(line.seconds for line in made.ops)
            assert parts == pytest.approx(made.seconds)
            found[name] = {line.op: line for line in made.ops}
        return found

    options = ("--tensor-parallel", str(ranks))
    alone, staged = lines_of(*options), lines_of(*options, "--pipeline-parallel", "2")
    for name, lines in alone.items():
        for title, line in lines.items():
            if title.startswith(("Linear", "Attention")):
                its = staged[name][title]
                assert (its.count, its.bytes) == (line.count, line.bytes)
                assert its.floor_s is not None


def test_there_is_no_floor_of_what_runs_in_part_on_a_machine_that_was_not_measured() -> None:
    plan, machine = fuse(lower(make_spec())), describe_machine(SPEEDS, 1)
    times = [OpTime(1e-3, 0.0)] * (2 * len(plan.ops))
    step = Step(80e-3, ExecutorRun(50e-3, 1, 1, 5, 0, StepProfile(size(5), times, 0.0)))
    parts = [Part(plan, machine.unknown()), Part(plan, machine)]
    made = account(parts, [Steps([step])])
    assert sum(line.count for line in made.ops) == len(times)
    assert [line.floor_s for line in made.ops] == [None] * len(made.ops)
    assert made.floor_s is None


def test_a_process_has_a_part_of_the_machine() -> None:
    whole = describe_machine(SPEEDS, 2)
    whole = msgspec.structs.replace(whole, logical_cores=2)

    def speeds(machine: Machine) -> tuple[float | None, float | None]:
        return machine.read_bandwidth_bytes_per_s, machine.f32_flops

    assert speeds(whole.among(2)) == (0.5e9, 0.5e9)
    assert speeds(whole.among(1, 2)) == (1e9, 0.5e9)  # one stage at a time reads
    assert speeds(whole.among(2, 2)) == (0.5e9, 0.25e9)
    assert speeds(msgspec.structs.replace(whole, threads=4).among(1, 4)) == (1e9, 0.5e9)
    assert speeds(whole.unknown()) == (None, None)
