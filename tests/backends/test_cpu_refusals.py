"""What the native executor refuses: malformed steps, limits, what the system does not give."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.needs import needs_native
from support.tiny_plans import (
    MALFORMED,
    Chunk,
    broken,
    dummy_weights,
    make_spec,
    step_of,
    tokens_of,
)

from penstock.backends.cpu.bind import bind
from penstock.backends.cpu.executor import CpuExecutor
from penstock.errors import ConfigError
from penstock.interface.executor import Limits
from penstock.plan.fuse import fuse
from penstock.plan.lower import lower
from penstock.plan.plan import Plan

pytestmark = needs_native

SPEC = make_spec()
TOKENS = tokens_of(3, 8)
LIMITS = Limits(num_blocks=40, max_tokens=96, max_logit_rows=96, max_sequences=8, threads=2)


def bound(plan: Plan) -> CpuExecutor:
    return bind(plan, dummy_weights(SPEC, 3, "float32"), LIMITS)


NO_TOKEN: tuple[dict[str, Any], str] = ({"token_ids": [0, -1]}, "token id -1")


@pytest.mark.parametrize(("changes", "message"), [*MALFORMED, NO_TOKEN])
@pytest.mark.parametrize("fused", [True, False])
def test_a_malformed_step_is_refused_by_cause(
    changes: dict[str, Any], message: str, fused: bool
) -> None:
    plan = lower(SPEC, "float32")
    if fused:
        plan = fuse(plan)
    executor = bound(plan)
    step = step_of([Chunk(TOKENS, 0, 2, [1])])
    with pytest.raises(ValueError, match=message):
        executor.run(broken(step, **changes))
    assert executor.run(step).logits.shape == (1, 211)
    executor.close()


def test_a_step_beyond_the_limits_is_refused() -> None:
    executor = bound(fuse(lower(SPEC, "float32")))
    long = np.zeros(97, np.int32)
    with pytest.raises(ValueError, match="1 to 96 tokens, not 97"):
        executor.run(step_of([Chunk(long, 0, 97, [0, 1, 2, 3])]))
    with pytest.raises(ValueError, match="1 to 8 sequences, not 9"):
        executor.run(step_of([Chunk(TOKENS, 0, 1, [b]) for b in range(9)]))
    executor.close()


def test_results_outlive_a_closed_executor() -> None:
    executor = bound(fuse(lower(SPEC, "float32")))
    step = step_of([Chunk(TOKENS, 0, 8, [1])])
    result = executor.run(step)
    before = result.logits.copy()
    executor.close()
    np.testing.assert_array_equal(result.logits, before)
    with pytest.raises(RuntimeError, match="closed"):
        executor.run(step)


def test_more_threads_than_the_system_starts_are_refused() -> None:
    """A child has little address space, of which a thread's stack needs some."""
    script = (
        "import resource\n"
        "from dataclasses import replace\n"
        "from test_cpu_refusals import LIMITS, SPEC, bind, dummy_weights, fuse, lower\n"
        "plan, weights = fuse(lower(SPEC, 'float32')), dummy_weights(SPEC, 0, "
        "'float32')\n"
        "bind(plan, weights, LIMITS).close()\n"
        "pages = int(open('/proc/self/statm').read().split()[0])\n"
        "limit = pages * resource.getpagesize() + (256 << 20)\n"
        "resource.setrlimit(resource.RLIMIT_AS, (limit, limit))\n"
        "bind(plan, weights, replace(LIMITS, threads=1000))"
    )
    path = os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])
    run = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
        timeout=120,
    )
    assert run.returncode == 1
    assert "ConfigError" in run.stderr
    assert "does not start 1000 threads" in run.stderr


def test_a_cache_beyond_memory_is_refused_with_the_fix() -> None:
    limits = replace(LIMITS, num_blocks=60_000_000)
    wide = make_spec(dim=256, rope_dim=16, heads=(64, 64))
    with pytest.raises(ConfigError, match="kv_cache_bytes"):
        bind(fuse(lower(wide, "float32")), dummy_weights(SPEC, 0, "float32"), limits)
