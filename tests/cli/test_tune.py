"""``penstock tune``: simulated with made-up constants, verified beside a fake server."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.calibrations import demo_calibration
from support.mock_api import HEAD, Body, MockApi, api_thread, end, said, words_of
from support.stepped_http import Step

from penstock.bench.progress import Stopped
from penstock.cli import main as cli
from penstock.cli import tune_run
from penstock.errors import PenstockError
from penstock.profile import Profile, ProfileOptions, Served
from penstock.simulate.outcome import SimulatedRun
from penstock.tune.choice import Finalist
from penstock.tune.simulator import Simulator
from penstock.tune.space import Candidate
from penstock.written_file import write_json


@pytest.fixture
def words(tmp_path: Path) -> list[str]:
    """A load of bursts, of which the default serves half well: all of a burst decode together."""
    trace, here = tmp_path / "trace.csv", tmp_path / "here.json"
    lines = ["TIMESTAMP,ContextTokens,GeneratedTokens"]
    lines += [f"{i // 8 * 0.5},{300 + 9 * (i % 8)},{5 + i % 7}" for i in range(64)]
    trace.write_text("\n".join(lines) + "\n")
    write_json(here, demo_calibration())
    options = ["--trace", str(trace), "--calibration", str(here), "--backend", "cpu"]
    return [*options, "--out", str(tmp_path / "profile.json"), "--slo", "ttft:30ms"]


def tuned(words: list[str], *more: str) -> Profile:
    assert cli.main(["tune", *words, *more]) == 0
    return Profile.read(Path(words[words.index("--out") + 1]))


@pytest.mark.slow
def test_a_profile_without_verification(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    more = ["--no-verify", "--candidates", "20"]
    made = tuned(words, *more)
    out = capsys.readouterr().out
    for text in ("64 requests at 18.3/s", "predicted", "by simulation, not measured", "times the"):
        assert text in out, out
    chosen, default = made.chosen.predicted, made.default.predicted
    assert chosen is not None
    assert default is not None
    assert chosen.goodput_per_s is not None
    assert default.goodput_per_s is not None
    assert chosen.goodput_per_s.mean >= default.goodput_per_s.mean > 0
    assert (made.verified, made.objective, made.slo) == (False, "goodput", ("ttft:30ms",))
    assert made.made_for.model.name == "the demo model"
    assert made.made_for.workload.input_tokens.longest == 363
    # The calibration is of 8 sequences and steps of 256 tokens at most, and the default's are
    # larger; what is said of the chosen one rests on that, too.
    told = "default: its simulation went beyond the calibration: steps of"
    assert any(note.startswith(told) for note in made.notes), made.notes
    assert any("configurations went beyond the calibration" in note for note in made.notes)
    again = tuned(words, *more)
    assert (again.options, again.chosen) == (made.options, made.chosen)
    assert again.configurations == made.configurations


def test_the_measured_best_is_chosen(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    served: list[Candidate] = []

    @contextmanager
    def serving(candidate: Candidate) -> Iterator[str]:
        """A server that is good with any options but the default's, whatever was predicted."""
        served.append(candidate)
        slow = candidate == served[0]

        def answer(body: Body) -> list[Step]:
            count = body.get("max_tokens", 3)
            wait: list[Step] = [0.06] if slow else []
            return [HEAD, *wait, *[said(" word")] * count, end(words_of(body), count)]

        with api_thread(MockApi(answer)) as api:
            yield api.url

    monkeypatch.setattr(tune_run, "_serving", serving)
    made = tuned(words, "--candidates", "12", "--rounds", "2", "--verify-seconds", "0.4")
    assert len(served) == 2 * len(set(served))
    assert served[0] == served[len(served) // 2]  # in turn
    assert made.verified
    assert made.default.measured is not None
    assert made.default.measured.goodput_per_s is not None
    assert made.default.measured.goodput_per_s.mean == 0
    assert made.chosen.measured is not None
    assert made.options != ProfileOptions()
    assert "by measurement" in capsys.readouterr().out


@pytest.mark.slow
def test_a_finalist_that_does_not_start_is_left_out(
    words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    served: list[Candidate] = []

    @contextmanager
    def serving(candidate: Candidate) -> Iterator[str]:
        served.append(candidate)
        if candidate != served[0]:
            raise PenstockError("no memory")
        with api_thread(MockApi()) as api:
            yield api.url

    monkeypatch.setattr(tune_run, "_serving", serving)
    made = tuned(words, "--candidates", "12", "--rounds", "1", "--verify-seconds", "0.1")
    assert any("was not measured: no memory" in note for note in made.notes)


@pytest.mark.parametrize("after", [12, 40])
def test_ctrl_c_keeps_what_is_known(
    after: int,
    words: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    simulate, left = Simulator.__call__, [after]

    def stopped(self: Simulator, candidate: Candidate, conversations: int) -> Served:
        if left[0] == 0:
            raise Stopped
        left[0] -= 1
        return simulate(self, candidate, conversations)

    monkeypatch.setattr(Simulator, "__call__", stopped)
    assert cli.main(["tune", *words, "--no-verify"]) == 130
    made = Profile.read(Path(words[words.index("--out") + 1]))
    assert not made.verified
    assert "interrupted before all was simulated and measured" in made.notes
    assert "not measured" in capsys.readouterr().out


@pytest.mark.parametrize("when", ["first", "last"])
def test_ctrl_c_between_search_and_verification_keeps_what_was_found(
    when: str, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pressed in the first simulation of what is to be measured, or behind the last."""
    run, predicted = Simulator.run, tune_run._predicted

    def first(self: Simulator, *of: Any) -> SimulatedRun:
        made = run(self, *of)
        if len(of) == 3:
            signal.raise_signal(signal.SIGINT)
        return made

    def last(*of: Any) -> list[Finalist]:
        made = predicted(*of)
        signal.raise_signal(signal.SIGINT)
        return made

    if when == "first":
        monkeypatch.setattr(Simulator, "run", first)
    else:
        monkeypatch.setattr(tune_run, "_predicted", last)
    monkeypatch.setattr(tune_run, "_serving", lambda candidate: pytest.fail("nothing is served"))
    few = ["--candidates", "2", "--keep", "max_waiting,max_num_batched_tokens"]
    assert cli.main(["tune", *words, *few]) == 130
    made = Profile.read(Path(words[words.index("--out") + 1]))
    assert "interrupted before all was simulated and measured" in made.notes
    assert not made.verified


@pytest.mark.slow
@pytest.mark.parametrize(
    ("more", "told"),
    [
        (["--slo", "ttft:1us"], "gives one answer within ttft:0.001ms; nearest is"),
        (["--slo", "ttft:30ms", "--scale", "100"], "every request of the trace is refused"),
        (["--slo", "ttft:30ms", "--seed", "-1"], "--seed: not a whole number from 0"),
        (["--slo", "ttft:30ms", "--max-waiting", "-1"], "not a whole number from 0"),
        (["--slo", "ttft:30ms", "--out", "."], "--out . is a folder"),
        (["--slo", "ttft:30ms", "--out", "/nowhere/next.json"], "there is no folder /nowhere"),
        (["--slo", "ttft"], "write MEASURE:TIME"),
        (["--slo", "ttft:30ms", "--allow", "int3"], "--allow int3"),
        (["--slo", "ttft:30ms", "--arrivals", "poisson"], "needs a --rate"),
        (["--slo", "ttft:30ms", "--rate", "1", "--arrivals", "now"], "--arrivals now"),
        (["--slo", "ttft:30ms", "--quantization", "int8"], "no calibration is of what it runs"),
        (["--slo", "ttft:30ms", "--tensor-parallel", "2"], "ranks 2 instead of 1"),
    ],
)
def test_what_cannot_be(
    words: list[str], more: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["tune", *words[:-2], *more, "--no-verify", "--candidates", "2"]) == 2
    assert told in capsys.readouterr().err


@pytest.mark.slow
def test_without_limits(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["tune", *words[:-2], "--no-verify"]) == 2
    assert "--slo is missing" in capsys.readouterr().err
    made = tuned(words[:-2], "--no-verify", "--objective", "throughput", "--candidates", "2")
    assert made.slo == ()
    assert made.chosen.predicted is not None
    assert made.chosen.predicted.goodput_per_s is None


def test_traces_with_nothing_in_them(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "trace.csv").write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n0,0,5\n")
    assert cli.main(["tune", *words, "--no-verify"]) == 2
    assert "holds no request with a prompt and an answer" in capsys.readouterr().err
