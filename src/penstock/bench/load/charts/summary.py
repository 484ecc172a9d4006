"""The words of a report: what was measured, where and how, and the table of figures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final
from urllib.parse import urlsplit

from penstock.bench.load.document import LoadReport
from penstock.bench.load.result import Estimate, Measured, Result, shown
from penstock.bench.load.search import Found
from penstock.bench.load.setups import differences
from penstock.bench.plots.figure import Table
from penstock.bench.plots.page import Block, Fact
from penstock.service_level import level_of

_HERE: Final = ("localhost", "127.0.0.1", "::1", "0.0.0.0")
_QUIET: Final = ("name", "body", "text_seed", "seed", "warmup", "num_prompts", "duration_s")
_TIMES: Final = (
    ("TTFT", "ttft", ("p50", "p99")),
    ("ITL", "itl", ("p99",)),
    ("TPOT", "tpot", ("p50", "p99")),
    ("E2EL", "e2el", ("p50", "p99")),
)
_MEANINGS: Final = (
    ("ttft", "time to first token", "from sending the request to the first chunk with a token"),
    ("ttfo", "time to first output", "to the first chunk that is not reasoning"),
    ("ttst", "time to second token", "from the first chunk with a token to the second"),
    ("itl", "inter-token latency", "between chunks with tokens, which may have several tokens"),
    ("tpot", "time per output token", "(e2el - ttft) / (output tokens - 1), of each answer"),
    ("e2el", "end-to-end latency", "from sending the request to the last chunk with a token"),
    (
        "output_tokens_per_s_per_user",
        "speed of an answer",
        "1 / tpot",
    ),
    ("prefill_tokens_per_s_per_user", "speed of prefill", "prompt tokens / ttft"),
    ("input_tokens", "prompt tokens", "ISL: as the server counts them, template included"),
    ("output_tokens", "output tokens", "OSL: as the server counts them"),
)


def workload_words(workload: dict[str, Any]) -> str:
    """The workload and its sizes, in one line."""
    parts = [
        f"{name} {value}"
        for name, value in workload.items()
        if name not in _QUIET and value not in (None, 0)
    ]
    return ", ".join([str(workload.get("name", "unnamed")), *parts])


def machine_words(machine: dict[str, Any]) -> str:
    """Processor, cores and memory, as far as the document has them."""
    parts = [str(machine.get("cpu_model") or "an unknown processor")]
    if (cores := machine.get("physical_cores")) is not None:
        parts.append("1 core" if cores == 1 else f"{cores} cores")
    if isinstance(memory := machine.get("memory_bytes"), (int, float)):
        parts.append(f"{memory / 2**30:.0f} GiB")
    return ", ".join(parts)


def title_of(results: Sequence[Result]) -> str:
    """A page's title."""
    models = list(dict.fromkeys(result.report.server.model for result in results))
    names = ", ".join(result.name for result in results)
    if len(results) == 1:
        return f"Load test of {models[0]}"
    return f"Load tests of {models[0] if len(models) == 1 else f'{len(models)} models'}: {names}"


def about(results: Sequence[Result]) -> str:
    """What stands below a picture's title: models, machine, workload, day and command."""
    reports = [result.report for result in results]
    models = ", ".join(dict.fromkeys(report.server.model for report in reports))
    machine = _one([_machine(report) for report in reports], "machines")
    workload = _one([workload_words(report.workload) for report in reports], "workloads")
    days = sorted({report.finished[:10] for report in reports})
    words = f"{models}; {machine}; {workload}; {' to '.join(dict.fromkeys((days[0], days[-1])))}"
    return words if len(results) > 1 else f"{words}; {reports[0].command}"


def _one(values: Sequence[str], what: str) -> str:
    """What all of them are, or of how many kinds."""
    kinds = len(set(values))
    return values[0] if kinds == 1 else f"{kinds} {what}"


def facts(results: Sequence[Result]) -> Iterator[Fact]:
    """What a reader has to know who was not there."""
    if len(results) == 1:
        report = results[0].report
        yield Fact("Model", report.server.model)
        away = f"{report.server.round_trip_s * 1e3:.2f} ms away"
        yield Fact("Server", f"{_server(report)}; {away}")
        yield Fact("Finished", report.finished)
        if (quality := results[0].quality) is not None:
            yield Fact("Quality", str(quality))
        if report.search is not None:
            yield Fact("Search", _found(report.search))
        yield Fact("Command", report.command, code=True)
    for label, words in (
        ("Machine", _machine),
        ("Workload", _workload),
        ("SLO", _level),
        ("Client", _client),
    ):
        by_text: dict[str, list[str]] = {}
        for result in results:
            by_text.setdefault(words(result.report), []).append(result.name)
        for text, names in by_text.items():
            if text:
                yield Fact(label, text if len(by_text) == 1 else f"{', '.join(names)}: {text}")


def results_table(results: Sequence[Result]) -> Block:
    """What several results are of."""
    rows = [
        (
            result.name,
            result.report.server.model,
            _server(result.report),
            "-" if result.quality is None else str(result.quality),
            result.report.finished,
            result.report.command,
        )
        for result in results
    ]
    header = ("result", "model", "server", "quality", "finished", "command")
    return Block("results", "Results", "", Table(header, rows))


def _server(report: LoadReport) -> str:
    return f"{report.server.url}, {report.server.endpoint} API"


def _found(search: Found) -> str:
    share = f"{search.good_share:.0%} of the answers within the SLO"
    if search.highest_good is None:
        return f"no rate was carried with {share}"
    bound = "" if search.lowest_bad is None else f"; {search.lowest_bad:.3g}/s was too much"
    return f"{search.highest_good:.3g}/s is the highest rate with {share}{bound}"


def _client(report: LoadReport) -> str:
    packages = report.machine.get("packages")
    penstock = packages.get("penstock") if isinstance(packages, dict) else None
    python = report.machine.get("python", "unknown")
    return f"Penstock {penstock or 'unknown'}, Python {python}"


def _machine(report: LoadReport) -> str:
    here = urlsplit(report.server.url).hostname in _HERE
    where = "server and client" if here else "the client; the server is elsewhere"
    return f"{machine_words(report.machine)} ({where})"


def _workload(report: LoadReport) -> str:
    text, count = report.text, report.workload.get("num_prompts")
    words = workload_words(report.workload)
    if count is not None:
        number = f"{count:,}" if isinstance(count, (int, float)) else str(count)
        words += f"; {number} conversations a run"
    if not text.exact and report.workload.get("name") != "prompts":
        words += f"; lengths about as asked (known by {text.known_by})"
    return words


def _level(report: LoadReport) -> str:
    return level_of(report.slo)


def warnings(results: Sequence[Result]) -> Iterator[str]:
    """What keeps figures from meaning what they seem to."""
    for result in results:
        runs = result.report.runs
        of = f"{result.name}: " if len(results) > 1 else ""
        the, some = ("the", "some") if of else ("The", "Some")
        if result.report.partial:
            yield f"{of}{the} test was stopped; the last run has only what was done by then."
        if any(run.client_late for run in runs):
            yield f"{of}{the} client was late by milliseconds itself: believe no figure so small."
        failed = sum(run.whole.failed for run in runs)
        if failed:
            kinds = {kind: None for run in runs for kind in run.whole.errors}
            yield (
                f"{of}{failed:,} of {sum(run.whole.requests for run in runs):,} requests failed "
                f"({', '.join(kinds)}); they are in no latency."
            )
        if any(run.whole.output_length_mismatches for run in runs):
            yield f"{of}{some} answers have other lengths than were asked for."
        if uncounted := sum(run.whole.without_usage for run in runs):
            yield (
                f"{of}{the} server did not count the tokens of {uncounted:,} answers; chunks, "
                "which may have several tokens, stand for them in all figures of tokens."
            )
        if skipped := sum(run.skipped_turns for run in runs):
            yield f"{of}{skipped:,} turns were never sent, since one before them had failed."
        for what in dict.fromkeys(what for run in runs for what in run.whole.discrepancies):
            yield f"{of}{the} server's counts cannot be true: {what}."
    first = results[0]
    for other in results[1:]:
        unfair = [
            f"{each.field} is {each.a} and {each.b} ({each.why})"
            for each in differences(first.report, other.report)
            if each.weight == "unfair"
        ]
        if unfair:
            yield f"{first.name} and {other.name} do not compare in all: {'; '.join(unfair)}."


def figures_table(results: Sequence[Result]) -> Block:
    """All loads of all results, line by line."""
    several = len(results) > 1
    level = any(result.report.slo for result in results)
    header = [
        *(("result",) if several else ()),
        *("load", "answers", "requests/s", "output tokens/s"),
        *(("good", "good/s") if level else ()),
        *(f"{title} {part}, ms" for title, _, parts in _TIMES for part in parts),
    ]
    rows = [
        [
            *((measured.name,) if several else ()),
            str(measured.load),
            _answers(measured),
            _shown(measured.estimate("completed_per_s")),
            _shown(measured.estimate("output_tokens_per_s")),
            *(_good(measured) if level else ()),
            *(
                _shown(measured.estimate(f"{key}.{part}"), 1e3)
                for _, key, parts in _TIMES
                for part in parts
            ),
        ]
        for result in results
        for measured in result.loads
    ]
    caption = (
        "± is half of the interval of 95 %: over repeats by Student's t, of one run by a bootstrap "
        "over its requests. Rates of one run have none, nor has p99 of fewer than 368 answers. The "
        "words are explained at the end."
    )
    return Block("figures", "Figures", caption, Table(header, rows))


def _good(measured: Measured) -> tuple[str, str]:
    share = measured.estimate("good_share")
    rate = _shown(measured.estimate("goodput_per_s"))
    return "-" if share is None else f"{share.value:.1%}", rate


def _answers(measured: Measured) -> str:
    """How many came whole, of how many runs, and how many did not."""
    several = f" of {len(measured.runs)} runs" if len(measured.runs) > 1 else ""
    failed = sum(run.whole.failed for run in measured.runs)
    return f"{len(measured.answers):,}{several}" + (f", {failed:,} failed" if failed else "")


def _shown(estimate: Estimate | None, times: float = 1.0) -> str:
    return "-" if estimate is None else shown(estimate, times)


def meanings(results: Sequence[Result]) -> Block:
    """What quantities mean, and what other tools call them."""
    names: dict[str, dict[str, str]] = {}
    for result in results:
        names |= result.report.names
    rows = [
        (
            key,
            words,
            meaning,
            names.get(key, {}).get("vllm", ""),
            names.get(key, {}).get("aiperf", ""),
        )
        for key, words, meaning in _MEANINGS
    ]
    caption = (
        "Times are those at which the client received a chunk. An interval of 95 % says where a "
        "figure would lie in most repeats of the same kind; within one run it does not know what "
        "differs between runs. Percentiles interpolate between the two nearest samples."
    )
    header = ("quantity", "in words", "meaning", "vLLM bench serve", "AIPerf")
    return Block("meanings", "What the words mean", caption, Table(header, rows))
