"""Check and time Penstock on this machine's NVIDIA GPU, every figure beside its goal.

    python benchmarks/gpu.py
    python benchmarks/gpu.py --quick --only decode,prefill
    python benchmarks/gpu.py --stories FOLDER

Measures what the device can do, then a model of a published shape with random weights, and
transformers on the same requests; runs the tests of the GPU's kernels last. Kernels are compiled
ahead, by all cores. What is measured is said at once, a line of JSON each, and in the end written
to benchmarks/gpu/results as JSON and Markdown. Without a GPU nothing is written, and the exit code
is 2; it is 1 where a goal is missed or a job failed.

It runs from a source tree (PYTHONPATH=src) with torch, triton, numpy, msgspec and ml_dtypes; the
native library of the CPU is not needed, pytest and transformers only for some of the jobs.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

import msgspec
from gpu.jobs import MEASURES, select
from gpu.shape import SHAPES, choose_shape
from gpu.workload import Size

from penstock.bench.redact import redacted_command
from penstock.errors import ConfigError, PenstockError
from penstock.gpu import GpuSearch, find_gpu
from penstock.hardware import detect

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "gpu" / "results"
NO_GPU = 2


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only", metavar="NAME,...", help=f"some of {', '.join(MEASURES)} (default: all)"
    )
    parser.add_argument("--quick", action="store_true", help="fewer repeats and shorter runs")
    parser.add_argument(
        "--minutes",
        type=float,
        default=20.0,
        help="then the job that runs is ended, others are left out (default: %(default)g)",
    )
    parser.add_argument(
        "--shape", choices=SHAPES, help="of configs/ (default: the largest that fits)"
    )
    parser.add_argument(
        "--stories", type=Path, metavar="FOLDER", help="a model with the text published for it"
    )
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="everything once, with a tiny model on the CPU: measures nothing, needs no GPU",
    )
    parser.add_argument(
        "--results", type=Path, default=RESULTS, metavar="FOLDER", help="(default: gpu/results)"
    )
    parser.add_argument("--worker", nargs=2, type=Path, help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def require_gpu(search: GpuSearch) -> None:
    """Raises ConfigError, with the cause and the fix, where no GPU can be measured."""
    if search.gpu is None:
        raise ConfigError(
            search.problem
            or "no NVIDIA driver is found on this machine; install it, or, in a container, pass "
            "the GPU through (docker run --gpus all)"
        )
    if search.gpu.interpreted:
        raise ConfigError(
            "TRITON_INTERPRET is set, so that kernels would run on the CPU; unset it to measure "
            "a GPU"
        )


def main(arguments: list[str] | None = None) -> int:
    args = parse(arguments)
    if args.worker is not None:
        from gpu.worker import Order, work

        asked, output = args.worker
        order = Order.decode(asked.read_bytes())

        def report(result: msgspec.Struct) -> None:
            """Say it, and keep it: whatever ends this process, it was measured."""
            print(msgspec.json.encode({order.job.name: result}).decode(), flush=True)
            written = output.with_suffix(".part")
            written.write_bytes(msgspec.json.encode(result))
            written.replace(output)

        report(work(order, report))
        return 0
    measures = select(args.only)
    if args.stories is not None and not (args.stories / "SOURCE.md").is_file():
        raise ConfigError(f"--stories {args.stories}: there is no SOURCE.md with a published text")
    if args.minutes <= 0:
        raise ConfigError("--minutes must be positive")
    if args.dry_run:
        return dry_run(measures, args)
    try:
        require_gpu(find_gpu(detect().memory_available))
    except ConfigError as error:
        print(f"gpu.py: there is no GPU to measure: {error}", file=sys.stderr)
        return NO_GPU
    # What imports torch comes after the check that says what is missing.
    from gpu.device import DeviceMonitor, describe, device_id
    from gpu.run import Places, Run, run

    device = describe()
    configs = HERE / "configs"
    wanted = Run(
        measures=measures,
        size=Size().quick() if args.quick else Size(),
        model=configs / args.shape
        if args.shape
        else choose_shape(configs, device.memory_free_bytes),
        stories=args.stories,
        seconds=args.minutes * 60,
        command=redacted_command(
            "benchmarks/gpu.py", sys.argv[1:] if arguments is None else arguments
        ),
    )
    identity = device_id()
    places = Places(root=HERE.parent, script=Path(__file__).resolve(), results=args.results)
    return run(wanted, device, places, lambda: DeviceMonitor(identity))


def dry_run(measures: tuple[str, ...], args: argparse.Namespace) -> int:
    """Every job on the CPU. What it measured is written below ``--results``, if that was given."""
    from contextlib import nullcontext

    from gpu.device import DeviceMonitor, no_device
    from gpu.run import Places, Run, run

    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder) if args.results == RESULTS else args.results
        wanted = Run(
            measures=measures,
            size=Size().smallest(),
            model=HERE / "configs" / "tiny",
            stories=None,
            seconds=args.minutes * 60,
            command=redacted_command("benchmarks/gpu.py", ["--dry-run"]),
            dry=True,
        )
        places = Places(root=HERE.parent, script=Path(__file__).resolve(), results=results)
        run(wanted, no_device(), places, lambda: nullcontext(DeviceMonitor("none")))
        (document,) = (json.loads(path.read_bytes()) for path in results.glob("*.json"))
        problems = document["results"]["problems"]
        return 1 if problems else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except PenstockError as error:
        sys.exit(f"error: {error}")
