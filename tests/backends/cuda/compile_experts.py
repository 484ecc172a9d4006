"""Compiles what an engine with experts launches, for GPUs that need not be there, and prints what
each kernel of experts takes as JSON.

Run as a program, with the interpreter off: ``test_compiled.py`` does.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from compile_products import resources

from penstock.backends.cuda.variants import variants
from penstock.interface.executor import Limits
from penstock.plan.fuse import fuse
from penstock.plan.lower import lower
from penstock.plan.plan import Plan
from penstock.quant.choice import choose
from penstock.weights.model_folder import load_model_spec

CONFIGS = Path(__file__).parents[3] / "benchmarks" / "configs"
KERNELS = ("expert_kernel", "_route", "_dispatch", "_combine_experts")
LIMITS = Limits(num_blocks=64, max_tokens=2048, max_logit_rows=64, max_sequences=64, threads=1)
FORMS: list[tuple[Any, int | None, bool]] = [
    ("none", None, False),
    ("int8", None, True),
    ("int8", None, False),
    ("int4", None, False),
    ("int4", None, True),
    ("int4", 128, False),
]


def plan_of(quantization: Any, group: int | None, activations: bool) -> Plan:
    spec = load_model_spec(CONFIGS / "moe-5b-a1b")
    schemes = choose(quantization, group, True, activations=activations, window_columns=32)
    two = replace(spec, layers=spec.layers[:2])  # the last one has selected rows alone
    return fuse(lower(two, "bfloat16", quantization=schemes))


def main(capabilities: list[str], every: bool) -> None:
    for capability in capabilities:
        major, minor = map(int, capability.split("."))
        for form in FORMS:
            found = variants(plan_of(*form), LIMITS, (major, minor))
            kernels = [each for each in found if each.name in KERNELS]
            if not every and form != FORMS[0]:
                kernels = [each for each in kernels if each.name == "expert_kernel"]
            # The first and the last products have the fewest and the most rows.
            products = [each for each in kernels if each.name == "expert_kernel"]
            chosen = kernels if every else [k for k in kernels if k not in products[2:-2]]
            for each in chosen:
                kernel = each.compile()
                case = {"capability": capability, "form": form, "kernel": str(each)}
                case |= {"name": each.name, "shared": kernel.metadata.shared}
                case["copies of 16 bytes"] = kernel.asm["ptx"].count("cp.async.cg")
                print(json.dumps(case | resources(kernel.asm["cubin"])), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("capabilities", nargs="+", metavar="9.0")
    parser.add_argument("--every", action="store_true", help="also tiles between the ends")
    args = parser.parse_args()
    main(args.capabilities, args.every)
