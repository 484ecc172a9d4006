"""The kernels that an engine compiles, found without a GPU.

A plan is assembled on torch's ``meta`` device, for a compute capability of one's choice, and
launches what the engine launches before its first request (``CudaExecutor.warm_up``). Triton asks a
hook before it compiles a kernel; here that notes what would be compiled, and says that it need not
be::

    for variant in variants(plan, limits, (9, 0)):
        variant.compile()
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime import jit

from penstock.backends.cuda.bind import assemble
from penstock.backends.cuda.capability import Capability
from penstock.backends.cuda.kernels.product_constants import ProductConstants
from penstock.interface.executor import Limits
from penstock.plan.plan import Plan

_DEVICES = itertools.count(1 << 20)
"""Triton remembers the kernels of a device by its number: each recording has one of its own."""

_SIZES = frozenset(("ROWS", "COLS", "DEPTH", "UNROLL", "STAGES", "SPLITS", "LENGTH"))


@dataclass(frozen=True, eq=False)
class Variant:
    """A kernel with all that it is compiled for."""

    name: str
    key: str
    """Constants, types and properties of arguments; equal where Triton would not compile again."""
    capability: Capability
    kernel: Any
    signature: dict[str, str]
    constants: dict[Any, Any]
    attributes: dict[Any, Any]
    options: dict[str, Any]

    def compile(self, **options: Any) -> Any:
        """What ``triton.compile`` makes of it. Raises what that raises."""
        source = ASTSource(self.kernel, self.signature, self.constants, self.attributes)
        target = _target(self.capability)
        return triton.compile(source, target=target, options=self.options | options)

    @property
    def kind(self) -> tuple[object, ...]:
        """Equal for kernels that differ in sizes of tiles and splits, or in the GPU, alone."""
        types = tuple(self.signature.values())
        named = [
            (key, value.without_sizes if isinstance(value, ProductConstants) else value)
            for key, value in self._named.items()
            if key not in _SIZES
        ]
        return (self.name, types, *named)

    @property
    def _named(self) -> dict[str, Any]:
        names = enumerate(self.kernel.arg_names)
        return {name: self.constants[at,] for at, name in names if (at,) in self.constants}

    def __str__(self) -> str:
        settings = ", ".join(f"{name}={value}" for name, value in self._named.items())
        return f"{self.name}[sm_{_number(self.capability)}; {settings}]"


def variants(plan: Plan, limits: Limits, capability: Capability) -> list[Variant]:
    """All that an engine of the fused ``plan`` compiles for a GPU of ``capability``, each once.

    Kernels must not be interpreted in this process. Raises ValueError where no kernel does what the
    plan asks.
    """
    with recording(capability) as found:
        executor, _ = assemble(plan, limits, torch.device("meta"), capability)
        executor.warm_up(limits.trees)
    return list(found.values())


@contextmanager
def recording(capability: Capability) -> Iterator[dict[tuple[str, str], Variant]]:
    """Launches in the block compile and run nothing; what they would compile is noted, by name and
    key, as by a process that has compiled nothing yet."""
    found: dict[tuple[str, str], Variant] = {}
    number = next(_DEVICES)

    def note(*, key: str, fn: Any, compile: dict[str, Any], **_: Any) -> bool:
        name = fn.jit_function.fn.__name__
        options = ("num_warps", "num_stages", "num_ctas", "enable_fp_fusion")
        found.setdefault(
            (name, key),
            Variant(
                name=name,
                key=key,
                capability=capability,
                kernel=fn.jit_function,
                signature=compile["signature"],
                constants=compile["constants"],
                attributes=compile["configs"][0],
                options={each: compile[each] for each in options},
            ),
        )
        return True

    driver, knobs = triton.runtime.driver, triton.knobs.runtime
    before: Callable[..., bool] | None = knobs.jit_cache_hook
    # What hooks are told, they are told in JSON besides, which has no records and is not read here.
    in_json, jit.serialize_specialization_data = jit.serialize_specialization_data, _nothing
    driver.set_active(_Driver(capability, number))
    knobs.jit_cache_hook = note
    try:
        yield found
    finally:
        knobs.jit_cache_hook = before
        jit.serialize_specialization_data = in_json
        driver.set_active(None)  # the machine's own, when it is asked for


@dataclass(frozen=True)
class _Driver:
    """What Triton asks of a GPU's driver before it compiles."""

    capability: Capability
    number: int

    def get_current_target(self) -> GPUTarget:
        return _target(self.capability)

    def get_current_device(self) -> int:
        return self.number

    def get_current_stream(self, device: int) -> int:
        return 0


def _nothing(*_: object) -> str:
    return ""


def _target(capability: Capability) -> GPUTarget:
    return GPUTarget("cuda", _number(capability), 32)


def _number(capability: Capability) -> int:
    return 10 * capability[0] + capability[1]
