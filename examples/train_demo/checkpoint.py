"""Write a trained model as a Hugging Face checkpoint."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from tokenizers import Tokenizer
from transformers import LlamaForCausalLM

from card import write as write_card
from decoder import CONTEXT
from vocabulary import CHAT_TOKENS, END_OF_TEXT

# Messages become the comments and docstrings that the model knows from its corpus.
CHAT_TEMPLATE = (
    "{{- bos_token }}"
    "{%- for message in messages %}"
    "{%- if message['role'] == 'assistant' %}{{ message['content'] + '\\n\\n' }}"
    "{%- else %}{{ '# ' + message['content'] | replace('\\n', '\\n# ') + '\\n' }}"
    "{%- endif %}"
    "{%- endfor %}"
)


def save(model: LlamaForCausalLM, tokenizer: Tokenizer, out: Path, card: dict[str, object]) -> None:
    """Write the model in bf16, with its tokenizer, template and model card."""
    out.mkdir(parents=True, exist_ok=True)
    state = {name: t.to(torch.bfloat16).clone() for name, t in model.state_dict().items()}
    clone = LlamaForCausalLM(model.config).to(torch.bfloat16)
    clone.load_state_dict(state)
    clone.save_pretrained(out)
    tokenizer.save(str(out / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": END_OF_TEXT,
        "eos_token": END_OF_TEXT,
        "additional_special_tokens": list(CHAT_TOKENS),
        "model_max_length": CONTEXT,
        "chat_template": CHAT_TEMPLATE,
    }
    (out / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n")
    (out / "training.json").write_text(json.dumps(card, indent=2) + "\n")
    write_card(out)
