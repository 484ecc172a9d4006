"""Whether two versions give the same outputs, bit by bit, at every precision of the CPU.

    python benchmarks/same_bits.py record before.json [--models demo 1b FOLDER ...]
    python benchmarks/same_bits.py compare before.json after.json

``record`` runs the same requests with each model in each setup (types, schemes, kinds of
speculation) through :class:`penstock.LLM` and writes every output with its digest: a record for
each request, one a line, with what it ran on. ``compare`` names every request whose outputs differ
or that only one file has, and exits 1 if there is one. It uses the public API alone, so it runs
on any version: put that version's ``src`` on PYTHONPATH.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from same_bits_workload import Model, Request, requests_of

import penstock
from penstock import LLM, RequestOutput
from penstock.errors import ConfigError, ModelError

CONFIGS = Path(__file__).parent / "configs"
DEFAULT_MODELS = ("demo", "1b")


@dataclass(frozen=True)
class Record:
    """What one request gave, and what it ran on."""

    model: str
    setup: str
    request: str
    digest: str
    outputs: Any
    isa: str
    threads: int
    versions: dict[str, str]

    @property
    def place(self) -> tuple[str, str, str]:
        return self.model, self.setup, self.request

    @property
    def machine(self) -> str:
        versions = ", ".join(" ".join(pair) for pair in self.versions.items())
        return f"{self.isa}, {self.threads} threads, {versions}"


def recorded(model: Model, setup: str, options: dict[str, Any], threads: int) -> Iterator[Record]:
    """Run the workload, all requests together and some again alone, and yield what each gave.

    Yields one record of the request "start" where the engine refuses the setup.
    """
    versions = {
        "penstock": f"{penstock.__version__} {_commit()}",
        "numpy": np.__version__,
        "python": sys.version.split()[0],
    }

    def record(request: str, outputs: Any) -> Record:
        digest = hashlib.sha256(json.dumps(outputs).encode()).hexdigest()[:16]
        return Record(model.name, setup, request, digest, outputs, _isa(), threads, versions)

    config = _config(model)
    chosen = {
        "dtype": "bfloat16",
        "load_format": "dummy" if model.dummy else "auto",
        "max_model_len": min(512, config["max_position_embeddings"]),
        "max_num_batched_tokens": 64,
        "kv_cache_bytes": 1 << 26,
    } | options
    try:
        llm = LLM(model.path, **chosen, backend="cpu", threads=threads, artifact=False)
    except (ConfigError, ModelError) as error:
        yield record("start", {"refused": str(error)})
        return
    with llm:
        has_text = (Path(llm.config.tokenizer_path) / "tokenizer.json").exists()
        workload = requests_of(model, config["vocab_size"], has_text)
        texts = [request for request in workload if request.pooling is None]
        together = llm.generate([_prompt(r) for r in texts], [r.params for r in texts])
        for request, output in zip(texts, together, strict=True):
            yield record(request.name, _shown(output))
        for request in texts[:: 9 if model.big else 3]:
            (output,) = llm.generate(_prompt(request), request.params)
            yield record(f"{request.name}, again", _shown(output))
        for request in workload:
            if request.pooling is not None and "speculative" not in options:
                (embedding,) = llm.embed(_prompt(request), request.pooling)
                yield record(request.name, [float(x) for x in embedding.embedding])


def compare(before: list[Record], after: list[Record]) -> list[str]:
    """A line for each request whose outputs differ or that is in one of the two only."""
    old, new = ({record.place: record for record in side} for side in (before, after))
    lines = []
    for place in {**old, **new}:
        name = " / ".join(place)
        if place not in new or place not in old:
            lines.append(f"{name}: only in the {'first' if place in old else 'second'}")
        elif old[place].digest != new[place].digest:
            where = _first_difference(old[place].outputs, new[place].outputs)
            lines.append(f"{name}: {where or 'digests alone differ'}")
    return lines


def _first_difference(a: Any, b: Any, path: str = "") -> str | None:
    """Where two outputs differ first, and how; None if they do not."""
    if isinstance(a, dict) and isinstance(b, dict) and a.keys() == b.keys():
        parts = ((a[key], b[key], f"{path}.{key}") for key in a)
    elif isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        parts = ((x, y, f"{path}[{i}]") for i, (x, y) in enumerate(zip(a, b, strict=True)))
    else:
        one, other = json.dumps(a), json.dumps(b)
        return None if one == other else f"{path.lstrip('.')} {one:.100} -> {other:.100}"
    return next((found for part in parts if (found := _first_difference(*part))), None)


def _shown(output: RequestOutput) -> dict[str, Any]:
    """Everything of an output that must not change; floats are written so that they read back."""
    return {
        "error": output.error,
        "prompt_logprobs": _logprobs(output.prompt_logprobs),
        "outputs": [
            {
                "token_ids": list(each.token_ids),
                "text": each.text,
                "finish_reason": each.finish_reason,
                "stop_reason": each.stop_reason,
                "logprobs": _logprobs(each.logprobs),
            }
            for each in output.outputs
        ],
    }


def _logprobs(positions: Any) -> Any:
    """``[position][candidate]`` of token, log-probability, rank; None where none were asked for."""
    if positions is None:
        return None
    return [
        position and [[token, value.logprob, value.rank] for token, value in position.items()]
        for position in positions
    ]


def _prompt(request: Request) -> Any:
    text = isinstance(request.prompt, str)
    return request.prompt if text else {"prompt_token_ids": request.prompt}


def _config(model: Model) -> dict[str, Any]:
    folder = Path(model.path) if model.path else penstock.demo_model_path()
    config: dict[str, Any] = json.loads((folder / "config.json").read_text())
    return config


def _isa() -> str:
    """The native variant that is loaded."""
    loaded = (name.partition("._native_")[2] for name in sys.modules if "._native_" in name)
    return next(loaded, "none")


def _commit() -> str:
    """What the package that runs was checked out from; empty where git does not know."""
    folder = Path(importlib.import_module("penstock").__file__ or ".").parent
    command = ["git", "-C", str(folder), "describe", "--always", "--dirty", "--exclude=*"]
    found = subprocess.run(command, capture_output=True, text=True)
    return found.stdout.strip()


def _model(name: str, folder: Path, layers: int) -> Model:
    """The model by its name on the command line; ``folder`` is for configurations made here."""
    if name == "demo":
        return Model("demo", "")
    if name == "1b":
        config = json.loads((CONFIGS / "llama-3.2-1b" / "config.json").read_text())
        path = folder / "1b"
        path.mkdir()
        (path / "config.json").write_text(json.dumps(config | {"num_hidden_layers": layers}))
        return Model(f"1b-{layers}-layers", str(path), dummy=True, big=True)
    path = Path(name).resolve()
    if not (path / "config.json").exists():
        raise SystemExit(f"{name} is neither demo, nor 1b, nor a folder with a config.json")
    return Model(path.name, str(path), dummy=not any(path.glob("*.safetensors")))


def _record(args: argparse.Namespace) -> int:
    records: list[Record] = []
    with tempfile.TemporaryDirectory() as folder:
        for model in [_model(name, Path(folder), args.layers) for name in args.models]:
            setups = model.setups()
            for unknown in set(args.setups or ()).difference(setups):
                print(f"{model.name} has no setup {unknown!r}; it has: {', '.join(setups)}")
            for setup in [s for s in setups if args.setups is None or s in args.setups]:
                start = time.perf_counter()
                found = list(recorded(model, setup, setups[setup], args.threads))
                records += found
                whole = hashlib.sha256("".join(r.digest for r in found).encode()).hexdigest()[:16]
                refused = [r.outputs["refused"] for r in found if r.request == "start"]
                print(
                    f"{model.name:<14} {setup:<42} {whole}  {len(found):>2} requests  "
                    f"{found[0].machine}  {time.perf_counter() - start:.1f} s"
                    + "".join(f"  refused: {why}" for why in refused),
                    flush=True,
                )
    lines = ",\n".join(json.dumps(asdict(record)) for record in records)
    args.file.write_text(f"[\n{lines}\n]\n")
    return 0 if records else 1


def _compare(args: argparse.Namespace) -> int:
    before, after = (
        [Record(**record) for record in json.loads(file.read_text())]
        for file in (args.before, args.after)
    )
    for name, side in (("first", before), ("second", after)):
        for machine in sorted({record.machine for record in side}):
            print(f"{name}: {machine}")
    lines = compare(before, after)
    for line in lines:
        print(line)
    print(f"{len(before)} and {len(after)} outputs, {len(lines)} differences")
    return 1 if lines or not before else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(required=True)
    record = commands.add_parser("record", help="write what every request gives")
    record.add_argument("file", type=Path)
    record.add_argument(
        "--models",
        nargs="+",
        default=DEFAULT_MODELS,
        help="demo, 1b (widths of Llama 3.2 1B, random weights), or checkpoint folders; a folder "
        "without weights is filled with random ones",
    )
    record.add_argument("--layers", type=int, default=2, help="layers of 1b")
    record.add_argument("--setups", nargs="+", metavar="NAME", help="only these, by name")
    record.add_argument("--threads", type=int, default=2, help="no output depends on it")
    record.set_defaults(run=_record)
    compared = commands.add_parser("compare", help="name what differs; exits 1 if anything does")
    compared.add_argument("before", type=Path)
    compared.add_argument("after", type=Path)
    compared.set_defaults(run=_compare)
    args = parser.parse_args()
    code: int = args.run(args)
    return code


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    raise SystemExit(main())
