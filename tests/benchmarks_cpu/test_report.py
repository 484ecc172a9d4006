"""The report shows every engine, every reason, and ratios that can be checked by hand."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest
from msgspec import json, structs

from comparison.cases import Case, Metric
from comparison.measurement import Summary
from comparison.plots import draw
from comparison.report import number, ratio, render
from comparison.results import (
    Absence,
    CapRecord,
    Comparison,
    EngineRecord,
    Quality,
    Sample,
    case_record,
    read,
)
from penstock.backends.cpu.measure import Ceiling
from penstock.bench.machine import Speeds, describe_machine
from penstock.errors import ConfigError

CASES = (
    Case("decode", "one stream", ((128, 128),), (Metric.DECODE,)),
    Case("prefill", "prompt of 512", ((512, 1),), (Metric.TTFT,)),
)


@pytest.fixture
def comparison() -> Comparison:
    """Penstock 30, a 20 (40 in one round), b 15; prompts of one round alone."""
    speeds = Speeds(read=Ceiling(24.5e9), bf16=Ceiling(6.2e12), int8=Ceiling(12.5e12))
    made = Comparison(
        date="2026-01-02",
        command="python run.py run --rounds 3",
        shape="llama",
        machine=describe_machine(speeds, 2),
        cases=[case_record(case) for case in CASES],
    )
    for name, decode in (("penstock", (29, 30, 31)), ("a", (18, 20, 40)), ("b", (15, 15, 15))):
        made.engines.append(
            EngineRecord(
                engine=name,
                precision="int4",
                versions={name: "1.2"},
                settings={"threads": "2"},
                artifact_bytes=800_000_000,
            )
        )
        for i, rate in enumerate(decode):
            made.samples.append(sample(name, "decode", i, Metric.DECODE, rate))
    made.samples.append(sample("penstock", "prefill", 0, Metric.TTFT, 0.5))
    made.samples.append(sample("b", "prefill", 0, Metric.TTFT, 0.75))
    made.absences.append(
        Absence(engine="a", precision="int4", case="prefill", reason="it ran out of memory")
    )
    made.absences.append(Absence(engine="b", precision="bf16", case=None, reason="no kernels"))
    return made


def sample(engine: str, case: str, number: int, metric: Metric, value: float) -> Sample:
    return Sample(
        engine=engine,
        precision="int4",
        case=case,
        round=number,
        figures={metric.name: value},
        cpu_seconds=1.0,
        load_average_1m=0.5 + number,
    )


def test_ratios(comparison: Comparison) -> None:
    assert ratio(comparison, "int4", "decode", Metric.DECODE) == (
        "a",
        Summary(1.5, lowest=31 / 40, highest=29 / 18, rounds=3),
    )
    assert ratio(comparison, "int4", "prefill", Metric.TTFT) == ("b", Summary(1.5, 1.5, 1.5, 1))
    assert ratio(comparison, "bf16", "decode", Metric.DECODE) is None


def test_rows(comparison: Comparison) -> None:
    lines = render(comparison).splitlines()
    assert "| 1 to 3 rounds | penstock | a | b | ratio |" in lines
    assert (
        "| one stream: decode tokens/s | 30.0 (29.0 to 31.0) | 20.0 (18.0 to 40.0) "
        "| 15.0 (15.0 to 15.0) | **1.50** (0.78 to 1.61), a |" in lines
    )
    assert (
        "| prompt of 512: time to first token, s | 0.5 (one round) | - | 0.75 (one round) "
        "| one round, no figure |" in lines
    )


def test_rounds_are_those_of_the_precision(comparison: Comparison, tmp_path: Path) -> None:
    many = structs.replace(comparison.samples[0], precision="bf16")
    comparison.samples += [structs.replace(many, round=number) for number in range(5)]
    text = render(comparison)
    assert "| 5 rounds | penstock |" in text
    assert "stopped before" not in text
    comparison.stopped = True
    assert "**The run was stopped before its last case**" in render(comparison)
    draw(comparison, "int4", tmp_path / "a.svg")
    assert "medians of 3 rounds" in (tmp_path / "a.svg").read_text()


def test_a_ratio_needs_a_round_of_both(comparison: Comparison) -> None:
    comparison.samples.append(sample("a", "prefill", 7, Metric.TTFT, 0.1))
    assert ratio(comparison, "int4", "prefill", Metric.TTFT) is None


def test_a_ratio_is_of_the_rounds_of_both(comparison: Comparison) -> None:
    """A run that was ended may have a round of one engine alone."""
    comparison.samples.append(sample("penstock", "decode", 3, Metric.DECODE, 90))
    comparison.samples.append(sample("penstock", "decode", 4, Metric.DECODE, 90))
    found = Summary(1.5, lowest=31 / 40, highest=29 / 18, rounds=3)
    assert ratio(comparison, "int4", "decode", Metric.DECODE) == ("a", found)


def test_the_cap_and_the_neighbours_are_said(comparison: Comparison, tmp_path: Path) -> None:
    picture = tmp_path / "a.svg"
    assert "held to" not in render(comparison)
    assert "While cases ran" not in render(comparison)
    comparison.cap = CapRecord(isa="avx2", title="AVX2 without VNNI")
    comparison.samples[0] = structs.replace(comparison.samples[0], other_cpus=1.25)
    text = render(comparison)
    assert "**Every engine is held to avx2**: AVX2 without VNNI, so that" in text
    assert "other processes kept 1.2 to 1.2 CPUs busy" in text
    draw(comparison, "int4", picture)
    drawn = picture.read_text()
    assert "All held to avx2. Load average 0.5 to 2.5." in drawn
    assert "Pale: one round, no figure." in drawn
    assert drawn.count('class="pale"') == 2


def test_reasons_name_no_folder_of_this_machine(comparison: Comparison) -> None:
    comparison.leave_out("b", "int8", "http", "it ended (killed); see /home/me/.cache/x/logs/b.txt")
    text = render(comparison)
    assert "- b, int8, http: it ended (killed); see b.txt" in text
    assert "/home" not in text


def test_what_a_reader_needs_to_judge_it(comparison: Comparison) -> None:
    text = render(comparison, {"int4": "plot.svg"})
    assert "- a, int4, prefill: it ran out of memory" in text
    assert "- b, bf16: no kernels" in text
    assert "reads memory at 24.5 GB/s" in text
    assert "multiplies bf16 at 6.20 TFLOP/s" in text
    assert "Load average before a case: 0.5 to 2.5." in text
    assert "python run.py run --rounds 3" in text
    assert "- **a int4**: a 1.2; 0.80 GB on disk" in text
    assert "![int4](plot.svg)" in text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.01234, "0.0123"), (9.876, "9.88"), (12.34, "12.3"), (1234.5, "1,234"), (0.5, "0.5")],
)
def test_numbers(value: float, text: str) -> None:
    assert number(value) == text


def test_plots(comparison: Comparison, tmp_path: Path) -> None:
    paths = tmp_path / "a.svg", tmp_path / "b.svg"
    assert all(draw(comparison, "int4", path) for path in paths)
    root = ElementTree.fromstring(paths[0].read_text())
    texts = [text.text for text in root.iter("{http://www.w3.org/2000/svg}text")]
    assert "decode tokens/s (more is better)" in texts
    assert comparison.machine.cpu_model in " ".join(map(str, texts))
    for name in comparison.names:
        assert name in texts
        found = comparison.summary(name, "int4", "decode", Metric.DECODE)
        assert found is None or number(found.median) in texts
    assert paths[0].read_bytes() == paths[1].read_bytes()
    assert not draw(comparison, "bf16", tmp_path / "c.svg")
    assert not (tmp_path / "c.svg").exists()


def test_the_picture_of_the_readme_is_of_the_results_it_names(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    results = "benchmarks/cpu/results/gemma-3-270m-q4_k_m-zen5"
    readme = (root / "README.md").read_text()
    assert "](docs/images/benchmark.svg)" in readme
    assert f"]({results}.md)" in readme
    drawn = tmp_path / "benchmark.svg"
    assert draw(read(root / f"{results}.json"), "file", drawn, (Metric.DECODE, Metric.TTFT))
    assert drawn.read_bytes() == (root / "docs" / "images" / "benchmark.svg").read_bytes()


def test_perplexities_stand_beside_speeds(comparison: Comparison) -> None:
    assert "perplexity" not in render(comparison)
    comparison.text = "20 windows of 512 tokens of a.txt"
    for name, value in (("penstock", 12.3456), ("b", 1234.5)):
        comparison.qualities.append(Quality(engine=name, precision="int4", perplexity=value))
    row = "| perplexity of 20 windows of 512 tokens of a.txt | 12.35 | - | 1234 | - |"
    assert row in render(comparison).splitlines()


@pytest.mark.parametrize(
    ("words", "others", "message"),
    [
        ('"DECODE":29}', '"DECODE":0}', "'penstock', case 'decode': DECODE is 0, and figures"),
        ('"DECODE":29}', '"DECODE":-2.5}', "DECODE is -2.5, and figures are above 0"),
        ('"DECODE":29}', '"SPEED":29}', "there is no metric 'SPEED'; there are DECODE"),
        ('["TTFT"]', '["SPEED"]', "case 'prefill': there is no metric 'SPEED'"),
        ('"precision":"int4"', '"precision":"../int4"', "there is no precision '../int4'"),
        ('"samples"', '"samples', "JSON is malformed"),
        ("llama", "\udcff", "utf-8"),  # versions of msgspec say it in different words
    ],
)
def test_what_no_comparison_writes_is_refused(
    words: str, others: str, message: str, comparison: Comparison, tmp_path: Path
) -> None:
    text = json.encode(comparison).decode()
    assert words in text
    path = tmp_path / "found.json"
    path.write_bytes(text.replace(words, others).encode(errors="surrogateescape"))
    with pytest.raises(ConfigError, match=r"found.json is no result of a comparison: ") as refused:
        read(path)
    assert message.lower() in str(refused.value).lower()


def test_no_ratio_that_is_published_is_of_one_round() -> None:
    """What the tool refuses to print, people may not write beside it."""
    root = Path(__file__).parents[2]
    pages = [root / "README.md", *sorted((root / "benchmarks" / "figures").glob("*.md"))]
    assert len(pages) > 1
    for page in pages:
        rows = [line for line in page.read_text().splitlines() if line.startswith("|")]
        assert not [row for row in rows if "one round" in row], page
