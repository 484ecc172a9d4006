"""Compile the GPU's kernels for GPUs that need not be there.

    python benchmarks/compile_kernels.py
    python benchmarks/compile_kernels.py --capabilities 9.0 --seconds 600 --jobs 8
    PYTHONPATH=FOLDER_WITH_ANOTHER_TRITON:src python benchmarks/compile_kernels.py

All that engines of the models and options in gpu/kernels.py compile before their first request,
by the Triton that is installed, down to machine code. First come kernels that stand for others: one
of each kind for one GPU, and every kernel for each GPU. What is compiled is kept in Triton's cache,
and what ``--seconds`` leaves no time for is left out. The exit code is 1 where a kernel does not
compile, or takes more shared memory than there is, or where there was no time for all that stand
for others.
"""

from __future__ import annotations

import argparse
import json
import os
import sys

os.environ["TRITON_INTERPRET"] = "0"  # read when a kernel is imported


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        *("--capabilities", "-c"),
        nargs="+",
        metavar="9.0",
        default=["8.0", "8.9", "9.0", "10.0", "12.0"],
    )
    parser.add_argument("--cases", nargs="+", metavar="NAME", help="default: all of gpu/kernels.py")
    parser.add_argument("--seconds", type=float, default=600.0, help="(default: %(default)g)")
    parser.add_argument(
        "--brief", action="store_true", help="only the kernels that stand for others"
    )
    parser.add_argument("--jobs", "-j", type=int, default=2, help="(default: %(default)d)")
    parser.add_argument("--json", action="store_true", help="a line for each kernel")
    args = parser.parse_args(arguments)

    import triton
    from gpu.kernels import CASES, compile_all, enumerate_variants

    names = args.cases or list(CASES)
    unknown = [name for name in names if name not in CASES]
    if unknown:
        parser.error(f"--cases takes {', '.join(CASES)}, not {', '.join(unknown)}")
    capabilities = []
    for text in args.capabilities:
        major, _, minor = text.partition(".")
        if not (major.isdigit() and minor.isdigit()):
            parser.error(f"--capabilities takes numbers like 9.0, not {text!r}")
        capabilities.append((int(major), int(minor)))
    needed = enumerate_variants(names, capabilities)
    failed = done = 0
    chosen = list(needed)[: sum(needed.values())] if args.brief else list(needed)
    for outcome in compile_all(chosen, args.jobs, args.seconds):
        done += 1
        failed += outcome.problem is not None
        if args.json:
            print(json.dumps(outcome.figures()), flush=True)
        elif outcome.problem is not None:
            print(f"{outcome.variant}: {outcome.problem}", flush=True)
    left = max(0, sum(needed.values()) - done)
    print(
        f"Triton {triton.__version__}: {done} of {len(chosen)} kernels compiled, {failed} failed"
        + (f"; no time for {left} that stand for others: raise --seconds" if left else ""),
        file=sys.stderr if args.json else sys.stdout,
    )
    return 1 if failed or left else 0


if __name__ == "__main__":
    sys.exit(main())
