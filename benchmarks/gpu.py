"""Check and time Penstock on this machine's NVIDIA GPU, every figure beside its goal.

    python benchmarks/gpu.py
    python benchmarks/gpu.py --quick --only decode,prefill
    python benchmarks/gpu.py --stories FOLDER

Runs the tests of the GPU's kernels, measures what the device can do, then a model of a published
shape with random weights, and transformers on the same requests. Results go to
benchmarks/gpu/results as JSON and Markdown. Without a GPU nothing is written, and the exit code
is 2; it is 1 where a goal is missed or a job failed.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import msgspec
from gpu.jobs import MEASURES, select
from gpu.shape import SHAPES, choose_shape
from gpu.told import told_command
from gpu.workload import Size

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
        help="jobs that have not begun by then are left out (default: %(default)g)",
    )
    parser.add_argument(
        "--shape", choices=SHAPES, help="of configs/ (default: the largest that fits)"
    )
    parser.add_argument(
        "--stories", type=Path, metavar="FOLDER", help="a model with the text published for it"
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

        order, output = args.worker
        output.write_bytes(msgspec.json.encode(work(Order.decode(order.read_bytes()))))
        return 0
    measures = select(args.only)
    if args.stories is not None and not (args.stories / "SOURCE.md").is_file():
        raise ConfigError(f"--stories {args.stories}: there is no SOURCE.md with a published text")
    if args.minutes <= 0:
        raise ConfigError("--minutes must be positive")
    try:
        require_gpu(find_gpu(detect().memory_available))
    except ConfigError as error:
        print(f"gpu.py: there is no GPU to measure: {error}", file=sys.stderr)
        return NO_GPU
    # What imports torch comes after the check that says what is missing.
    from gpu.device import Watch, describe, device_id
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
        command=told_command("benchmarks/gpu.py", sys.argv[1:] if arguments is None else arguments),
    )
    identity = device_id()
    places = Places(root=HERE.parent, script=Path(__file__).resolve(), results=RESULTS)
    return run(wanted, device, places, lambda: Watch(identity))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except PenstockError as error:
        sys.exit(f"error: {error}")
