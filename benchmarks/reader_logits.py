"""Has another reader load a quantized checkpoint; runs in that reader's environment.

    python reader_logits.py FOLDER TOKENS.npy OUT.npz --by transformers|gptqmodel

Writes the logits of the tokens, float32 ``[tokens, vocabulary]``, and the versions of what read
them. Needs torch and transformers, and for a format what transformers asks for: compressed-tensors,
or bitsandbytes; gptqmodel reads GPTQ and AWQ by itself.
"""

from __future__ import annotations

import argparse
import json
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

PACKAGES: Final = ("transformers", "compressed-tensors", "bitsandbytes", "gptqmodel", "torch")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("tokens", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--by", choices=("transformers", "gptqmodel"), required=True)
    options = parser.parse_args()
    model = by_gptqmodel(options.folder) if options.by == "gptqmodel" else by_hub(options.folder)
    tokens = torch.from_numpy(np.load(options.tokens))[None]
    with torch.no_grad():
        logits = model(input_ids=tokens).logits[0].float().numpy()
    kinds = sorted({type(each).__name__ for each in model.modules() if holds_matrix(each)})
    said = json.dumps({"versions": versions(), "modules": kinds})
    np.savez(options.out, logits=logits, said=said)


def by_hub(folder: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, device_map="cpu")


def by_gptqmodel(folder: Path) -> Any:
    from gptqmodel import BACKEND, GPTQModel

    loaded = GPTQModel.load(str(folder), device="cpu", backend=BACKEND.AUTO)
    return loaded.model


def holds_matrix(module: Any) -> bool:
    """Whether a module has a matrix of its own, in whatever form."""
    names = {name for name, _ in module.named_parameters(recurse=False)}
    names |= {name for name, _ in module.named_buffers(recurse=False)}
    return bool(names & {"weight", "weight_packed", "qweight"})


def versions() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


main()
