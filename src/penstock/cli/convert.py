"""Write a model to a GGUF file, in one step, for llama.cpp, Ollama, transformers and Penstock.

  penstock convert path/to/checkpoint model-q4_k_m.gguf --type q4_k_m
  penstock convert Qwen/Qwen3-0.6B . --type q8_0
  penstock convert model-f16.gguf model-q4_0.gguf --type q4_0

MODEL is the folder of a Hugging Face checkpoint, quantized or not, a hub id, or a GGUF file. OUT is
the file, or a folder, in which the file is called by the model's name and the type. The file is
there in full or not at all. docs/gguf.md says what is in which type.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Final, NoReturn

from penstock.cli.parser import UsageError
from penstock.errors import ConfigError

TYPES: Final = (
    "f32, f16, bf16, q8_0, q6_k, q5_k_m, q5_k_s, q4_k_m, q4_k_s, q5_1, q5_0, q4_1, q4_0, "
    "q3_k_l, q3_k_m, q3_k_s, q2_k"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="what is converted")
    parser.add_argument("out", metavar="OUT", help="the GGUF file to write, or a folder for it")
    parser.add_argument(
        "--type",
        "--outtype",
        dest="type",
        required=True,
        metavar="TYPE",
        help=f"one of {TYPES}, in letters of any case; q5_k, q4_k and q3_k are "
        "q5_k_m, q4_k_m and q3_k_m; or kept: what a checkpoint has quantized keeps its values, "
        "where GGUF has blocks for them",
    )
    parser.add_argument(
        "--imatrix",
        metavar="FILE",
        help="importance matrix of the model, by llama-imatrix: what columns count most",
    )
    parser.add_argument("--name", help="what the file calls the model (default: its own name)")
    parser.add_argument("--revision", help="branch, tag or commit of a hub id")
    parser.add_argument("--force", action="store_true", help="replace a file that is there")
    parser.add_argument(
        "--threads", type=int, metavar="N", help="threads that round (default: one per CPU)"
    )


def run(args: argparse.Namespace) -> int:
    from penstock.backends.cpu.encode import matrix_encoder
    from penstock.convert.conversion import convert
    from penstock.convert.importance_file import read_importance
    from penstock.convert.types import file_type
    from penstock.weights.hub import resolve_model_folder

    wanted = file_type(args.type)
    threads = args.threads if args.threads is not None else len(os.sched_getaffinity(0))
    if not 1 <= threads <= 1024:
        raise UsageError(f"argument --threads: must be 1 to 1024, not {threads}")
    if args.name is not None and not args.name.strip():
        raise UsageError("argument --name: is empty; leave it out for the model's own")
    started = time.perf_counter()
    importance = None if args.imatrix is None else read_importance(Path(args.imatrix).expanduser())
    model = resolve_model_folder(args.model, args.revision)
    name = _name(args.model, model)
    target = Path(args.out).expanduser()
    if target.is_dir():
        target = target / f"{args.name or name}-{wanted.name}.gguf".replace("/", "-")
    elif target.suffix != ".gguf":
        raise ConfigError(f"{target} must end in .gguf, or be a folder that is there")
    if target.exists() and model.is_file() and target.samefile(model):
        raise ConfigError(f"{target} is the model itself; name another file")
    with _terminable():
        done = convert(
            model,
            target,
            wanted,
            name=args.name,
            default_name=name,
            replace=args.force,
            importance=importance,
            encoder=matrix_encoder(),
            threads=threads,
            progress=_progress,
        )
    _clear()
    for note in done.notes:
        print(f"note: {note}", file=sys.stderr)
    types = ", ".join(f"{kind} x {count}" for kind, count in done.types.items())
    seconds = time.perf_counter() - started
    print(f"{done.path}: {done.size / 1e6:,.1f} MB in {seconds:.1f} s; {types}")
    return 0


def _name(asked: str, found: Path) -> str:
    """What a model is called: as on the hub, or as its folder is, or its file without the type."""
    from penstock.weights.gguf_file import open_gguf
    from penstock.weights.gguf_spec import gguf_name

    if found.is_file():
        return gguf_name(open_gguf(found).metadata, found)
    return found.resolve().name if Path(asked).expanduser().exists() else asked.rpartition("/")[2]


def _progress(done: int, total: int) -> None:
    if sys.stderr.isatty():
        sys.stderr.write(f"\r{done / 1e6:,.0f} of {total / 1e6:,.0f} MB")
        sys.stderr.flush()


def _clear() -> None:
    if sys.stderr.isatty():
        sys.stderr.write("\r" + " " * 40 + "\r")


@contextmanager
def _terminable() -> Iterator[None]:
    """Let SIGTERM unwind, so that what is half written goes away."""

    def stop(number: int, frame: FrameType | None) -> NoReturn:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
