"""Grammars for tests, with what decides whether a text is of one; and an engine over bytes."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.config import EngineConfig
from penstock.engine.loader import EnginePlan, plan_engine
from penstock.grammar.spec import GrammarSpec
from penstock.grammar.tokens import Vocabulary
from penstock.tokenizer import load_tokenizer
from support import byte_tokenizer
from support.json_schema import fault

EOS, STOP = 257, 259  # </s> and <|im_end|> of the byte tokenizer
PADDED = 264
"""Logits of the model: four more than the byte tokenizer has tokens."""


@dataclass(frozen=True)
class Language:
    spec: GrammarSpec
    holds: Callable[[str], bool]


def schema(value: dict[str, Any]) -> Language:
    def holds(text: str) -> bool:
        try:
            return fault(json.loads(text), value, value) is None
        except json.JSONDecodeError:
            return False

    return Language(GrammarSpec(kind="json_schema", text=json.dumps(value)), holds)


def regex(pattern: str) -> Language:
    return Language(
        GrammarSpec(kind="regex", text=pattern),
        lambda text: re.fullmatch(pattern, text) is not None,
    )


def choice(*texts: str) -> Language:
    return Language(GrammarSpec(kind="choice", text=json.dumps(texts)), lambda text: text in texts)


PERSON = {
    "type": "object",
    "properties": {
        "name": {"enum": ["Ada", "Grace Hopper", "é"]},
        "age": {"type": "integer", "minimum": 0, "maximum": 130},
        "tags": {"type": "array", "items": {"type": "boolean"}, "maxItems": 2},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}


def finite_schema(value: dict[str, Any]) -> Language:
    """Return the grammar of a schema with bounds, which ``json_schema`` does not check."""
    known = _without(value, {"minimum", "maximum", "maxItems", "maxLength"})
    return Language(GrammarSpec(kind="json_schema", text=json.dumps(value)), schema(known).holds)


def _without(value: Any, keys: set[str]) -> Any:
    if isinstance(value, dict):
        return {k: _without(v, keys) for k, v in value.items() if k not in keys}
    return [_without(each, keys) for each in value] if isinstance(value, list) else value


FINITE = [
    finite_schema(PERSON),
    regex(r"[a-c]{2,5}(-[0-9]{1,3}){0,2}"),
    choice("yes", "no", "yes, but", "ünlü 🎉"),
    Language(
        GrammarSpec(kind="lark", text='start: p ("," p)?\np: "(" N "|" N ")"\nN: /[0-9]{1,2}/'),
        regex(r"\([0-9]{1,2}\|[0-9]{1,2}\)(,\([0-9]{1,2}\|[0-9]{1,2}\))?").holds,
    ),
    Language(
        GrammarSpec(
            kind="gbnf",
            text='# A list.\nroot ::= item ("," item){0,2} "\\n"?\n'
            'item ::= "\\"" [a-c_] "\\"" |\n  digit{1,2}\ndigit ::= [0-9]\n',
        ),
        regex(r'("[a-c_]"|[0-9]{1,2})(,("[a-c_]"|[0-9]{1,2})){0,2}\n?').holds,
    ),
]
"""One of each kind, none of which goes on for ever."""


def byte_vocabulary(folder: Path, *, padded: int = PADDED) -> Vocabulary:
    return Vocabulary(load_tokenizer(byte_tokenizer.write(folder)), padded, (EOS,))


def byte_engine_plan(folder: Path, **options: object) -> EnginePlan:
    """A model of bytes without weights."""
    byte_tokenizer.write(folder)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": PADDED,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "hidden_act": "silu",
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": True,
        "torch_dtype": "float32",
        "bos_token_id": 256,
        "eos_token_id": EOS,
    }
    (folder / "config.json").write_text(json.dumps(config))
    values = {"model": str(folder), "load_format": "dummy", "backend": "reference"} | options
    return plan_engine(EngineConfig(**values))  # type: ignore[arg-type]
