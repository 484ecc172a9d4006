"""Has another reader load quantized checkpoints; runs in that reader's environment.

    python reader_logits.py OUT TOKENS.npy FOLDER... --by transformers|gptqmodel

Writes for each folder a file of the folder's name in OUT: the logits of the tokens, float32
``[tokens, vocabulary]``, and which modules made them, or why it was not read; and the versions of
what read them. Needs torch and transformers, and for a format what transformers asks for:
compressed-tensors or bitsandbytes; gptqmodel reads GPTQ and AWQ by itself.
"""

from __future__ import annotations

import argparse
import json
import os
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

PACKAGES: Final = ("transformers", "compressed-tensors", "bitsandbytes", "gptqmodel", "torch")


os.environ["TORCHDYNAMO_DISABLE"] = "1"  # compiling takes longer than all else


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("tokens", type=Path)
    parser.add_argument("folders", type=Path, nargs="+", metavar="FOLDER")
    parser.add_argument("--by", choices=("transformers", "gptqmodel"), required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    tokens = torch.from_numpy(np.load(options.tokens))[None]
    load = by_gptqmodel if options.by == "gptqmodel" else by_hub
    for folder in options.folders:
        try:
            model = load(folder)
            with torch.no_grad():
                logits = model(input_ids=tokens).logits[0].float().numpy()
            kinds = sorted({type(each).__name__ for each in model.modules() if has_matrix(each)})
            said: dict[str, object] = {"modules": kinds}
        except Exception as error:  # whatever a reader raises is what is to be told
            logits = np.zeros((0, 0), np.float32)
            said = {"error": f"{type(error).__name__}: {str(error).strip().splitlines()[0]}"}
        np.savez(options.out / f"{folder.name}.npz", logits=logits, said=json.dumps(said))
    (options.out / "versions.json").write_text(json.dumps(versions()))


def by_hub(folder: Path) -> Any:
    """The model in float32, with the values that were read, and with nothing rounded on the way: it
    is values that are compared, not products."""
    from transformers import AutoModelForCausalLM

    for dtype in (torch.float32, torch.bfloat16):
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, device_map="cpu")
        if any(type(each).__name__ == "Linear4bit" for each in model.modules()):
            model = model.dequantize()
        try:
            with torch.no_grad():  # which makes floats of what compressed-tensors has read
                model(input_ids=torch.zeros((1, 2), dtype=torch.int64))
        except RuntimeError:
            if dtype == torch.float32:  # small floats become bfloat16 whatever was asked for
                continue
            raise
        break
    for module in model.modules():
        if hasattr(module, "quantization_scheme"):
            setattr(module, "quantization_enabled", False)  # noqa: B010
    return torch.nn.Module.float(model)


def by_gptqmodel(folder: Path) -> Any:
    from gptqmodel import BACKEND, GPTQModel  # type: ignore[import-not-found]

    # Its kernels know types of 16 bits alone.
    loaded = GPTQModel.load(str(folder), device="cpu", backend=BACKEND.TORCH, dtype=torch.float16)
    return loaded.model


def has_matrix(module: Any) -> bool:
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
