"""Whether other readers find in quantized checkpoints what Penstock does.

    python benchmarks/readers.py MODEL... --out DIR --text FILE \\
        --transformers PYTHON --bitsandbytes PYTHON --gptqmodel PYTHON --llama.cpp PYTHON

Each MODEL is quantized in every way that one of the readers knows, and the reader computes the
logits of some tokens in float32, as the CPU's kernels do. The table has the largest
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
from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from penstock.backends.registry import backend
from penstock.cache.geometry import BLOCK_SIZE
from penstock.cli import main as cli
from penstock.config import EngineConfig
from penstock.interface.executor import Limits, run
from penstock.interface.step_builder import build_step
from penstock.plan.fuse import fuse
from penstock.plan.lower import lower
from penstock.quant import Quantization
from penstock.resolve.quantization import as_read
from penstock.tokenizer.load import load_tokenizer
from penstock.weights.checkpoint import open_weights
from penstock.weights.model_folder import load_model_spec

F32 = NDArray[np.float32]

TOKENS: Final = 48
LLAMA_CPP: Final = "llama.cpp"
READERS: Final = (
    "transformers",
    "compressed-tensors",
    "compressed-tensors-0.11",
    "bitsandbytes",
    "gptqmodel",
    LLAMA_CPP,
)
BY_READER: Final = {LLAMA_CPP: (LLAMA_CPP, f"{LLAMA_CPP}-floats")}
"""Readers of ``reader_logits.py``, where there is not one of the same name."""
CALIBRATED: Final = {"gptq", "smoothquant", "auto"}
ROUNDS_INPUTS: Final = LLAMA_CPP
"""The reader whose products are not of what was stored alone."""


@dataclass(frozen=True)
class Case:
    """A way of quantizing, and who reads it."""

    words: str
    """Options of ``penstock quantize``."""
    readers: tuple[str, ...]


GROUP: Final = "--group-size 32"
TRANSFORMERS: Final = ("transformers",)
DECODED: Final = (*TRANSFORMERS, "compressed-tensors")
FILES: Final = (*TRANSFORMERS, LLAMA_CPP)
SPARSE: Final = ("compressed-tensors-0.11",)
BNB: Final = ("bitsandbytes",)
GPTQ: Final = ("gptqmodel", LLAMA_CPP)
CASES: Final = (
    Case(f"--bits 4 {GROUP}", (*DECODED, LLAMA_CPP)),
    Case("--bits 4 --group-size 64", FILES),
    Case("--bits 4 --group-size row", FILES),
    Case(f"--bits 4 --asymmetric {GROUP}", (*DECODED, LLAMA_CPP)),
    Case(f"--bits 8 {GROUP}", FILES),
    Case("--bits 8 --group-size row", FILES),
    Case(f"--bits 3 {GROUP}", FILES),
    Case(f"--bits 3 --asymmetric {GROUP}", (*DECODED, LLAMA_CPP)),
    Case(f"--bits 2 {GROUP}", FILES),
    Case(f"--bits auto --budget 4.5 {GROUP}", TRANSFORMERS),
    Case(f"--method gptq --bits 4 --act-order group {GROUP}", TRANSFORMERS),
    Case(f"--bits 4 --embedding-bits 8 {GROUP}", FILES),
    Case("--method smoothquant", TRANSFORMERS),
    Case("--method mxfp4", FILES),
    Case("--method nvfp4", DECODED),
    Case("--method fp8 --scales channel", TRANSFORMERS),
    Case("--method fp8 --scales tensor", TRANSFORMERS),
    Case("--method fp8 --scales block", TRANSFORMERS),
    Case("--sparsity 2:4", TRANSFORMERS),
    Case(f"--sparsity 2:4 --bits 4 {GROUP}", FILES),
    Case("--sparsity 2:4 --format sparse-24-bitmask", SPARSE),
    Case("--sparsity 2:4 --bits 8 --group-size row --format sparse-24-bitmask", SPARSE),
    Case("--method nf4", BNB),
    Case("--method nf4 --no-double-quantization", BNB),
    Case("--method fp4", BNB),
    Case("--method fp4 --no-double-quantization", BNB),
    Case(f"--bits 4 --format gptq {GROUP}", GPTQ),
    Case(f"--bits 4 --format gptq --asymmetric {GROUP}", GPTQ),
    Case(f"--bits 8 --format gptq {GROUP}", GPTQ),
    Case(f"--bits 3 --format gptq {GROUP}", GPTQ),
    Case(f"--bits 2 --format gptq {GROUP}", GPTQ),
    Case(f"--method gptq --bits 4 --format gptq --act-order group {GROUP}", ("gptqmodel",)),
    Case(f"--bits 4 --format awq {GROUP}", GPTQ),
    Case(f"--bits 4 --format awq --asymmetric {GROUP}", GPTQ),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("models", type=Path, nargs="+", metavar="MODEL")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--text", type=Path, required=True, help="what methods are calibrated on")
    parser.add_argument("--only", help="cases whose options have this in them")
    parser.add_argument("--without", help="no cases whose options have this in them")
    for name in READERS:
        parser.add_argument(f"--{name}", type=Path, metavar="PYTHON", dest=name)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    pythons = {name: getattr(options, name) for name in READERS if getattr(options, name)}
    cases = [each for each in CASES if options.only is None or options.only in each.words]
    if options.without is not None:
        cases = [each for each in cases if options.without not in each.words]
    print("| model | `penstock quantize` | read by | differs by | rounding |")
    print("|---|---|---|--:|--:|")
    said: dict[str, str] = {}
    wrong = 0
    for path in options.models:
        model = Model.of(path, options.out, options.text)
        made = {each: model.made(each) for each in cases if set(each.readers) & set(pythons)}
        for name, python in pythons.items():
            own = {case: each for case, each in made.items() if name in case.readers}
            for by in BY_READER.get(name, (name,)):
                for line, fits in model.read(own, by, python):
                    print(line, flush=True)
                    wrong += not fits
                said |= json.loads((options.out / "versions.json").read_text())
    print(", ".join(f"{name} {number}" for name, number in said.items()))
    return 1 if wrong else 0


@dataclass(frozen=True)
class Made:
    """A quantized checkpoint, or why there is none."""

    folder: Path
    logits: F32
    """Those that Penstock computes."""
    refused: str = ""


@dataclass(frozen=True)
class Model:
    """A model that is quantized and read."""

    path: Path
    out: Path
    text: Path
    tokens: NDArray[np.int64]
    logits: F32
    """Those of the model as it is."""

    @classmethod
    def of(cls, path: Path, out: Path, text: Path) -> Model:
        """With the first tokens of the text, or others where there is no tokenizer."""
        spec = load_model_spec(path)
        if (path / "tokenizer.json").exists():
            tokenizer = load_tokenizer(path)
            tokens = np.array(tokenizer.encode(text.read_text("utf-8")[:4000], False)[:TOKENS])
        else:
            tokens = np.random.default_rng(0).integers(0, spec.vocab_size, TOKENS)
        return cls(path, out, text, tokens, logits(path, tokens))

    def made(self, case: Case) -> Made:
        """The model as the case has it, and what Penstock computes with it."""
        folder = self.out / f"{self.path.name} {case.words}".replace(" ", "_").replace("--", "")
        refused = "" if folder.exists() else written(self.path, case, folder, self.text)
        return Made(folder, self.logits if refused else logits(folder, self.tokens), refused)

    def read(self, cases: Mapping[Case, Made], by: str, python: Path) -> list[tuple[str, bool]]:
        """The lines of cases that a reader of ``reader_logits.py`` reads, each with whether it
        agrees."""
        lines: list[tuple[str, bool]] = []
        paths: dict[Case, Path] = {}
        for case, made in cases.items():
            path, refused = made.folder, made.refused
            if by.startswith(LLAMA_CPP) and not refused:
                path = made.folder.with_name(f"{made.folder.name}.gguf")
                words = [str(made.folder), str(path), "--type", "kept"]
                refused = "" if path.exists() else ran("convert", words)
            if refused:
                lines.append((f"{self._start(case, by)} | not written: {refused} | |", False))
            else:
                paths[case] = path
        if not paths:
            return lines
        np.save(self.out / "tokens.npy", self.tokens)
        script = Path(__file__).with_name("reader_logits.py")
        given = [python, script, self.out, self.out / "tokens.npy", *paths.values()]
        done = subprocess.run([*map(str, given), "--by", by], capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{python} {script}: {done.stderr[-2000:]}")
        for case, path in paths.items():
            found = np.load(self.out / f"{path.name}.npz")
            about = json.loads(str(found["said"]))
            if "error" in about:
                why = about["error"][:160].replace("|", "/")
                lines.append((f"{self._start(case, by)} | not read: {why} | |", False))
                continue
            own = cases[case].logits
            apart, rounding = furthest(found["logits"], own), furthest(self.logits, own)
            line = f"{self._start(case, by)} ({about['modules']}) | {apart:.1e} | {rounding:.1e} |"
            lines.append((line, apart < (0.1 if by == ROUNDS_INPUTS else 0.1 * rounding)))
        return lines

    def _start(self, case: Case, by: str) -> str:
        return f"| {self.path.name} | `{case.words}` | {by}"


def written(model: Path, case: Case, folder: Path, text: Path) -> str:
    """Quantize; what is said where that is refused."""
    words = [str(model), *case.words.split(), "--out", str(folder)]
    if words[2] in CALIBRATED:  # a method, or bits
        words += ["--calibration", str(text), "--samples", "8", "--sample-length", "128"]
    return ran("quantize", words)


def ran(command: str, words: Sequence[str]) -> str:
    """Run a command; what is said where that is refused."""
    said = io.StringIO()
    with redirect_stderr(said), redirect_stdout(io.StringIO()):
        code = cli.main([command, *words])
    return last(said.getvalue()) if code else ""


def last(text: str) -> str:
    lines = [line for line in text.strip().splitlines() if line.strip()]
    return lines[-1][:200].replace("|", "/") if lines else "it said nothing"


def furthest(one: F32, other: F32) -> float:
    """The largest difference of a logit, as a part of the row's largest."""
    sizes = np.abs(other).max(axis=1, keepdims=True)
    return float((np.abs(one - other) / sizes).max())


def logits(folder: Path, tokens: NDArray[np.int64]) -> F32:
    """Those of the CPU's kernels, in float32, of weights as they are stored."""
    cpu = backend("cpu")
    spec = as_read(load_model_spec(folder), EngineConfig(), cpu)
    plan = fuse(lower(spec, "float32", quantization=Quantization(activations=False)))
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
    executor = cpu.bind(plan, weights, limits)
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
