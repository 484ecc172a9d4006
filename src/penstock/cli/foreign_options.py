"""Options of llama.cpp's and vLLM's command lines that are none here, or that other commands have
than the one that was given, and what to write instead."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Final

from penstock.config import EngineConfig
from penstock.engine_options import foreign_hint

_CALLED: Final[Mapping[str, str]] = {
    "-a": "--served-model-name",
    "--alias": "--served-model-name",
    "-b": "--max-num-batched-tokens",
    "--batch-size": "--max-num-batched-tokens",
    "-ub": "--max-num-batched-tokens",
    "--ubatch-size": "--max-num-batched-tokens",
    "-c": "--max-model-len",
    "--ctx-size": "--max-model-len",
    "--dataset-name": "--workload",
    "--dataset-path": "--workload",
    "-ctk": "--kv-cache-dtype",
    "-ctv": "--kv-cache-dtype",
    "--cache-type-k": "--kv-cache-dtype",
    "--cache-type-v": "--kv-cache-dtype",
    "--chat-template-file": "--chat-template",
    "-dev": "--backend",
    "--device": "--backend",
    "--grammar-file": "--grammar",
    "-j": "--json-schema",
    "--max-concurrency": "--concurrency",
    "--max-num-tokens": "--max-num-batched-tokens",
    "--max-seq-len": "--max-model-len",
    "-md": "--speculative",
    "--model-draft": "--speculative",
    "-n": "--max-tokens",
    "--n-predict": "--max-tokens",
    "--predict": "--max-tokens",
    "-np": "--max-num-seqs",
    "--parallel": "--max-num-seqs",
    "--random-input-len": "--input-len",
    "--random-output-len": "--output-len",
    "--repeat-penalty": "--repetition-penalty",
    "--request-rate": "--rate",
    "-s": "--seed",
    "--speculative-config": "--speculative",
    "-sys": "--system",
    "--system-prompt": "--system",
    "-t": "--threads",
    "-tb": "--threads",
    "--threads-batch": "--threads",
    "--trace": "--workload",
    "--workload": "--trace",
}
"""What our option for the same is called."""

_MODEL: Final = frozenset({"-m", "--model", "-mu", "--model-url", "--hf-repo", "--model-path"})
_LAYERS: Final = "a model runs on one device as a whole, which --backend chooses"
_NOTHING: Final = "there is nothing of the kind here; leave it out"

_INSTEAD: Final[Mapping[str, str]] = {
    "-ngl": _LAYERS,
    "--gpu-layers": _LAYERS,
    "--n-gpu-layers": _LAYERS,
    "-fa": _NOTHING,
    "--flash-attn": _NOTHING,
    "--mlock": _NOTHING,
    "--no-mmap": _NOTHING,
    "--use-tqdm-on-load": _NOTHING,
    "--lora": "convert it to PEFT's folder, and name it by --lora-modules NAME=PATH",
    "--skip-tokenizer-init": "prompts are texts here; leave it out",
    "--task": "every model generates and embeds; leave it out",
    "--runner": "every model generates and embeds; leave it out",
    "--enable-sleep-mode": "ending the command releases the memory; leave it out",
    "--override-generation-config": "give sampling options with each request",
    "--logits-processors": "logit biases and grammars are options of each request",
}
"""What to do where no option of ours does the same."""

_SHORT: Final[Mapping[str, str]] = {
    "-tp": "tensor_parallel_size",
    "-pp": "pipeline_parallel_size",
    "-dp": "data_parallel_size",
}


def instead_of(option: str, known: Collection[str], takes_model: bool) -> str:
    """What to write instead of ``option``; empty where nothing is known of it.

    ``known`` are the options of the command, and ``takes_model`` whether one of its places is a
    model.
    """
    if option in _MODEL and takes_model:
        return "write the model without an option's name"
    if _CALLED.get(option) in known:
        return f"did you mean {_CALLED[option]}?"
    name = _SHORT.get(option) or re.sub("^--(no-)?", "", option).replace("-", "_")
    return _INSTEAD.get(option) or _PYTHONS.sub(_as_option, foreign_hint(name))


_PYTHONS: Final = re.compile(
    "|".join(
        rf"\b{n}=" + (rf"|\b{n}\b" if "_" in n else "") for n in EngineConfig.__struct_fields__
    )
)
"""An option as a call of Python's names it, apart from words such as "threads" in a sentence."""


def _as_option(found: re.Match[str]) -> str:
    return "--" + found[0].removesuffix("=").replace("_", "-")
