"""Time accounted for op by op: what ops cost, and that nothing is left out."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.needs import needs_native
from support.tiny_plans import make_spec

from penstock.backends.cpu.measure import Ceiling
from penstock.bench import session as session_module
from penstock.bench.account_table import account_table
from penstock.bench.machine import Speeds, describe_machine
from penstock.bench.meter import (
    ExecutorRun,
    Step,
    StepProfile,
    linear_flops,
    weight_bytes_per_step,
)
from penstock.bench.op_account import WAITING, Steps, account
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
    made = account(plan, [Steps([step, step])], describe_machine(SPEEDS, 1))
    assert (made.steps, made.tokens) == (2, 2)
    assert made.seconds == pytest.approx(160e-3)
    assert sum(line.count for line in made.ops) == len(plan.ops)
    parts = sum(line.seconds for line in made.ops) + made.call_s + made.sampling_s + made.host_s
    assert parts == pytest.approx(made.seconds)
    assert sum(line.share for line in made.ops) == pytest.approx(2e-3 * len(plan.ops) / 160e-3)
    product = next(line for line in made.ops if line.op.startswith("Linear"))
    assert product.waiting_s == pytest.approx(0.1 * product.seconds)
    assert product.floor_s == pytest.approx(max(product.bytes, product.operations) / 1e9)
    table = account_table("decode step", made)
    assert "together" in table
    assert product.op in table


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
    made = account(plan, samples[::-1], describe_machine(SPEEDS, 1))
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
