"""Figures of answers whose times are given: what is drawn is what was computed by hand."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from support.load_reports import FOUR, Drawn, Speed, answer, drawn_report, report_of, rows, run_of

from penstock.bench.load.charts.completion import Box, completion
from penstock.bench.load.charts.frontier import throughput_by_latency
from penstock.bench.load.charts.itl import itl_by_position
from penstock.bench.load.charts.lengths import bins_of, times_by_lengths
from penstock.bench.load.charts.load_curves import goodput, latency_by_load
from penstock.bench.load.charts.report import figures_of, page_of
from penstock.bench.load.charts.summary import about, machine_words, warnings
from penstock.bench.load.charts.ttft import ttft_by_prompt
from penstock.bench.load.load import Load
from penstock.bench.load.quality import Quality
from penstock.bench.load.record import RequestRecord
from penstock.bench.load.result import Result, evenly
from penstock.bench.plots.figure import Figure
from penstock.service_level import Limit

SWEEP = (Load(None, 1), Load(None, 2), Load(None, 8))


def result(records: Sequence[RequestRecord], name: str = "one") -> Result:
    return Result(name, report_of([run_of(records)]))


def test_first_tokens_lie_on_their_line() -> None:
    """TTFT is 10 ms and 0.5 ms for each token."""
    records = [answer(i, i, [10_000 + 500 * n, 10_000], n) for i, n in enumerate(range(10, 60, 10))]
    figure = ttft_by_prompt([result(records)])
    assert figure.title == "1,000 more prompt tokens add 500 ms to the time to first token"
    points, ends = rows(figure)
    assert [(row["x"], row["y"]) for row in points] == [
        (10, 15),
        (20, 20),
        (30, 25),
        (40, 30),
        (50, 35),
    ]
    assert [(row["x"], row["y"]) for row in ends] == [(10, 15), (50, 35)]
    assert figure.table is not None
    assert figure.table.rows[0][4] == "500"
    assert figure.table.rows[0][6] == "10.0"


def test_prompts_that_are_alike_have_no_slope() -> None:
    figure = ttft_by_prompt([result([answer(i, i, [10_000], 500 + i) for i in range(9)])])
    assert not figure.panels
    assert "nearly the same length" in str(figure.omitted)


def test_large_results_are_sampled_and_it_is_said() -> None:
    records = [answer(i, i / 100, [5_000 + i], i) for i in range(3000)]
    figure = ttft_by_prompt([result(records)])
    points = rows(figure)[0]
    assert len(points) == 1200
    assert (points[0]["x"], points[-1]["x"]) == (0, 2999)
    assert "n = 3,000, of which 1,200 are drawn" in figure.caption


def test_gaps_drift_with_the_position() -> None:
    """The gap before the token at position p is 10 ms + 2 µs * p; prompts have 100 tokens."""
    gaps = [50_000, *(10_000 + 2 * (100 + i) for i in range(1, 401))]
    records = [answer(i, i * 10.0, gaps, 100) for i in range(5)]
    figure = itl_by_position([result(records)])
    assert figure.title == "1,000 more tokens of context add 2.00 ms to the time between chunks"
    areas, marks, ends = rows(figure)
    assert areas == marks
    assert ends[0]["y"] == pytest.approx(10 + 2e-3 * ends[0]["x"], rel=1e-3)
    assert ends[1]["y"] == pytest.approx(10 + 2e-3 * ends[1]["x"], rel=1e-3)
    assert sum(row["n"] for row in marks) == 5 * 400


def test_groups_of_positions_span_no_hole() -> None:
    """Answers of 50 tokens after prompts of 100 and of 5,000."""
    records = [answer(i, i * 10.0, [9_000] * 50, (100, 5000)[i % 2]) for i in range(7)]
    marks = rows(itl_by_position([result(records)]))[1]
    assert {row["part"] for row in marks if row["x"] < 151} == {0}
    assert {row["part"] for row in marks if row["x"] > 5000} == {1}
    assert not [row for row in marks if 151 < row["x"] < 5000]


def test_boxes() -> None:
    records = [answer(i, i, [1_000_000 * (i + 1)]) for i in range(5)]
    box = Box.of(Result("one", report_of([run_of(records)])).loads[0], "")
    assert box is not None
    assert (box.count, box.p25, box.p50, box.p75, box.mean) == (5, 2.0, 3.0, 4.0, 3.0)
    assert (box.p5, box.p95) == pytest.approx((1.2, 4.8))
    (row,) = rows(completion([result(records)]))[0]
    assert (row["p25"], row["p50"], row["p75"]) == (2.0, 3.0, 4.0)


@pytest.mark.slow
def test_patterns_have_panels() -> None:
    figure = completion([Result("one", drawn_report(Drawn(loads=SWEEP, patterns=True)))])
    assert [panel.title for panel in figure.panels] == [
        "long-in-long-out",
        "long-in-short-out",
        "short-in-long-out",
        "short-in-short-out",
    ]


def test_bins_of_lengths() -> None:
    assert [str(each) for each in bins_of([5, 9, 5, 1200])] == ["5", "9", "1,200"]
    bins = bins_of(range(1, 2000))
    assert len(bins) <= 6
    assert (bins[0].first, bins[-1].last) == (1, 1999)
    assert all(a.last + 1 == b.first for a, b in pairwise(bins))
    assert [str(each) for each in bins_of([36, 204, 37, 206, 205])] == [
        "36\u201337",
        "204\u2013206",
    ]


def test_a_map_of_lengths() -> None:
    records = [
        answer(i, i, [1_000_000 * seconds] * outputs, prompt)
        for i, (prompt, outputs, seconds) in enumerate([(10, 1, 1), (10, 1, 3), (99, 2, 4)])
    ]
    (cells,) = rows(times_by_lengths([result(records)]))
    assert [(c["prompt"], c["answer"], c["count"], c["time"]) for c in cells] == [
        ("10", "1", "n = 2", "2.00 s"),
        ("99", "2", "n = 1", "8.00 s"),
    ]


def loaded(name: str, points: Sequence[tuple[int, int, int]], quality: float | None) -> Result:
    """A result whose loads have a number at once, a gap in ms, and so many tokens in a second."""
    runs = [
        run_of([answer(0, 0.0, [1_000_000 - gap * 1000, gap * 1000], output_tokens=2)] * rate, load)
        for users, gap, rate in points
        for load in (Load(None, users),)
    ]
    of = None if quality is None else Quality(quality)
    return Result(name, report_of(runs), of)


def best(figure: Figure, panel: int) -> set[tuple[str, str]]:
    marks = rows(figure, panel)[0]
    return {(row["series"], row["load"]) for row in marks if row["best"]}


def test_the_frontier() -> None:
    """Loads by time per token: a: 10 ms at 2 tokens/s, 20 at 8; b: 15 at 6, 20 at 6."""
    a = loaded("a", [(1, 10, 1), (4, 20, 4)], None)
    b = loaded("b", [(1, 15, 3), (4, 20, 3)], None)
    figure = throughput_by_latency([a, b])
    assert best(figure, 1) == {("a", "1"), ("a", "4"), ("b", "1")}
    line = rows(figure, 1)[1]
    assert [(row["x"], row["y"]) for row in line] == [(10, 2), (15, 6), (20, 8)]


def test_quality_is_the_third_axis() -> None:
    """What is beaten in two axes may be the best in the third."""
    a = loaded("a", [(1, 10, 1), (4, 20, 4)], 13.5)
    b = loaded("b", [(1, 15, 3), (4, 20, 3)], 12.5)
    figure = throughput_by_latency([a, b])
    assert ("b (perplexity 12.5)", "1") in best(figure, 1)
    assert ("b (perplexity 12.5)", "4") not in best(figure, 1)  # its own other load beats it
    marks = rows(figure, 2)[0]
    assert [(row["x"], row["y"], row["best"]) for row in marks] == [
        (13.5, 8, True),
        (12.5, 6, True),
    ]
    assert "perplexity (less is better)" in str(figure.panels[2].spec)


def test_goodput_by_rate() -> None:
    limits = [Limit("ttft", 0.2)]
    runs = [
        run_of(
            [answer(i, i / rate, [150_000 * rate, 10_000]) for i in range(20)],
            Load(float(rate), None),
            limits=limits,
        )
        for rate in (1, 2)
    ]
    figure = goodput([Result("one", report_of(runs, limits))])
    assert figure.title.startswith("Within ttft:200ms, the server completes")
    assert "(at 1/s)" in figure.title
    offered, marks, *_ = rows(figure)
    assert offered == [{"x": 0, "y": 0}, {"x": 2, "y": 2}]
    assert [row["y"] for row in marks if row["kind"] == "good" and row["x"] == 2] == [0]
    assert figure.table is not None
    assert [row[4] for row in figure.table.rows] == ["100.0%", "0.0%"]


def test_without_a_service_level_there_is_no_goodput() -> None:
    figure = goodput([Result("one", drawn_report(Drawn(loads=SWEEP)))])
    assert "No goodput: the results have no service level" in figure.caption
    assert {row["kind"] for row in rows(figure)[0]} == {"complete"}


def test_pictures_of_several_results_name_what_they_share() -> None:
    one = result([answer(0, 0.0, [9_000])])
    later = msgspec.structs.replace(
        one.report,
        machine=one.report.machine | {"cpu_model": "Other CPU"},
        finished="2026-01-05T03:05:05+00:00",
    )
    words = about([one, Result("two", later)])
    assert words.startswith("example-1b; 2 machines; random, input_len 64..512")
    assert words.endswith("2026-01-02 to 2026-01-05")
    assert "Example CPU" in about([one, one])
    assert about([one, one]).endswith("; 2026-01-02")


def test_what_is_less_than_it_seems_is_said() -> None:
    chunks = [answer(i, i, [9_000] * 3, output_tokens=None) for i in range(3)]
    run = msgspec.structs.replace(run_of(chunks), skipped_turns=4)
    said = list(warnings([Result("one", report_of([run]))]))
    assert said == [
        "The server did not count the tokens of 3 answers; chunks, which may have several tokens, "
        "stand for them in all figures of tokens.",
        "4 turns were never sent, since one before them had failed.",
    ]


def test_loads_of_another_kind_are_named() -> None:
    rates = Result("one", drawn_report(Drawn(loads=(Load(1.0, None), Load(2.0, None)))))
    users = Result("two", drawn_report(Drawn(loads=SWEEP)))
    left = "Left out, for want of a rate: two, 1 at once; two, 2 at once; two, 8 at once."
    for draw in (goodput, latency_by_load):
        assert left in draw([rates, users]).caption
        assert "Left out" not in draw([rates]).caption


def test_latencies_over_repeats_have_student_s_interval() -> None:
    report = drawn_report(Drawn(loads=SWEEP, repeats=3))
    figure = latency_by_load([Result("one", report)])
    marks = rows(figure)[0]
    over = report.points[0].figures["ttft.p50"]
    assert marks[0]["y"] == pytest.approx(over.mean * 1e3, rel=1e-3)
    assert marks[0]["high"] == pytest.approx(over.high * 1e3, rel=1e-3)


def test_latencies_are_told_of_each_result_by_itself() -> None:
    def swept(name: str, slow: int, loads: Sequence[int]) -> Result:
        runs = [
            run_of(
                [answer(i, i, [slow * load * 1_000, 9_000] if load < 8 else []) for i in range(9)],
                Load(None, load),
                point,
            )
            for point, load in enumerate(loads)
        ]
        return Result(name, report_of(runs))

    one, other = swept("one", 10, (1, 2, 4)), swept("two", 100, (1, 4, 8))
    start = "The median time to first token "
    ours = "goes from 10.0 ms (1 at once) to 40.0 ms (4 at once)"
    # Of the heaviest load no answer came.
    theirs = "goes from 100 ms (1 at once) to 400 ms (4 at once)"
    assert latency_by_load([one]).title == start + ours
    assert latency_by_load([other]).title == start + theirs
    assert latency_by_load([one, other]).title == f"{start}of one {ours}; of two {theirs}"
    alone = latency_by_load([one, swept("two", 100, (2,))]).title
    assert alone == f"{start}of one {ours}; of two is 200 ms (2 at once)"


def test_what_cannot_be_drawn_says_why() -> None:
    report = drawn_report(Drawn(loads=(FOUR,), inputs=(64,), outputs=(1,), metrics=None))
    figures = {figure.name: figure for figure in figures_of([Result("one", report)])}
    assert {name for name, figure in figures.items() if figure.omitted} == {
        *("frontier", "goodput", "latency-by-load", "ttft-by-prompt", "itl-by-position"),
        *("lengths", "kv-cache"),
    }
    assert all(figure.omitted.endswith(".") for figure in figures.values() if figure.omitted)
    nothing = report_of([run_of([answer(0, 0.0, [], error="reset", message="gone")])])
    assert len(figures_of([Result("one", nothing)])) == len(figures)


@pytest.mark.parametrize("failed", [(0, 1, 2), (0,), (1, 2), (2,)], ids=str)
@pytest.mark.parametrize("rates", [False, True])
def test_loads_that_failed(failed: Sequence[int], rates: bool) -> None:
    """Every figure is drawn of what came, or says why it is not; with a whole result beside."""
    loads = tuple(Load(float(n), None) if rates else Load(None, n) for n in (1, 2, 8))
    drawn = drawn_report(Drawn(loads=loads, requests=8))
    gone = answer(0, 0.0, [], error="reset", message="gone")
    runs = [run_of([gone], loads[i]) if i in failed else run for i, run in enumerate(drawn.runs)]
    broken = Result("broken", report_of(runs))
    for results in ([broken], [Result("whole", drawn), broken]):
        figures = figures_of(results)
        assert page_of(results, figures).facts
        for figure in figures:
            assert bool(figure.panels) == (figure.omitted is None), figure.name
    drawable = {figure.name for figure in figures_of([broken]) if figure.omitted is None}
    whole = len(failed) < 3
    assert ("lengths" in drawable, "latency-by-load" in drawable) == (whole, whole)


def test_a_map_of_lengths_is_of_the_heaviest_loads_that_came() -> None:
    """Six results have room for a load each, and the heaviest loads of all failed."""
    gone = answer(0, 0.0, [], error="reset", message="gone")
    whole = [answer(i, i, [5_000] * (i + 1), 10 * i) for i in range(5)]
    runs = [run_of(whole, SWEEP[0]), run_of(whole, SWEEP[1]), run_of([gone], SWEEP[2])]
    figure = times_by_lengths([Result(str(i), report_of(runs)) for i in range(6)])
    assert [panel.title for panel in figure.panels] == [f"{i}, 2 at once" for i in range(6)]
    assert "6 further loads are left out" in figure.caption


def test_a_workload_of_another_program() -> None:
    report = report_of([run_of([answer(0, 0.0, [5])])], workload={"num_prompts": "all"})
    results = [Result("one", report)]
    said = [fact.text for fact in page_of(results, figures_of(results)).facts]
    assert any("all conversations a run" in text for text in said)


@pytest.mark.parametrize(
    "damage",
    [
        {"gaps_us": []},
        {"gaps_us": [0, 0, 0]},
        {"gaps_us": [-5, -5]},
        {"gaps_us": [10**18, 5]},
        {"sent_s": 1e300},
        {"end_s": -1e300},
        {"input_tokens": -5},
        {"input_tokens": 10**18},
        {"output_tokens": 0},
    ],
    ids=str,
)
def test_numbers_that_cannot_be(damage: dict[str, Any]) -> None:
    """A document that somebody has damaged is drawn somehow, or not, but ends nothing."""
    whole = drawn_report(Drawn(requests=8, loads=(Load(None, 1), Load(None, 2))))
    for count in (1, 8):
        runs = [
            msgspec.structs.replace(
                run,
                requests=[
                    msgspec.structs.replace(record, **(damage if i < count else {}))
                    for i, record in enumerate(run.requests)
                ],
            )
            for run in whole.runs
        ]
        results = [Result("one", msgspec.structs.replace(whole, runs=runs))]
        assert page_of(results, figures_of(results)).facts


def test_all_of_several_results() -> None:
    tests = [
        Drawn(loads=SWEEP),
        Drawn(loads=SWEEP, speed=Speed(gap_s=0.02), metrics="vllm", seed=1),
    ]
    results = [Result(f"r{i}", drawn_report(test)) for i, test in enumerate(tests)]
    figures = figures_of(results)
    assert not [figure.name for figure in figures if figure.omitted]
    for figure in figures:
        assert figure.table is not None
        assert all(len(row) == len(figure.table.header) for row in figure.table.rows)


def test_even_choices() -> None:
    assert evenly([1, 2, 3, 4, 5], 3) == [1, 3, 5]
    assert evenly([1, 2], 3) == [1, 2]
    assert evenly([1, 2, 3], 1) == [3]


def test_a_machine_of_one_core() -> None:
    assert machine_words({"cpu_model": "A CPU", "physical_cores": 1}) == "A CPU, 1 core"
