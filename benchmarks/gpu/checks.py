"""Tests that run on the device, and a published text."""

from __future__ import annotations

import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from importlib.util import find_spec
from pathlib import Path

from gpu.results import Checks
from penstock.bench.redact import without_folders

TESTS = ("tests/cuda", "tests/backends/cuda")
DRY = ("tests/backends/cuda/test_attention_plan.py",)
_ELSEWHERE = ("compile", "test_warm_up")
"""Tests whose names say so need no GPU."""
_AT_ONCE = 4
"""Processes, each of which compiles what its tests need."""
STORY_PROMPT = "Once upon a time"


def test_files(root: Path) -> list[str]:
    """Files of tests that a GPU is needed for, within ``root``."""
    files = [path for folder in TESTS for path in sorted((root / folder).glob("test_*.py"))]
    kept = (path for path in files if not any(name in path.name for name in _ELSEWHERE))
    return [str(path.relative_to(root)) for path in kept]


Counts = tuple[int, int, int, list[str]]
"""Passed, failed and skipped tests, and the failures."""


def run_tests(root: Path, file: str, report: Path, timeout_s: float) -> Counts:
    """Run one file of tests of the source tree ``root``.

    ``report``: a file to write. Raises RuntimeError where no test ran, and
    ``subprocess.TimeoutExpired``.
    """
    command = [sys.executable, "-m", "pytest", file, f"--junitxml={report}", "-n0"]
    if find_spec("xdist") is None:
        command.pop()
    done = subprocess.run(
        command, cwd=root, capture_output=True, text=True, timeout=timeout_s, check=False
    )
    counts = read_junit(report.read_text(encoding="utf-8")) if report.exists() else None
    if counts is None or sum(counts[:3]) == 0:
        said = (done.stderr.strip() or done.stdout.strip() or "nothing").splitlines()[-1]
        raise RuntimeError(f"no test ran; pytest ended with {done.returncode} and said: {said}")
    return counts


def read_junit(text: str) -> tuple[int, int, int, list[str]]:
    """Passed, failed and skipped tests of a JUnit report; each failure's name and reason."""
    passed = skipped = 0
    failures = []
    for case in ElementTree.fromstring(text).iter("testcase"):
        name = f"{case.get('classname')}.{case.get('name')}"
        failed = [case.find(kind) for kind in ("failure", "error")]
        reasons = [element.get("message") or "" for element in failed if element is not None]
        if reasons:
            reason = (reasons[0].splitlines() or ["no reason"])[0]
            failures.append(without_folders(f"{name}: {reason}"))
        elif case.find("skipped") is not None:
            skipped += 1
        else:
            passed += 1
    return passed, len(failures), skipped, failures


def published_text(source: str) -> str:
    """The quoted lines of a model's SOURCE.md."""
    lines = source.splitlines()
    return "\n".join(line.removeprefix("> ") for line in lines if line.startswith("> "))


def compare_story(expected: str, text: str) -> str:
    """``as published``, or where ``text`` leaves the published beginning."""
    if len(expected) == 0:
        return "not run: SOURCE.md quotes no text"
    if text.startswith(expected):
        return "as published"
    same = next((i for i, (a, b) in enumerate(zip(expected, text, strict=False)) if a != b), None)
    at = min(len(expected), len(text)) if same is None else same
    return f"differs after {at} of {len(expected)} characters: {text[at : at + 40]!r}"


def print_story(model: Path | None, backend: str = "cuda", tokens: int = 256) -> str:
    """What became of the text that the author of ``model`` published for STORY_PROMPT."""
    if model is None:
        return "not run: no --stories folder was given"
    from penstock import LLM, SamplingParams

    expected = published_text((model / "SOURCE.md").read_text(encoding="utf-8"))
    with LLM(str(model), backend=backend, max_num_seqs=1, max_num_batched_tokens=16) as llm:
        params = SamplingParams(temperature=0, max_tokens=tokens)
        (output,) = llm.generate(STORY_PROMPT, params)
    return compare_story(expected, STORY_PROMPT + output.outputs[0].text)


def run(
    root: Path,
    reports: Path,
    stories: Path | None,
    timeout_s: float,
    send: Callable[[Checks], None],
    files: Sequence[str] | None = None,
) -> Checks:
    """The story, and then ``files`` of tests (default: all), some at once; what one does not end
    counts as a failure. ``send`` gets what there is after each. Raises what loading a model raises.
    """
    start = time.monotonic()
    story = print_story(stories)
    passed = failed = skipped = 0
    failures: list[str] = []

    def so_far() -> Checks:
        return Checks(
            passed=passed,
            failed=failed,
            skipped=skipped,
            seconds=time.monotonic() - start,
            failures=list(failures),
            story=story,
        )

    def one(file: str) -> Counts:
        left = timeout_s - (time.monotonic() - start)
        try:
            return run_tests(root, file, reports / f"{Path(file).stem}.xml", max(left, 0.1))
        except subprocess.TimeoutExpired:
            return 0, 1, 0, [f"{file}: the time was over"]
        except RuntimeError as error:
            return 0, 1, 0, [without_folders(f"{file}: {error}")]

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        waiting = [pool.submit(one, file) for file in files or test_files(root)]
        for done in as_completed(waiting):
            more = done.result()
            passed, failed, skipped = passed + more[0], failed + more[1], skipped + more[2]
            failures += more[3]
            send(so_far())
    return so_far()
