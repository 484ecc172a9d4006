"""Backends bind a plan to a device.

``reference`` is NumPy, the oracle; ``cpu`` is native; ``cuda`` is NVIDIA GPUs, through Triton.
"""

from __future__ import annotations

from penstock.backends.support import check_runnable
from penstock.errors import ConfigError
from penstock.interface.executor import Executor, Limits
from penstock.interface.weights import PackedWeights, Packing, WeightSource
from penstock.plan.plan import Plan

__all__ = ["bind", "packing"]


def packing(backend: str) -> Packing | None:
    """The form in which the backend packs weights on this machine; None if it packs none.

    Raises ConfigError if it cannot run here.
    """
    if backend != "cpu":
        return None
    from penstock.backends.cpu.native import load

    module = load()
    return Packing(module.isa, module.packed_layout)


def bind(
    plan: Plan, weights: WeightSource | PackedWeights, backend: str, limits: Limits
) -> Executor:
    """An executor for ``plan`` on the named backend; raises ConfigError if it cannot run here.

    Only a backend with a :func:`packing` takes PackedWeights.
    """
    check_runnable(plan, backend)
    if backend == "reference":
        from penstock.backends.reference.executor import ReferenceExecutor

        if isinstance(weights, PackedWeights):
            raise ConfigError("the reference backend reads weights from a checkpoint alone")
        return ReferenceExecutor(plan, weights, limits)
    if backend == "cpu":
        from penstock.backends.cpu.bind import bind as bind_cpu

        return bind_cpu(plan, weights, limits)
    if backend == "cuda":
        from penstock.backends.cuda.bind import bind as bind_cuda

        return bind_cuda(plan, weights, limits)
    raise ConfigError(f"unknown backend {backend!r}; there are 'cpu', 'cuda' and 'reference'")
