"""Has another reader load quantized checkpoints; runs in that reader's environment.

    python reader_logits.py OUT TOKENS.npy MODEL... --by READER

Writes for each model a file of its name in OUT: the logits of the tokens, float32
``[tokens, vocabulary]``, and what made them, or why it was not read; and the versions of what read
them. Readers are in ``READERS``.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]
Read = Callable[[Path, "list[int]"], "tuple[F32, str]"]
"""Takes a model and tokens, and returns logits ``[tokens, vocabulary]``, and what made them."""

PACKAGES: Final = (
    "transformers",
    "compressed-tensors",
    "bitsandbytes",
    "gptqmodel",
    "torch",
    "llama_cpp_python",
)


os.environ["TORCHDYNAMO_DISABLE"] = "1"  # compiling takes longer than all else


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("tokens", type=Path)
    parser.add_argument("models", type=Path, nargs="+", metavar="MODEL")
    parser.add_argument("--by", choices=tuple(READERS), required=True)
    options = parser.parse_args()
    tokens = np.load(options.tokens).tolist()
    for model in options.models:
        try:
            logits, kinds = READERS[options.by](model, tokens)
            said = {"modules": kinds}
        except Exception as error:  # whatever a reader raises is what is to be told
            logits = np.zeros((0, 0), np.float32)
            said = {"error": f"{type(error).__name__}: {str(error).strip().splitlines()[0]}"}
        np.savez(options.out / f"{model.name}.npz", logits=logits, said=json.dumps(said))
    (options.out / "versions.json").write_text(json.dumps(versions()))


def by_hub(folder: Path, tokens: list[int]) -> tuple[F32, str]:
    """The model in float32, with the values that were read, and with nothing rounded on the way: it
    is values that are compared, not products."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(1)
    for dtype in (torch.float32, torch.bfloat16):
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, device_map="cpu")
        modules: list[Any] = list(model.modules())
        packed = [each for each in modules if type(each).__name__ == "Linear4bit"]
        for each in packed:  # which would become what the model was before, bfloat16 mostly
            each.weight.quant_state.dtype = dtype
        if packed:  # what was not packed keeps its type, whatever was asked for
            model = torch.nn.Module.float(model.dequantize())
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
    return computed(torch.nn.Module.float(model), tokens)


def by_compressed_tensors(folder: Path, tokens: list[int]) -> tuple[F32, str]:
    """The package's own values of all matrices, in float32, in a model of transformers."""
    from compressed_tensors.entrypoints.convert import (  # type: ignore[import-not-found]
        CompressedTensorsDequantizer,
        convert_checkpoint,
    )
    from torch import float32

    with TemporaryDirectory() as made:
        convert_checkpoint(folder, made, CompressedTensorsDequantizer(folder, dtype=float32))
        return by_hub(Path(made), tokens)


def by_older_package(folder: Path, tokens: list[int]) -> tuple[F32, str]:
    """As compressed-tensors did it when it had formats of sparse matrices (until 0.12)."""
    import torch
    from compressed_tensors.compressors import ModelCompressor  # type: ignore[import-not-found]
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(folder)
    section = config.quantization_config
    del config.quantization_config
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    others = AutoModelForCausalLM.from_pretrained(folder, config=config, dtype=torch.float32)
    model.load_state_dict(others.state_dict())  # norms, embeddings, whatever is in floats
    compressor = ModelCompressor.from_compression_config(section)
    compressor.decompress(str(folder), model)
    for module in model.modules():
        if hasattr(module, "quantization_scheme"):
            setattr(module, "quantization_enabled", False)  # noqa: B010
    return computed(torch.nn.Module.float(model), tokens)


def by_gptqmodel(folder: Path, tokens: list[int]) -> tuple[F32, str]:
    """Uses its kernels, which know types of 16 bits alone."""
    import torch
    from gptqmodel import BACKEND, GPTQModel  # type: ignore[import-not-found]

    torch.set_num_threads(1)
    loaded = GPTQModel.load(str(folder), device="cpu", backend=BACKEND.TORCH, dtype=torch.float16)
    return computed(loaded.model, tokens)


def computed(model: Any, tokens: list[int]) -> tuple[F32, str]:
    import torch

    with torch.no_grad():
        logits = model(input_ids=torch.tensor([tokens])).logits[0].float().numpy()
    kinds = sorted({type(each).__name__ for each in model.modules() if has_matrix(each)})
    return logits, ", ".join(kinds)


def has_matrix(module: Any) -> bool:
    """Whether a module has a matrix of its own, in whatever form."""
    names = {name for name, _ in module.named_parameters(recurse=False)}
    names |= {name for name, _ in module.named_buffers(recurse=False)}
    return bool(names & {"weight", "weight_packed", "qweight"})


def by_llama_cpp(file: Path, tokens: list[int]) -> tuple[F32, str]:
    """As it serves the file: on a CPU it rounds what matrices of blocks multiply to 8 bits."""
    import llama_cpp

    llama_cpp.llama_backend_init()
    wanted = llama_cpp.llama_model_default_params()
    wanted.use_extra_bufts = False  # orders of blocks for processors, which know not all of them
    model = llama_cpp.llama_model_load_from_file(str(file).encode(), wanted)
    if not model:
        raise RuntimeError("llama.cpp does not load the file")
    options = llama_cpp.llama_context_default_params()
    options.n_ctx = options.n_batch = options.n_ubatch = 512
    options.n_threads = options.n_threads_batch = 1
    options.flash_attn_type = 0  # whose products are of float16
    options.type_k = options.type_v = 0  # float32
    context = llama_cpp.llama_init_from_model(model, options)
    count = len(tokens)
    batch = llama_cpp.llama_batch_init(count, 0, 1)
    batch.n_tokens = count
    for place, token in enumerate(tokens):
        batch.token[place], batch.pos[place], batch.logits[place] = token, place, 1
        batch.n_seq_id[place], batch.seq_id[place][0] = 1, 0
    if llama_cpp.llama_decode(context, batch):
        raise RuntimeError("llama.cpp does not compute the batch")
    vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
    rows = [llama_cpp.llama_get_logits_ith(context, place) for place in range(count)]
    logits = np.stack([np.ctypeslib.as_array(row, (vocab,)).copy() for row in rows])
    llama_cpp.llama_batch_free(batch)
    llama_cpp.llama_free(context)
    llama_cpp.llama_model_free(model)
    return logits, "ggml"


def by_llama_cpp_in_floats(file: Path, tokens: list[int]) -> tuple[F32, str]:
    """A file that llama.cpp itself decodes to float32: its values of the blocks, and nothing
    rounded on the way."""
    from ctypes import byref

    import llama_cpp

    llama_cpp.llama_backend_init()
    wanted = llama_cpp.llama_model_quantize_default_params()
    wanted.ftype, wanted.nthread, wanted.allow_requantize = 0, 1, True  # all in F32
    with TemporaryDirectory() as made:
        decoded = Path(made, file.name)
        paths = str(file).encode(), str(decoded).encode()
        if llama_cpp.llama_model_quantize(*paths, byref(wanted)):
            raise RuntimeError("llama.cpp does not decode the file")
        return by_llama_cpp(decoded, tokens)


READERS: Final[Mapping[str, Read]] = {
    "transformers": by_hub,
    "bitsandbytes": by_hub,
    "compressed-tensors": by_compressed_tensors,
    "compressed-tensors-0.11": by_older_package,
    "gptqmodel": by_gptqmodel,
    "llama.cpp": by_llama_cpp,
    "llama.cpp-floats": by_llama_cpp_in_floats,
}


def versions() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


main()
