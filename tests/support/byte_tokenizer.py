"""A tokenizer folder whose tokens are the 256 bytes (id = byte) and four special tokens.

It goes with ``fake_core.py``. Building it needs no data, and its files are read by the same code
as any checkpoint's.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from penstock.tokenizer.pieces import byte_alphabet

SPECIAL = ("<s>", "</s>", "<|im_start|>", "<|im_end|>")  # ids 256 to 259

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content | trim }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if thinking %}THINK{% endif %}{% endif %}"
)


def write(folder: Path, template: str = TEMPLATE, special: Sequence[str] = SPECIAL) -> Path:
    """Write tokenizer.json and its companions to ``folder``, and return it."""
    alphabet = byte_alphabet()
    tokenizer: dict[str, Any] = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": 256 + i,
                "content": text,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
            for i, text in enumerate(special)
        ],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "ByteLevel",
            "add_prefix_space": False,
            "trim_offsets": True,
            "use_regex": True,
        },
        "post_processor": None,
        "decoder": {
            "type": "ByteLevel",
            "add_prefix_space": False,
            "trim_offsets": True,
            "use_regex": True,
        },
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "vocab": {alphabet[byte]: byte for byte in range(256)},
            "merges": [],
        },
    }
    config = {"bos_token": "<s>", "eos_token": "</s>", "chat_template": template}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder
