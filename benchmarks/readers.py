"""Whether other readers find in quantized checkpoints what Penstock does.

    python benchmarks/readers.py MODEL... --out DIR --text FILE \\
        --transformers PYTHON --bitsandbytes PYTHON --gptqmodel PYTHON

Each MODEL is quantized in every way that one of the readers knows, and the reader computes the
logits of some tokens in float32, as the reference backend does. The table has the largest
difference of them, as a part of the row's largest logit, beside the largest difference that
rounding the model has made: a reader that took a scale or an order of codes for another would be as
far off as that. Weights alone are compared: what formats say of activations is left out. Each
PYTHON is of an environment with that package (``reader_logits.py``).
"""

from __future__ import annotations

import argparse
import io
import json
import subprocess
import sys
from array import array
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from penstock.backends.registry import backend
from penstock.cache.geometry import BLOCK_SIZE
from penstock.cli import main as cli
from penstock.interface.executor import Limits, run
from penstock.interface.step_builder import build_step
from penstock.plan.lower import lower
from penstock.quant import Quantization
from penstock.weights.checkpoint import open_weights
from penstock.weights.model_folder import load_model_spec

F32 = NDArray[np.float32]

TOKENS: Final = 48
READERS: Final = ("transformers", "bitsandbytes", "gptqmodel")


@dataclass(frozen=True)
class Case:
    """A way of quantizing, and who reads it."""

    words: str
    """Options of ``penstock quantize``."""
    reader: str


GROUP: Final = "--group-size 32"
CASES: Final = (
    Case(f"--bits 4 {GROUP}", "transformers"),
    Case("--bits 4 --group-size row", "transformers"),
    Case(f"--bits 4 --asymmetric {GROUP}", "transformers"),
    Case(f"--bits 8 {GROUP}", "transformers"),
    Case(f"--bits 3 {GROUP}", "transformers"),
    Case(f"--bits 2 {GROUP}", "transformers"),
    Case(f"--method gptq --bits 4 --act-order group {GROUP}", "transformers"),
    Case("--method smoothquant", "transformers"),
    Case("--method mxfp4", "transformers"),
    Case("--method nvfp4", "transformers"),
    Case("--method fp8 --scales channel", "transformers"),
    Case("--method fp8 --scales tensor", "transformers"),
    Case("--method nf4", "bitsandbytes"),
    Case("--method nf4 --no-double-quantization", "bitsandbytes"),
    Case("--method fp4", "bitsandbytes"),
    Case(f"--bits 4 --format gptq {GROUP}", "gptqmodel"),
    Case(f"--bits 4 --format gptq --asymmetric {GROUP}", "gptqmodel"),
    Case(f"--bits 8 --format gptq {GROUP}", "gptqmodel"),
    Case(f"--bits 3 --format gptq {GROUP}", "gptqmodel"),
    Case(f"--bits 2 --format gptq {GROUP}", "gptqmodel"),
    Case(f"--method gptq --bits 4 --format gptq --act-order group {GROUP}", "gptqmodel"),
    Case(f"--bits 4 --format awq {GROUP}", "gptqmodel"),
    Case(f"--bits 4 --format awq --asymmetric {GROUP}", "gptqmodel"),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("models", type=Path, nargs="+", metavar="MODEL")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--text", type=Path, required=True, help="what methods are calibrated on")
    parser.add_argument("--only", help="cases whose options have this in them")
    for name in READERS:
        parser.add_argument(f"--{name}", type=Path, metavar="PYTHON")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    print("| model | `penstock quantize` | read by | differs by | rounding |")
    print("|---|---|---|--:|--:|")
    said: dict[str, str] = {}
    wrong = 0
    for model in options.models:
        for reader in READERS:
            python = getattr(options, reader)
            own = [each for each in CASES if each.reader == reader]
            own = [each for each in own if options.only is None or options.only in each.words]
            if python is None or not own:
                continue
            lines, versions = compared(model, own, python, options.out, options.text)
            for line, fits in lines:
                print(line, flush=True)
                wrong += not fits
            said |= versions
    print(", ".join(f"{name} {number}" for name, number in said.items()))
    return 1 if wrong else 0


def compared(
    model: Path, cases: Sequence[Case], python: Path, out: Path, text: Path
) -> tuple[list[tuple[str, bool]], dict[str, str]]:
    """The lines of cases of one reader, each with whether it agrees, and the versions of what read
    them."""
    vocab = load_model_spec(model).vocab_size
    tokens = np.random.default_rng(0).integers(0, vocab, TOKENS)
    np.save(out / "tokens.npy", tokens)
    folders: dict[Case, Path] = {}
    lines: list[tuple[str, bool]] = []
    for case in cases:
        folder = out / f"{model.name} {case.words}".replace(" ", "_").replace("--", "")
        refused = "" if folder.exists() else written(model, case, folder, text)
        if refused:
            lines.append((f"{start(model, case)} | not written: {refused} | |", False))
        else:
            folders[case] = folder
    by = "gptqmodel" if cases[0].reader == "gptqmodel" else "transformers"
    script = Path(__file__).with_name("reader_logits.py")
    paths = [python, script, out, out / "tokens.npy", *folders.values()]
    command = [*map(str, paths), "--by", by]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{python} {script}: {done.stderr[-2000:]}")
    exact = logits(model, tokens)
    for case, folder in folders.items():
        found = np.load(out / f"{folder.name}.npz")
        about = json.loads(str(found["said"]))
        if "error" in about:
            why = about["error"][:160].replace("|", "/")
            lines.append((f"{start(model, case)} | not read: {why} | |", False))
            continue
        own = logits(folder, tokens)
        apart, rounding = furthest(found["logits"], own), furthest(exact, own)
        modules = ", ".join(about["modules"])
        line = f"{start(model, case)} ({modules}) | {apart:.1e} | {rounding:.1e} |"
        lines.append((line, apart < 0.1 * rounding))
    return lines, json.loads((out / "versions.json").read_text())


def start(model: Path, case: Case) -> str:
    return f"| {model.name} | `{case.words}` | {case.reader}"


def written(model: Path, case: Case, folder: Path, text: Path) -> str:
    """Quantize; what is said where that is refused."""
    words = [str(model), *case.words.split(), "--out", str(folder)]
    if {"gptq", "smoothquant"} & set(case.words.split()[1:2]):
        words += ["--calibration", str(text), "--samples", "8", "--sample-length", "128"]
    said = io.StringIO()
    with redirect_stderr(said), redirect_stdout(io.StringIO()):
        code = cli.main(["quantize", *words])
    return last(said.getvalue()) if code else ""


def last(text: str) -> str:
    lines = [line for line in text.strip().splitlines() if line.strip()]
    return lines[-1][:200].replace("|", "/") if lines else "it said nothing"


def furthest(one: F32, other: F32) -> float:
    """The largest difference of a logit, as a part of the row's largest."""
    sizes = np.abs(other).max(axis=1, keepdims=True)
    return float((np.abs(one - other) / sizes).max())


def logits(folder: Path, tokens: NDArray[np.int64]) -> F32:
    """Those of the reference backend, in float32."""
    spec = load_model_spec(folder)
    plan = lower(spec, "float32", quantization=Quantization(activations=False))
    blocks = -(-len(tokens) // BLOCK_SIZE)
    groups = len(plan.kv_groups)
    limits = Limits(
        num_blocks=blocks * groups,
        max_tokens=len(tokens),
        max_logit_rows=len(tokens),
        max_sequences=1,
        threads=1,
        cpus=(),
        num_states=0,
    )
    weights = open_weights(folder, spec, plan.weights, "float32")
    executor = backend("reference").bind(plan, weights, limits)
    step = build_step(
        [array("i", tokens.tolist())],
        [0],
        [[array("i", range(g * blocks, (g + 1) * blocks))] for g in range(groups)],
        num_logits=[len(tokens)],
        num_hidden=[0],
    )
    found = run(executor, step).logits.copy()
    executor.close()
    return found


if __name__ == "__main__":
    sys.exit(main())
