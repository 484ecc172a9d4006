"""What a comparison found, as it is kept in JSON."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec

from comparison.cases import Case, Metric
from comparison.measurement import Summary, summarize
from penstock.bench.machine import Machine
from penstock.bench.redact import without_folders
from penstock.errors import ConfigError


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """One run of one case on one engine; ``figures`` by metric."""

    engine: str
    precision: str
    case: str
    round: int
    figures: dict[str, float]
    cpu_seconds: float
    load_average_1m: float
    other_cpus: float | None = None
    """CPUs that were busy with something else, over the run on average; None in results from
    before it was measured."""


class Absence(msgspec.Struct, frozen=True, kw_only=True):
    """What was not measured, and why. ``case`` None: all of them."""

    engine: str
    precision: str
    case: str | None
    reason: str


class CaseRecord(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    title: str
    requests: int
    prompt_tokens: int
    output_tokens: int
    clients: int | None
    metrics: list[str]


class EngineRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One engine in one precision: versions, settings as it was loaded, bytes that it read."""

    engine: str
    precision: str
    versions: dict[str, str]
    settings: dict[str, str]
    artifact_bytes: int


class Quality(msgspec.Struct, frozen=True, kw_only=True):
    """How well one engine predicts the comparison's text with the file that it is timed with."""

    engine: str
    precision: str
    perplexity: float


class CapRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The instruction set that all engines were held to."""

    isa: str
    title: str


class Comparison(msgspec.Struct, kw_only=True):
    """A whole run; written after every case, so that nothing is lost of one cut short."""

    date: str
    command: str
    shape: str
    machine: Machine
    cases: list[CaseRecord]
    engines: list[EngineRecord] = []
    samples: list[Sample] = []
    absences: list[Absence] = []
    text: str = ""
    """What perplexities are of; empty where there are none."""
    qualities: list[Quality] = []
    cap: CapRecord | None = None
    stopped: bool = False
    """Whether it was ended, as by Ctrl-C, before its last case: some cases have fewer rounds."""

    def leave_out(self, engine: str, precision: str, case: str | None, reason: str) -> None:
        """Note what is not measured, and why; where things lie on this machine is cut out."""
        found = Absence(
            engine=engine, precision=precision, case=case, reason=without_folders(reason)
        )
        self.absences.append(found)

    def rounds(self, engine: str, precision: str, case: str, metric: Metric) -> dict[int, float]:
        """The figure of each round that was measured."""
        return {
            sample.round: sample.figures[metric.name]
            for sample in self.samples
            if (sample.engine, sample.precision, sample.case) == (engine, precision, case)
            and metric.name in sample.figures
        }

    def summary(self, engine: str, precision: str, case: str, metric: Metric) -> Summary | None:
        """None where nothing was measured."""
        found = self.rounds(engine, precision, case, metric)
        return summarize(list(found.values())) if found else None

    @property
    def load(self) -> tuple[float, float] | None:
        """The least and the highest load average before a case; None where none was run."""
        loads = [sample.load_average_1m for sample in self.samples]
        return (min(loads), max(loads)) if loads else None

    @property
    def precisions(self) -> list[str]:
        """The precisions in the order in which they were run or found missing."""
        named = [r.precision for r in self.engines] + [a.precision for a in self.absences]
        return list(dict.fromkeys(named))

    @property
    def names(self) -> list[str]:
        """Engines, in the order in which they were run or found missing."""
        named = [r.engine for r in self.engines] + [a.engine for a in self.absences]
        return list(dict.fromkeys(named))


def case_record(case: Case) -> CaseRecord:
    return CaseRecord(
        name=case.name,
        title=case.title,
        requests=len(case.lengths),
        prompt_tokens=sum(prompt for prompt, _ in case.lengths),
        output_tokens=case.output_tokens,
        clients=case.clients,
        metrics=[metric.name for metric in case.metrics],
    )


def write(comparison: Comparison, path: Path) -> None:
    """Replace ``path`` in one step."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_bytes(msgspec.json.format(msgspec.json.encode(comparison), indent=1) + b"\n")
    partial.replace(path)


def read(path: Path) -> Comparison:
    """Raises OSError, or ConfigError where the file is not one of :func:`write`."""
    if path.is_dir():
        raise ConfigError(f"{path} is a folder; name a result in it, a .json file")
    try:
        found = msgspec.json.decode(path.read_bytes(), type=Comparison)
        _check(found)
    except (msgspec.DecodeError, ValueError) as error:
        raise ConfigError(f"{path} is no result of a comparison: {error}") from None
    return found


def _check(found: Comparison) -> None:
    """Raise ValueError for what no comparison writes and no report can show."""
    for case in found.cases:
        _check_metrics(f"case {case.name!r}", case.metrics)
    for sample in found.samples:
        where = f"a sample of {sample.engine!r}, case {sample.case!r}"
        _check_metrics(where, sample.figures)
        for name, figure in sample.figures.items():
            if figure <= 0:
                raise ValueError(f"{where}: {name} is {figure:g}, and figures are above 0")
    for precision in found.precisions:  # it is part of a file's name
        if not precision.isalnum():
            raise ValueError(f"there is no precision {precision!r}")


def _check_metrics(where: str, names: Iterable[str]) -> None:
    unknown = next((name for name in names if name not in Metric.__members__), None)
    if unknown is not None:
        known = ", ".join(Metric.__members__)
        raise ValueError(f"{where}: there is no metric {unknown!r}; there are {known}")
