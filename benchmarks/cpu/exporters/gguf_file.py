"""Exports a checkpoint folder as GGUF files for llama.cpp; runs in its environment.

    python gguf_file.py CHECKPOINT OUT_DIR int4 int8 bf16

Writes ``bf16.gguf`` and has llama.cpp's own quantizer make ``int8.gguf`` (Q8_0) and
``int4.gguf`` (Q4_0, the 4-bit type that llama.cpp repacks for its fastest kernels).
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

ARCHITECTURES = {
    "LlamaForCausalLM": gguf.MODEL_ARCH.LLAMA,
    "Qwen3ForCausalLM": gguf.MODEL_ARCH.QWEN3,
    "Qwen3MoeForCausalLM": gguf.MODEL_ARCH.QWEN3MOE,
    "Gemma3ForCausalLM": gguf.MODEL_ARCH.GEMMA3,
}
BF16_FILE = 32  # LLAMA_FTYPE_MOSTLY_BF16
FILE_TYPES = {"int4": 2, "int8": 7}  # LLAMA_FTYPE_MOSTLY_Q4_0, LLAMA_FTYPE_MOSTLY_Q8_0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("precisions", nargs="+", choices=("int4", "int8", "bf16"))
    parser.add_argument("--threads", type=int, default=0, help="of the quantizer; 0: all")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    full = args.out / "bf16.gguf"
    write_bf16(args.checkpoint, full)
    for precision in sorted(set(args.precisions) - {"bf16"}):
        quantize(full, args.out / f"{precision}.gguf", FILE_TYPES[precision], args.threads)
    if "bf16" not in args.precisions:
        full.unlink()


def write_bf16(checkpoint: Path, path: Path) -> None:
    """Matrices stay bfloat16, vectors become float32, as llama.cpp's converter has it."""
    config = json.loads((checkpoint / "config.json").read_text())
    (architecture,) = config["architectures"]
    if architecture not in ARCHITECTURES:
        raise SystemExit(f"{architecture} is not one of {', '.join(ARCHITECTURES)}")
    arch = ARCHITECTURES[architecture]
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[arch])
    add_hyperparameters(writer, config)
    add_vocabulary(writer, checkpoint, config)
    names = gguf.get_tensor_name_map(arch, config["num_hidden_layers"])
    tensors = stack_experts(read_safetensors(checkpoint / "model.safetensors"))
    for name, array in tensors.items():
        target = names.get_name(name, try_suffixes=(".weight", ".bias"))
        if target is None:
            raise SystemExit(f"GGUF has no name for {name}")
        if arch is gguf.MODEL_ARCH.LLAMA and ".q_proj." in name:
            array = interleave_heads(array, config["num_attention_heads"])
        elif arch is gguf.MODEL_ARCH.LLAMA and ".k_proj." in name:
            array = interleave_heads(array, config["num_key_value_heads"])
        if array.ndim == 1:
            vector = (array.astype(np.uint32) << 16).view(np.float32)
            shift = arch is gguf.MODEL_ARCH.GEMMA3  # llama.cpp multiplies by the norms as they lie
            writer.add_tensor(target, vector + np.float32(1) if shift else vector)
        else:
            bytes_of = array.view(np.uint8)
            writer.add_tensor(target, bytes_of, raw_dtype=gguf.GGMLQuantizationType.BF16)
    factors = llama3_factors(config)
    if factors is not None:
        writer.add_tensor("rope_freqs.weight", factors)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add_hyperparameters(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    writer.add_name("random weights")
    writer.add_file_type(BF16_FILE)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_rope_freq_base(float(config["rope_theta"]))
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    if "num_experts" in config:
        writer.add_expert_count(config["num_experts"])
        writer.add_expert_used_count(config["num_experts_per_tok"])
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    if config.get("sliding_window"):
        writer.add_sliding_window(config["sliding_window"])


def add_vocabulary(writer: gguf.GGUFWriter, checkpoint: Path, config: dict[str, Any]) -> None:
    model = json.loads((checkpoint / "tokenizer.json").read_text())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
    special = {config["bos_token_id"], config["eos_token_id"]}
    control, normal = gguf.TokenType.CONTROL, gguf.TokenType.NORMAL
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    writer.add_token_types([control if i in special else normal for i in range(len(tokens))])
    writer.add_token_merges(
        [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
    )
    writer.add_bos_token_id(config["bos_token_id"])
    writer.add_eos_token_id(config["eos_token_id"])
    writer.add_add_bos_token(False)


def read_safetensors(path: Path) -> dict[str, NDArray[np.uint16]]:
    """Each bfloat16 tensor as the 16-bit words of the mapped file."""
    data = np.memmap(path, np.uint8, "r")
    length = int.from_bytes(data[:8].tobytes(), "little")
    header = json.loads(data[8 : 8 + length].tobytes())
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        start, stop = (8 + length + offset for offset in entry["data_offsets"])
        tensors[name] = data[start:stop].view(np.uint16).reshape(entry["shape"])
    return tensors


def stack_experts(tensors: dict[str, NDArray[np.uint16]]) -> dict[str, NDArray[np.uint16]]:
    """The tensors with the matrices of a layer's experts as one, as GGUF has them."""
    stacked: dict[str, NDArray[np.uint16]] = {}
    stacks: dict[str, list[NDArray[np.uint16]]] = {}
    for name, array in tensors.items():
        layer, experts, rest = name.partition(".experts.")
        if experts:
            stacks.setdefault(f"{layer}.experts.{rest.partition('.')[2]}", []).append(array)
        else:
            stacked[name] = array
    return stacked | {name: np.stack(arrays) for name, arrays in stacks.items()}


def interleave_heads(array: NDArray[np.uint16], num_heads: int) -> NDArray[np.uint16]:
    """Rows of q or k for rotation of neighbours, where the checkpoint rotates halves."""
    half = array.shape[0] // num_heads // 2
    split = array.reshape(num_heads, 2, half, *array.shape[1:])
    return np.ascontiguousarray(split.swapaxes(1, 2)).reshape(array.shape)


def llama3_factors(config: dict[str, Any]) -> NDArray[np.float32] | None:
    """What llama.cpp divides each rotation frequency by: Llama 3's scaling, or None."""
    scaling = config.get("rope_scaling")
    if not scaling:
        return None
    if scaling["rope_type"] != "llama3":
        raise SystemExit(f"rope_type {scaling['rope_type']} is not written")
    dim, factor = config["head_dim"], scaling["factor"]
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    context = scaling["original_max_position_embeddings"]
    factors = []
    for i in range(0, dim, 2):
        wavelength = 2 * math.pi * config["rope_theta"] ** (i / dim)
        smooth = min(max((context / wavelength - low) / (high - low), 0.0), 1.0)
        factors.append(1 / ((1 - smooth) / factor + smooth))
    return np.array(factors, np.float32)


def quantize(source: Path, target: Path, file_type: int, threads: int) -> None:
    import llama_cpp

    params = llama_cpp.llama_model_quantize_default_params()
    params.nthread, params.ftype = threads, file_type
    code = llama_cpp.llama_model_quantize(str(source).encode(), str(target).encode(), params)
    if code:
        raise SystemExit(f"llama.cpp's quantizer failed on {source} with code {code}")


if __name__ == "__main__":
    main()
