"""Exports a checkpoint folder as OpenVINO IR by optimum-intel; runs in its environment.

    python openvino_ir.py CHECKPOINT OUT_DIR int4 int8 bf16

int4: symmetric, groups of 128, as NNCF recommends for CPUs, with the embedding and the output
matrix in int8 as is its default; int8: symmetric, a scale per row; bf16: IR has it as fp16, which
holds every weight of these checkpoints to 11 bits and more, and the engine computes in bf16.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from pathlib import Path

OPTIONS = {
    "int4": ["--weight-format", "int4", "--sym", "--group-size", "128", "--ratio", "1.0"]
    + ["--group-size-fallback", "adjust"],
    "int8": ["--weight-format", "int8", "--sym"],
    "bf16": ["--weight-format", "fp16"],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("precisions", nargs="+", choices=tuple(OPTIONS))
    args = parser.parse_args()
    for precision in args.precisions:
        target, partial = args.out / precision, args.out / f"{precision}.partial"
        shutil.rmtree(partial, ignore_errors=True)
        subprocess.run(
            [str(Path(sys.executable).with_name("optimum-cli")), "export", "openvino"]
            + ["-m", str(args.checkpoint), "--task", "text-generation-with-past"]
            + [*OPTIONS[precision], str(partial)],
            check=True,
        )
        partial.rename(target)


if __name__ == "__main__":
    main()
