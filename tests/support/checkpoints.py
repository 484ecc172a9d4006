"""Tiny random Hugging Face checkpoints of every family, made with transformers for tests.

    from support.checkpoints import tiny_checkpoint
    folder = tiny_checkpoint("qwen3", hidden_size=96)

Folders are made once for each set of arguments, for all test processes, and removed when the tests
end; tests that change one copy it first. Weights are float32 unless ``dtype`` says otherwise, and
large enough that attention and the logits are far from uniform. The tokenizer has the 256 bytes,
then ``<s>`` 256, ``</s>`` 257 and ``<pad>`` 258.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from support.families import FAMILIES

LLAMA_SHAPED = ("llama", "mistral", "qwen2", "qwen3")
"""Families of Llama's shape, whose weights are stored one by one."""
VOCAB, BOS, EOS, PAD = 301, 256, 257, 258

COMMON: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 100,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "bos_token_id": BOS,
    "eos_token_id": EOS,
    "pad_token_id": PAD,
}
"""Fields of most families' configurations."""


def tiny_checkpoint(
    family: str = "llama",
    *,
    seed: int = 0,
    dtype: str = "float32",
    shard_bytes: int | None = None,
    model: str = "",
    **overrides: Any,
) -> Path:
    """A folder with config.json, safetensors and tokenizer.

    ``overrides`` are fields of the family's configuration class; ``shard_bytes`` splits the
    weights into files of about that size. ``model`` is a class of the family's other than that of
    its language model, such as one that classifies.
    """
    # Keys of a cache must be hashable, and overrides may hold dictionaries.
    return _make(family, seed, dtype, shard_bytes, model, json.dumps(overrides, sort_keys=True))


def load_oracle(folder: Path) -> Any:
    """transformers' model of the folder, float32, with the plainest attention that is right, and
    the plainest experts."""
    import transformers

    config = json.loads((folder / "config.json").read_text())
    family, classifies = config["model_type"], "Classification" in config["architectures"][0]
    attention = FAMILIES[family].attention if family in FAMILIES else "eager"

    kind = "SequenceClassification" if classifies else "CausalLM"
    model: Any = getattr(transformers, f"AutoModelFor{kind}").from_pretrained(
        folder,
        dtype="float32",
        attn_implementation=attention,
        experts_implementation="eager",
        local_files_only=True,
    )
    return model.eval()


_FOLDER = "PENSTOCK_TEST_CHECKPOINTS"
"""The environment variable by which ``conftest.py`` names the folder that test processes share."""


@cache
def _make(
    family: str, seed: int, dtype: str, shard_bytes: int | None, model: str, overrides: str
) -> Path:
    root = Path(os.environ[_FOLDER])
    arguments = repr((family, seed, dtype, shard_bytes, model, overrides)).encode()
    folder = root / f"{family}-{hashlib.sha256(arguments).hexdigest()[:16]}"
    if not folder.exists():
        made = Path(tempfile.mkdtemp(dir=root))
        _write(made, family, seed, dtype, shard_bytes, model, overrides)
        with contextlib.suppress(OSError):  # another process was first
            made.rename(folder)
    return folder


def _write(
    folder: Path,
    family: str,
    seed: int,
    dtype: str,
    shard_bytes: int | None,
    kind: str,
    overrides: str,
) -> None:
    import torch
    import transformers

    tiny = FAMILIES[family]
    common = {k: v for k, v in COMMON.items() if k not in tiny.lacks}
    fields = {**common, **tiny.fields, **json.loads(overrides)}
    config = getattr(transformers, tiny.config)(**fields)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        model = getattr(transformers, kind or tiny.model)(config)
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0.0, 1.5 / parameter.shape[-1] ** 0.5)
            else:
                # Norms around 1; biases, which transformers starts at 0, around 0.
                spread = tiny.spread * torch.randn_like(parameter)
                parameter.copy_(parameter.mean().round() + spread)
        for name, parameter in model.named_parameters():
            for end, factor in tiny.factors.items():
                if name.endswith(end):
                    parameter.mul_(factor)
        for name, buffer in model.named_buffers():
            if name in model.state_dict():  # such as biases that experts are chosen with
                buffer.copy_(tiny.spread * torch.randn_like(buffer))
        for name, buffer in model.named_buffers():
            if name.endswith(tiny.buffers or ("(none)",)):
                buffer.add_(tiny.spread * torch.randn_like(buffer))
    model.to(getattr(torch, dtype)).save_pretrained(
        folder, max_shard_size=shard_bytes if shard_bytes else "5GB"
    )
    add_tokenizer(folder)


def add_tokenizer(folder: Path) -> None:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(letters)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [AddedToken(t, special=True) for t in ("<s>", "</s>", "<pad>")]  # ids 256, 257, 258
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "pad_token": "<pad>",
        "clean_up_tokenization_spaces": False,
        "model_max_length": 256,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2))
