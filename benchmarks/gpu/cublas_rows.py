"""Whether cuBLAS gives a row of a product the same bits whatever the number of rows, and how fast.

    python benchmarks/gpu/cublas_rows.py
    python benchmarks/gpu/cublas_rows.py --default-workspace --fp16

With the smallest workspaces, cuBLAS cannot split K, the one way in which its algorithms are known
to add a row's products in another order for another number of rows. For the five matrices of Llama
8B's shape, rows of ``torch.mm`` in bfloat16 with float32 results are compared with those of the
largest number of rows, bit by bit, and times told beside those of Penstock's own products, which
promise it. A line of JSON each; the exit code is 1 where a row differs. Takes one to two minutes on
a GPU; where there is none it shows on the CPU that it runs, with small matrices and without
Penstock's products.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

ROWS = (1, 2, 8, 16, 17, 32, 64, 65, 128, 256, 2048)
SHAPES = {  # columns of the result, and of what is multiplied
    "qkv": (6144, 4096),
    "o": (4096, 4096),
    "gate_up": (28672, 4096),
    "down": (4096, 14336),
    "head": (128256, 4096),
}
SMALL = {"qkv": (96, 64), "down": (64, 224)}
_WORKSPACES = {"CUBLAS_WORKSPACE_CONFIG": ":16:8", "CUBLASLT_WORKSPACE_SIZE": "1"}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=2.0, help="(default: %(default)g)")
    parser.add_argument(
        "--default-workspace", action="store_true", help="let cuBLAS split K, to see the difference"
    )
    parser.add_argument("--fp16", action="store_true", help="float16 instead of bfloat16")
    args = parser.parse_args(arguments)
    end = time.monotonic() + args.minutes * 60
    if not args.default_workspace:
        os.environ.update(_WORKSPACES)  # read when cuBLAS starts
    import torch

    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda", 0) if on_gpu else torch.device("cpu")
    dtype = torch.float16 if args.fp16 else torch.bfloat16
    say(
        device=torch.cuda.get_device_name(device) if on_gpu else "cpu",
        torch=torch.__version__,
        cuda=torch.version.cuda,
        workspaces={name: os.environ.get(name) for name in _WORKSPACES},
        dtype=str(dtype).removeprefix("torch."),
    )
    equal = True
    for name, (n, k) in (SHAPES if on_gpu else SMALL).items():
        equal &= compare(name, n, k, dtype, device, end)
    say(all_rows_equal=equal)
    return 0 if equal else 1


def compare(
    name: str, n: int, k: int, dtype: torch.dtype, device: torch.device, end: float
) -> bool:
    """Whether rows are the same at every number of rows, as far as there was time to look."""
    import torch

    generator = torch.Generator(device=device).manual_seed(0)

    def normal(rows: int, columns: int) -> torch.Tensor:
        return torch.randn(rows, columns, device=device, generator=generator).to(dtype)

    x, w = normal(max(ROWS), k), normal(n, k)
    own = own_product(w, max(ROWS))
    whole = multiply(x, w)
    whole_own = None if own is None else own(x)
    equal = True
    for rows in ROWS:
        if time.monotonic() > end:
            say(matrix=name, rows=rows, problem="the time was over")
            return False
        some = x[:rows]
        found = multiply(some, w)
        # Also rows that are elsewhere in x, beside others.
        shifted = multiply(x[-rows:], w)
        wrong = differ(found, whole[:rows]) | differ(shifted, whole[-rows:])
        figures: dict[str, object] = {"matrix": name, "n": n, "k": k, "rows": rows}
        figures["rows_that_differ"] = int(wrong.sum())
        figures["most"] = float((found - whole[:rows]).abs().max())
        out = torch.empty_like(found)
        taken = microseconds(lambda: multiply(some, w, out))  # noqa: B023
        figures["cublas_us"] = taken
        figures["bytes_per_s"] = w.nbytes / taken * 1e6
        figures["flops"] = 2 * rows * n * k / taken * 1e6
        if own is not None and whole_own is not None:
            figures["own_rows_that_differ"] = int(differ(own(some), whole_own[:rows]).sum())
            figures["own_us"] = microseconds(lambda: own(some))  # noqa: B023
        equal &= not figures["rows_that_differ"]
        say(**figures)
    return equal


def differ(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Which rows have other bits."""
    import torch

    return (x.view(torch.int32) != y.view(torch.int32)).any(dim=1)


def multiply(x: torch.Tensor, w: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    """``x @ w.T`` in float32."""
    import torch

    if x.device.type == "cpu":
        return torch.mm(x.float(), w.float().t(), out=out)
    if out is None:
        out = torch.empty(len(x), len(w), dtype=torch.float32, device=x.device)
    return torch.mm(x, w.t(), out_dtype=torch.float32, out=out)


def own_product(w: torch.Tensor, max_rows: int) -> Callable[[torch.Tensor], torch.Tensor] | None:
    """Penstock's product with ``w``; None where there is no GPU to compile it for."""
    if w.device.type == "cpu":
        return None
    import torch

    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "src"))
    from penstock.backends.cuda.matrix import Shape, make_matrix
    from penstock.backends.cuda.workspace import Workspace
    from penstock.models.spec import DType

    n, k = w.shape
    name: DType = "float16" if w.dtype == torch.float16 else "bfloat16"
    shape = Shape(n, k, max_rows)
    matrix = make_matrix(shape, name, None, Workspace(w.device), w.dtype)
    matrix.fill(0, w, "w")
    result = torch.empty(max_rows, n, dtype=torch.float32, device=w.device)

    def product(x: torch.Tensor) -> torch.Tensor:
        out = result[: len(x)]
        matrix.product(x, out, None, None)
        return out.clone() if len(x) == max_rows else out

    return product


def microseconds(call: Callable[[], object], repeats: int = 5) -> float:
    """The fastest of some means, by the device's clock."""
    import torch

    if not torch.cuda.is_available():
        start = time.perf_counter()
        call()
        return (time.perf_counter() - start) * 1e6
    call()
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    best = float("inf")
    for _ in range(repeats):
        first.record()
        for _ in range(10):
            call()
        last.record()
        last.synchronize()
        best = min(best, float(first.elapsed_time(last)) * 100)
    return best


def say(**figures: object) -> None:
    print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    sys.exit(main())
