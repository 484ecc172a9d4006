"""Which instructions torch and oneDNN use, by their own word."""

from __future__ import annotations

import os
import subprocess
import sys

_PRODUCT = "import torch; a = torch.ones(64, 64, dtype=torch.bfloat16); torch.mm(a, a)"
_CAPABILITY = "; print('torch', torch.backends.cpu.get_cpu_capability())"
_MARK = "info,cpu,isa:"


def torch_isa() -> str:
    """Return what torch dispatches to, and what the oneDNN in it does."""
    output = onednn_output(_PRODUCT + _CAPABILITY)
    capability = [line for line in output.splitlines() if line.startswith("torch ")]
    return f"{''.join(capability)}, oneDNN {told(output)}"


def vllm_isa() -> str:
    """Return these, and what vLLM's own kernels are chosen by: what torch says that the CPU has,
    whatever torch itself is held to."""
    import torch

    amx, avx512 = torch.cpu._is_amx_tile_supported(), torch.cpu._is_avx512_supported()
    return f"{torch_isa()}, own kernels {'amx' if amx else 'avx512' if avx512 else 'avx2'}"


def onednn_output(program: str) -> str:
    """Run Python in a process whose output is read: oneDNN tells before it first multiplies.

    Some of OpenVINO's products then fail ("could not execute a primitive", in one process and not
    in the next), which takes nothing from what was told. Raises RuntimeError, with the last line of
    the errors, if the program failed without telling.
    """
    answer = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "ONEDNN_VERBOSE": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    if answer.returncode and _MARK not in answer.stdout:
        reason = (answer.stderr.strip().splitlines() or ["no message"])[-1]
        raise RuntimeError(f"a product to learn oneDNN's instructions from failed: {reason}")
    return answer.stdout


def told(output: str) -> str:
    """What oneDNN's verbose output says of the CPU; that it says nothing is no excess."""
    lines = [line.partition(_MARK)[2] for line in output.splitlines() if _MARK in line]
    return lines[0] if lines else "unused"
