"""Which instructions torch and the oneDNN in it use, by their own word."""

from __future__ import annotations

import os
import subprocess
import sys

import torch

_PRODUCT = "import torch; a = torch.ones(64, 64, dtype=torch.bfloat16); torch.mm(a, a)"
_MARK = "info,cpu,isa:"


def isa() -> str:
    """Return both; oneDNN tells when it multiplies, and only a process whose output is read."""
    answer = subprocess.run(
        [sys.executable, "-c", _PRODUCT],
        env={**os.environ, "ONEDNN_VERBOSE": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    return f"torch {torch.backends.cpu.get_cpu_capability()}, oneDNN {told(answer.stdout)}"


def told(output: str) -> str:
    """What oneDNN's verbose output says of the CPU; that it says nothing is no excess."""
    lines = [line.partition(_MARK)[2] for line in output.splitlines() if _MARK in line]
    return lines[0] if lines else "unused"
