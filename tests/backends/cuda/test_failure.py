"""Whatever goes wrong on the way to a kernel's result is one error that names it."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from support.needs import Need, lacking

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("triton", reason="triton is not installed")

from support.tiny_plans import Chunk, dummy_weights, make_spec, step_of, tokens_of  # noqa: E402
from triton.compiler.errors import CompilationError  # noqa: E402
from triton.runtime import interpreter  # noqa: E402
from triton.runtime.errors import OutOfResources, PTXASError  # noqa: E402

from penstock.backends.cuda import bind as binding  # noqa: E402
from penstock.backends.cuda.executor import CudaExecutor  # noqa: E402
from penstock.backends.cuda.failure import failed  # noqa: E402
from penstock.errors import ConfigError, EngineDeadError, PenstockError  # noqa: E402
from penstock.interface.executor import Limits, Sampling  # noqa: E402
from penstock.interface.sampler import NewSequence  # noqa: E402
from penstock.plan.fuse import fuse  # noqa: E402
from penstock.plan.lower import lower  # noqa: E402
from penstock.sampling.params import SamplingParams  # noqa: E402

LIMITS = Limits(num_blocks=4, max_tokens=4, max_logit_rows=4, max_sequences=2, threads=1)
STEP = step_of([Chunk(tokens_of(1, 2), 0, 2, [1])])


def not_compiled() -> CompilationError:
    """As Triton raises it for an error in a function that the kernel calls."""
    import ast

    outer = CompilationError("def k():\n    f()", ast.parse("f()").body[0], None)
    outer.__cause__ = CompilationError("def f():\n    g", ast.parse("g").body[0], "g is bad\nmore")
    return outer


ERRORS: dict[str, tuple[Callable[[], Exception], str]] = {
    "compiler": (not_compiled, r"kernel _embed could not be compiled by Triton .*: g is bad;"),
    "ptxas": (
        lambda: PTXASError("ptxas fatal: no sm_999"),
        r"_embed could not be compiled .*no sm_999",
    ),
    "resources": (
        lambda: OutOfResources(300_000, 232_448, "shared memory"),
        r"_embed does not fit this GPU: of shared memory it needs 300000, and there is 232448",
    ),
    "gcc": (
        lambda: subprocess.CalledProcessError(1, ["gcc", "x.c"]),
        r"_embed could not be built: .* C compiler .*install gcc",
    ),
    "disk": (
        lambda: PermissionError(13, "Permission denied", "/x/.triton"),
        r"_embed could not be compiled: .*Permission denied.*TRITON_CACHE_DIR",
    ),
    "device": (
        lambda: RuntimeError("Triton Error [CUDA]: an illegal memory access was encountered"),
        r"the GPU failed at the kernel _embed: Triton Error \[CUDA\]: an illegal .*Xid",
    ),
}


@pytest.fixture
def executor(device: Any) -> Iterator[CudaExecutor]:
    if device.type != "cpu":
        lacking(Need.INTERPRETER, "launches fail in the interpreter alone")
    spec = make_spec()
    plan = fuse(lower(spec, "float32"))
    executor = binding.bind(plan, dummy_weights(spec, 1, "float32"), LIMITS, device)
    yield executor
    executor.close()


@pytest.fixture(params=ERRORS)
def broken(request: Any, monkeypatch: pytest.MonkeyPatch) -> str:
    """Every launch raises; the message to be expected."""
    error, message = ERRORS[request.param]

    def fail(*_: object, **__: object) -> Any:
        raise error()

    monkeypatch.setattr(interpreter.GridExecutor, "__call__", fail)
    return message


def test_a_step_that_cannot_be_launched_is_one_error(executor: CudaExecutor, broken: str) -> None:
    with pytest.raises(EngineDeadError, match=broken):
        executor.run(STEP)
    with pytest.raises(EngineDeadError, match=broken):
        executor.submit(STEP, Sampling())


def test_sampling_that_cannot_be_launched_is_one_error(executor: CudaExecutor, broken: str) -> None:
    sampler = executor.sampler
    logits = np.zeros((1, 211), np.float32)
    state = sampler.state(NewSequence(SamplingParams(temperature=1.0), 1, [1], 211))
    message = broken.replace("_embed", "begin")
    with pytest.raises(EngineDeadError, match=message):
        sampler.draw(logits, [0], [state])
    with pytest.raises(EngineDeadError, match=message):
        sampler.token_logprobs(logits, [0], [3], [1])
    with pytest.raises(EngineDeadError, match=message):
        sampler.prompt_logprobs(logits, [3], 1)


@pytest.mark.parametrize("name", ERRORS)
def test_at_the_start_what_cannot_be_made_is_an_error_of_the_configuration(
    name: str, executor: CudaExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    error, message = ERRORS[name]

    def fail(*_: object, **__: object) -> Any:
        raise error()

    monkeypatch.setattr(interpreter.GridExecutor, "__call__", fail)
    caught: PenstockError | None = None
    try:
        executor.warm_up()
    except Exception as raised:
        caught = failed(raised, starting=True)
    assert isinstance(caught, EngineDeadError if name == "device" else ConfigError)
    assert re.search(message.replace("_embed", "_copy_blocks"), str(caught))
