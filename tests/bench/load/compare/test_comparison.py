"""Whole comparisons of tests that were drawn: what is the same, and what was made slower."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from support.load_reports import Drawn, Speed, answer, drawn_report, report_of, run_of

from penstock.bench.load.compare.comparison import compare
from penstock.bench.load.compare.document import Change, Comparison
from penstock.bench.load.compare.figures import DEFAULT, Compared, parse_figures, same_requests
from penstock.bench.load.document import LoadReport
from penstock.bench.load.load import Load
from penstock.bench.load.result import Result
from penstock.bench.load.setups import differences
from penstock.cli import main as cli
from penstock.errors import ConfigError
from penstock.service_level import Limit
from penstock.written_file import write_json

USUAL = Speed()
SLOWER = Speed(
    first_s=USUAL.first_s * 1.2,
    per_prompt_token_s=USUAL.per_prompt_token_s * 1.2,
    gap_s=USUAL.gap_s * 1.2,
    per_position_s=USUAL.per_position_s * 1.2,
)


def compared(a: Drawn, b: Drawn) -> Comparison:
    return compare(Result("a", drawn_report(a)), Result("b", drawn_report(b)))


def change(found: Comparison, figure: str) -> Change:
    return next(each for each in found.points[0].changes if each.figure == figure)


def same(seed: int, drawn: Drawn) -> tuple[Drawn, Drawn]:
    """The same requests twice, at other times."""
    return (
        replace(drawn, seed=2 * seed, lengths_seed=seed),
        replace(drawn, seed=2 * seed + 1, lengths_seed=seed),
    )


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("repeats", [1, 3])
def test_the_same_server_twice(seed: int, repeats: int) -> None:
    found = compared(*same(seed, Drawn(repeats=repeats)))
    assert (found.better, found.worse) == (0, 0)
    assert found.compared >= 5


@pytest.mark.parametrize("repeats", [1, 3])
def test_a_server_that_is_slower_by_a_fifth(repeats: int) -> None:
    a, b = same(5, Drawn(repeats=repeats, requests=60))
    found = compared(a, replace(b, speed=SLOWER))
    assert found.worse > 0
    assert found.better == 0
    tpot = change(found, "tpot.p50")
    assert tpot.direction == "worse"
    assert tpot.ratio == pytest.approx(1.2, abs=0.06)
    assert tpot.interval is not None
    assert tpot.interval.low < 1.2 < tpot.interval.high
    assert tpot.method == ("pairs" if repeats == 1 else "repeats")
    back = compared(replace(b, speed=SLOWER), a)
    assert change(back, "tpot.p50").direction == "better"


@pytest.mark.slow
@pytest.mark.parametrize(
    "drawn",
    [
        Drawn(requests=40),
        Drawn(requests=40, repeats=3),
        Drawn(requests=400),
        Drawn(requests=100, loads=(Load(6.0, None),)),
    ],
    ids=["few", "repeats", "many", "a queue"],
)
def test_noise_is_rarely_taken_for_a_difference(drawn: Drawn) -> None:
    """All figures of the same server are within noise in 95 % of the pairs of tests at least."""
    tests = 40
    wrong = sum(
        found.better + found.worse > 0
        for seed in range(tests)
        for found in (compared(*same(seed, drawn)),)
    )
    assert wrong <= 0.05 * tests


@pytest.mark.slow
def test_a_fifth_is_found() -> None:
    pairs = [same(seed, Drawn(requests=60)) for seed in range(20)]
    found = [compared(a, replace(b, speed=SLOWER)) for a, b in pairs]
    assert sum(each.worse > 0 for each in found) >= 19
    assert sum(each.better for each in found) == 0


def test_too_little_data_is_said() -> None:
    found = compared(*same(1, Drawn(requests=20)))
    p99 = change(found, "ttft.p99")
    assert p99.verdict == "too little data"
    assert p99.why == "20 answers; p99 needs 368, or repeats"
    assert p99.p is None
    nothing = report_of([run_of([answer(0, 0.0, [], error="reset", message="gone")])])
    lost = compare(Result("a", drawn_report(Drawn())), Result("b", nothing))
    assert change(lost, "ttft.p50").why == "it is missing"
    assert change(lost, "failed_share").difference == 1.0


@pytest.mark.slow
def test_what_is_worse_is_a_question_of_the_figure() -> None:
    """More tokens per second are better, and more failed requests are worse."""
    a, b = same(7, Drawn(repeats=4))
    found = compared(a, replace(b, speed=SLOWER))
    assert change(found, "output_tokens_per_s").direction == "worse"
    limits = (Limit("ttft", 0.15),)
    tests = [replace(t, limits=limits) for t in (a, replace(b, speed=SLOWER))]
    assert change(compared(*tests), "good_share").difference < 0  # type: ignore[operator]


def test_a_threshold() -> None:
    a, b = same(5, Drawn(repeats=3))
    results = Result("a", drawn_report(a)), Result("b", drawn_report(replace(b, speed=SLOWER)))
    found = compare(*results, threshold=0.5)
    tpot = change(found, "tpot.p50")
    assert (tpot.verdict, tpot.direction, found.worse) == ("differs beyond noise", None, 0)


def test_a_threshold_of_shares_is_in_points() -> None:
    def result(name: str, failed: int) -> Result:
        lost = {"error": "reset", "message": "gone"}
        records = [
            answer(i, i, [9_000] * 3, **lost if i * 37 % 100 < failed else {}) for i in range(1000)
        ]
        return Result(name, report_of([run_of(records)]))

    a, b = result("a", 1), result("b", 7)
    for threshold, direction in ((0.05, "worse"), (0.07, None)):
        found = change(compare(a, b, [Compared("failed_share")], threshold), "failed_share")
        assert found.difference == pytest.approx(0.06)
        assert (found.verdict, found.direction) == ("differs beyond noise", direction)


@pytest.mark.slow
def test_shares_of_other_service_levels_do_not_compare() -> None:
    a, b = (replace(drawn, limits=(Limit("ttft", 0.15),)) for drawn in same(7, Drawn()))
    assert change(compared(a, b), "good_share").p is not None
    for limits in ((Limit("ttft", 0.1),), (Limit("ttft", 0.15), Limit("tpot", 1.0))):
        found = change(compared(a, replace(b, limits=limits)), "good_share")
        assert (found.verdict, found.difference, found.p) == ("not comparable", None, None)
        assert found.a is not None
        assert found.b is not None
        assert found.why == "the service levels differ"
    # The order in which limits were named says nothing.
    two = Limit("ttft", 0.15), Limit("tpot", 1.0)
    sides = (replace(a, limits=two), replace(b, limits=two[::-1]))
    assert change(compared(*sides), "good_share").p is not None
    assert compared(*sides).differences == []


def test_loads_that_one_of_them_lacks() -> None:
    one, two, three = (Load(None, users) for users in (1, 2, 3))
    found = compared(Drawn(loads=(one, two)), Drawn(loads=(two, three)))
    assert [point.load for point in found.points] == ["2 at once"]
    assert (found.only_a, found.only_b) == (["1 at once"], ["3 at once"])
    with pytest.raises(ConfigError, match="no load in common: a has 1 at once, and b 3 at once"):
        compared(Drawn(loads=(one,)), Drawn(loads=(three,)))


def test_verdicts_count_all_figures() -> None:
    """What one figure alone would show may be chance among many."""
    a, b = same(5, Drawn(requests=60))
    results = Result("a", drawn_report(a)), Result("b", drawn_report(replace(b, speed=SLOWER)))
    alone, all_of_them = (
        change(compare(*results, figures), "tpot.p50")
        for figures in ([Compared("tpot.p50")], DEFAULT)
    )
    assert alone.p == all_of_them.p
    assert alone.p_adjusted == alone.p
    assert all_of_them.p_adjusted > all_of_them.p  # type: ignore[operator]


def test_requests_are_paired_by_what_was_asked() -> None:
    records = [answer(i, i, [9000, 900]) for i in range(10)]
    run = run_of(records)
    other = run_of([msgspec.structs.replace(r, input_tokens_asked=99) for r in records])
    fewer = run_of(records[:8])
    assert same_requests(run, run) == (records, records)
    assert same_requests(run, other) is None
    assert same_requests(run, fewer) is None


def test_answers_of_which_some_reason() -> None:
    """Samples stay with their answers: pairs are of what both have, whoever else lacks it."""

    def result(name: str, slow: float, thinks: Sequence[int]) -> Result:
        gaps = [round(9_000 * slow), 4_000, 1_000]
        records = [answer(i, i, gaps, reasoning_chunks=int(i in thinks)) for i in range(40)]
        return Result(name, report_of([run_of(records)]))

    figures = [Compared("ttfo.p50")]
    # As many think in both, and not the same ones.
    for others in (range(1, 40, 2), range(30)):
        a, b = result("a", 1.0, range(0, 40, 2)), result("b", 2.0, others)
        found = change(compare(a, b, figures), "ttfo.p50")
        assert found.ratio == pytest.approx(22 / 13)
        assert (found.method, found.direction) == ("pairs", "worse")


def changed(report: LoadReport, **fields: object) -> LoadReport:
    return msgspec.structs.replace(report, **fields)


def test_set_ups() -> None:
    report = drawn_report(Drawn())
    server = msgspec.structs.replace(
        report.server, model="other", endpoint="completions", tells_usage=False
    )
    machine = report.machine | {"cpu_model": "Other CPU", "packages": {"numpy": "3"}}
    workload = report.workload | {"seed": 7, "input_len": "9", "text_seed": 3}
    other = changed(
        report, server=server, machine=machine, workload=workload, slo=[Limit("ttft", 1.0)]
    )
    found = {each.field: each for each in differences(report, other)}
    assert [name for name, each in found.items() if each.weight == "unfair"] == [
        *("workload.input_len", "workload.seed", "slo", "endpoint", "server.tells_usage"),
    ]
    assert found["server.model"].weight == found["machine.cpu_model"].weight == "subject"
    assert (found["package numpy"].a, found["package numpy"].b) == ("2.0.0", "3")
    assert differences(report, report) == []


def test_answers_of_other_lengths_are_unfair() -> None:
    a = report_of([run_of([answer(i, i, [9000] * 4) for i in range(9)])])
    b = report_of([run_of([answer(i, i, [9000] * 5, 12) for i in range(9)])])
    assert [each.field for each in differences(a, b)] == [
        "mean input_tokens at 4 at once",
        "mean output_tokens at 4 at once",
    ]
    cached = [answer(i, i, [9000] * 4, cached_tokens=9) for i in range(9)]
    cold = [answer(i, i, [9000] * 4, cached_tokens=0) for i in range(9)]
    found = differences(report_of([run_of(cached)]), report_of([run_of(cold)]))
    assert [(each.field, each.a, each.b) for each in found] == [
        ("prompt tokens in the cache at 4 at once", "90%", "0%")
    ]


@pytest.mark.slow
def test_fairness_is_of_all_runs() -> None:
    """What the first run is like says nothing of the other repeats and loads."""

    def result(*lengths: int, first: int = 1) -> LoadReport:
        return report_of(
            [
                run_of(
                    [answer(i, i, [9000] * n, cached_tokens=n) for i in range(9)],
                    Load(None, first + point),
                    point,
                )
                for point, n in enumerate(lengths)
            ]
        )

    a, b = result(5, 5, 5), result(5, 9, 6)
    assert [(each.field, each.a, each.b) for each in differences(a, b)] == [
        ("mean output_tokens at 2 at once", "5.0", "9.0"),
        ("prompt tokens in the cache at 2 at once", "50%", "90%"),
    ]
    # Other loads of the one are no loads of the other.
    assert differences(result(5), result(9, 5, first=0)) == []
    assert [each.field for each in differences(result(5), result(9, first=2))] == [
        "mean output_tokens",
        "prompt tokens in the cache",
    ]
    one, other = ([9000] * n for n in (5, 9))
    repeats = [run_of([answer(i, i, gaps) for i in range(9)]) for gaps in (one, other, other)]
    found = differences(report_of(repeats[:1]), report_of(repeats))
    assert [(each.a, each.b) for each in found] == [("5.0", "7.7")]


def test_figures_by_name() -> None:
    assert parse_figures("ttft.p99,failed_share") == (
        Compared("ttft.p99"),
        Compared("failed_share"),
    )
    for text in ("ttft", "ttft.p42", "speed.p50", "", "input_tokens.p50"):
        with pytest.raises(ConfigError, match="--figures"):
            parse_figures(text)


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    a, b = same(5, Drawn(repeats=3))
    paths = [tmp_path / name for name in ("before.json", "after.json")]
    for path, drawn in zip(paths, (a, replace(b, speed=SLOWER)), strict=True):
        write_json(path, drawn_report(drawn))
    return [str(path) for path in paths]


def test_the_command(files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.json"
    assert cli.main(["bench", "compare", *files, "--json", str(out)]) == 0
    printed = capsys.readouterr().out
    for text in (
        "A  before: example-1b",
        "worse, differs beyond noise",
        "figures compared",
        "Holm",
    ):
        assert text in printed
    found = msgspec.json.decode(out.read_bytes(), type=Comparison)
    assert (found.version, found.benchmark) == (1, "compare")
    assert found.worse > 0
    assert cli.main(["bench", "compare", *files, "--fail-on-regression"]) == cli.EXIT_FAILED
    back = [*reversed(files), "--fail-on-regression"]
    assert cli.main(["bench", "compare", *back]) == 0
    assert cli.main(["bench", "compare", *files, "--fail-on-regression", "--threshold", "50%"]) == 0
    assert "by 50 % or more (of shares 50 points)" in capsys.readouterr().out
    assert cli.main(["bench", "compare", files[0], f"x={files[0]}"]) == 0
    assert "twice the same result" in capsys.readouterr().out


def test_hostile_words_steer_no_terminal(
    files: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    document = json.loads(Path(files[1]).read_text())
    document["server"]["model"] = "\x1b[2Jgone"
    Path(files[1]).write_text(json.dumps(document))
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    assert cli.main(["bench", "compare", *files]) == 0
    assert "\x1b" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--threshold", "x"], "not a part"),
        (["--threshold", "-1"], "not a part from 0 on"),
        (["--figures", "speed"], "--figures 'speed'"),
        (["--json", "/nowhere/a.json"], "there is no folder"),
    ],
)
def test_refused(
    files: list[str], words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["bench", "compare", *files, *words]) == cli.EXIT_USAGE
    assert message in capsys.readouterr().err
