"""Exports a checkpoint folder as ONNX for onnxruntime-genai by its model builder; runs in its
environment.

    python onnx_model.py CHECKPOINT OUT_DIR int4 int8

Blocks of 32, symmetric, with accuracy level 4: activations are rounded to int8 and products are
of integers, the fastest that its CPU kernels have.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("precisions", nargs="+", choices=("int4", "int8"))
    args = parser.parse_args()
    for precision in args.precisions:
        target, partial = args.out / precision, args.out / f"{precision}.partial"
        cache = args.out / "cache"
        shutil.rmtree(partial, ignore_errors=True)
        subprocess.run(
            [sys.executable, "-m", "onnxruntime_genai.models.builder", "-i", str(args.checkpoint)]
            + ["-o", str(partial), "-p", precision, "-e", "cpu", "-c", str(cache)]
            + ["--extra_options", "accuracy_level=4", "block_size=32", "hf_token=false"],
            check=True,
        )
        shutil.rmtree(cache, ignore_errors=True)
        partial.rename(target)


if __name__ == "__main__":
    main()
