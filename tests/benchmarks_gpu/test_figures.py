from __future__ import annotations

from typing import Any

import msgspec
import pytest
from gpu.figures import figures
from gpu.goals import Figure, Goal, shown, shown_goal
from gpu.jobs import MEASURES
from gpu.results import (
    BlockProduct,
    Blocks,
    Ceilings,
    Checks,
    ChunkStep,
    Decode,
    Engine,
    Host,
    Mixed,
    OpTime,
    Place,
    Prefill,
    Ready,
    Results,
    StepTimes,
)

READY = Ready(loaded_s=5.0, first_token_s=6.0)
CHUNK = ChunkStep(
    chunk=256,
    decodes=32,
    context=1024,
    padded=(384, 64),
    replayed_s=0.008,
    launched_s=0.012,
    replayed_host_s=0.001,
    launched_host_s=0.010,
)


def decode(batch: int, step_s: float, gigabytes: float = 16.0) -> Decode:
    return Decode(
        batch=batch,
        context=1024,
        step_s=step_s,
        step_s_median=step_s,
        weight_bytes=int(gigabytes * 1e9),
        kv_bytes=0,
        device_s=step_s,
    )


def prefill(seconds: float) -> Prefill:
    return Prefill(
        tokens=8192,
        seconds=seconds,
        seconds_median=seconds,
        linear_flops=100 * 10**12,
        attention_flops=10 * 10**12,
    )


def mixed(seconds: float) -> Mixed:
    return Mixed(
        requests=256, prompt_tokens=1000, output_tokens=3000, seconds=seconds, settings={"a": "b"}
    )


def results(**changes: Any) -> Results:
    """Results of a device that reads 2 TB/s and multiplies at 400 TFLOP/s, where every goal is
    met."""
    bf16 = Engine(
        ready=READY,
        settings={},
        decode=[decode(1, 0.010), decode(64, 0.011)],
        prefill=prefill(0.5),
        host=Host(batch=256, step_s=0.02, device_s=0.0195, processor_s=0.001),
        places=[
            Place(position=128, itl_s=0.01, kv_bytes=0),
            Place(position=8128, itl_s=0.0105, kv_bytes=10**9),
        ],
        steps=[
            StepTimes(
                step="decode",
                ops=[
                    OpTime(name="linear o", launches=32, seconds=0.009, weight_bytes=9 * 10**9),
                    OpTime(name="argmax", launches=1, seconds=0.00001, weight_bytes=0),
                ],
            )
        ],
        chunk=CHUNK,
        mixed=mixed(1.0),
    )
    quick: dict[str, Any] = {"decode": [decode(1, 0.004)], "ready": READY, "settings": {}}
    cublas = Engine(
        ready=READY,
        settings={},
        decode=[decode(1, 0.0095), decode(64, 0.0105)],
        prefill=prefill(0.48),
    )
    whole = Results(
        checks=Checks(
            passed=9, failed=0, skipped=1, seconds=3.0, failures=[], story="as published"
        ),
        ceilings=Ceilings(
            read_bytes_per_s=2e12, matrix_flops=400e12, read_span_bytes=1 << 30, matrix_size=8192
        ),
        bf16=bf16,
        int8=Engine(**quick),
        int4=Engine(**quick),
        blocks=Blocks(
            products=[
                BlockProduct(
                    format="Q4_K",
                    n=8192,
                    k=4096,
                    rows=rows,
                    seconds=seconds,
                    weight_bytes=20 * 10**6,
                    error=0.01,
                    rows_alike=True,
                )
                for rows, seconds in ((1, 20e-6), (64, 40e-6))
            ]
        ),
        cublas=cublas,
        experts=Engine(
            ready=READY,
            settings={},
            decode=[decode(1, 0.002, 2.0), decode(64, 0.008, 9.0)],
            prefill=prefill(0.6),
        ),
        experts_int4=Engine(**quick | {"decode": [decode(1, 0.001, 0.7)]}),
        again=Engine(ready=READY, settings={}),
        latents=Engine(ready=READY, settings={}, decode=[decode(1, 0.01), decode(64, 0.016)]),
        generate=mixed(9.0),
        generate_batch=mixed(4.0),
    )
    return msgspec.structs.replace(whole, **changes)


def by_name(results: Results, *measures: str) -> dict[str, Figure]:
    return {figure.name: figure for figure in figures(results, measures or MEASURES)}


def test_every_goal_can_be_met() -> None:
    found = figures(results(), MEASURES)
    assert len(found) == 26
    assert {figure.verdict for figure in found} == {"met", "no goal"}
    assert sum(figure.verdict == "met" for figure in found) == 17


def test_figures_are_what_they_say() -> None:
    found = {name: figure.value for name, figure in by_name(results()).items()}
    assert found["decode, batch 1, of the read bandwidth"] == pytest.approx(0.8)
    assert found["prefill, of the bf16 matrix rate"] == pytest.approx(0.55)
    assert found["int4 decode, batch 1, times as fast as bf16"] == pytest.approx(2.5)
    assert found["host overhead at batch 256, of a step"] == pytest.approx(0.025)
    assert found["decode over latents, batch 64, of the read bandwidth"] == pytest.approx(0.5)
    assert found["a product of one row with Q4_K, of the read bandwidth"] == pytest.approx(0.5)
    experts = "a mixture of experts: "
    assert found[experts + "decode, batch 1, of the read bandwidth"] == pytest.approx(0.5)
    assert found[experts + "int4 decode, batch 1, times as fast as bf16"] == pytest.approx(2)
    change = "time between tokens, change with position beyond its KV bytes"
    assert found[change] == pytest.approx(0)
    assert found["deterministic costs, over cuBLAS: prefill"] == pytest.approx(0.5 / 0.48 - 1)
    times = "mixed requests, output tokens/s, times the better of transformers' two"
    assert found[times] == pytest.approx(4)


def test_a_chunk_by_a_graph_and_without() -> None:
    values = [figure.value for figure in figures(results(), ["chunk"])]
    assert values == pytest.approx([1.5, 10])
    alone = msgspec.structs.replace(CHUNK, padded=None)
    bf16 = msgspec.structs.replace(results().bf16, chunk=alone)
    found = figures(results(bf16=bf16), ["chunk"])
    assert [figure.note for figure in found] == ["bf16, chunk: no graph holds the step"] * 2


def test_a_missed_goal_is_reported() -> None:
    slow = msgspec.structs.replace(results().bf16, decode=[decode(1, 0.0101), decode(64, 0.02)])
    found = by_name(results(bf16=slow), "decode", "prefill")
    verdicts = [figure.verdict for figure in found.values()]
    assert verdicts == ["missed", "missed", "met"]


def test_what_is_missing_is_named_with_its_reason() -> None:
    found = by_name(
        results(int4=None, ceilings=None, problems={"int4": "ended with 1: out of memory"})
    )
    int4 = found["int4 decode, batch 1, times as fast as bf16"]
    assert (int4.value, int4.verdict) == (None, "not measured")
    assert int4.note == "int4: ended with 1: out of memory"
    assert found["int8 decode, batch 1, times as fast as bf16"].verdict == "met"
    assert found["decode, batch 1, of the read bandwidth"].note == "ceilings: not run"


def test_a_failed_measurement_of_an_engine_is_named() -> None:
    broken = msgspec.structs.replace(
        results().bf16, host=None, places=[], problems={"host": "no step decoded all 256 requests"}
    )
    found = by_name(results(bf16=broken), "host", "itl")
    notes = [figure.note for figure in found.values()]
    assert notes == ["bf16, host: no step decoded all 256 requests", "bf16, itl: not run"]


def test_one_peer_is_enough_and_the_other_is_reported() -> None:
    (figure,) = figures(
        results(generate_batch=None, problems={"generate_batch": "a request failed"}), ["mixed"]
    )
    assert figure.value == pytest.approx(9)
    assert figure.note == "generate_batch: a request failed"
    (figure,) = figures(results(generate=None, generate_batch=None), ["mixed"])
    assert figure.note == "generate: not run; generate_batch: not run"


def test_a_text_that_differs_misses_its_goal_and_one_that_was_not_asked_for_is_left_out() -> None:
    checks = results().checks
    other = msgspec.structs.replace(checks, story="differs after 3 of 9 characters: 'x'", failed=2)
    verdicts = [figure.verdict for figure in figures(results(checks=other), ["checks"])]
    assert verdicts == ["missed", "missed"]
    none = msgspec.structs.replace(checks, story="not run: no --stories folder was given")
    assert len(figures(results(checks=none), ["checks"])) == 1


@pytest.mark.parametrize(
    ("relation", "value", "verdict"),
    [(">=", 0.5, "met"), ("<=", 0.5, "met"), ("<", 0.5, "missed"), ("<", 0.49, "met")],
)
def test_relations(relation: Any, value: float, verdict: str) -> None:
    assert Figure(name="", unit="share", value=value, goal=Goal(relation, 0.5)).verdict == verdict


def test_values_as_readers_want_them() -> None:
    assert [shown(0.8123, "share"), shown(2.2, "times"), shown(7, "count"), shown(None, "s")] == [
        *("81.2 %", "2.20 x", "7", "-"),
    ]
    assert shown_goal(Figure(name="", unit="share", value=None, goal=Goal("<", 0.03))) == "< 3.0 %"
    assert shown_goal(Figure(name="", unit="s", value=1)) == ""
