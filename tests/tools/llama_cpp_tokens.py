"""llama.cpp's own tokens of texts, for comparison: run by a Python that has llama-cpp-python.

    LLAMA_CPP_LIB_PATH=FOLDER python llama_cpp_tokens.py FILE.gguf < texts.json > answer.json

Texts are a JSON list of strings. The answer has, for each, the token ids without and with special
tokens parsed, and for the vocabulary the ids that begin a text, end one and end generation, and
what each token is as text, in hexadecimal.
"""

from __future__ import annotations

import ctypes
import json
import sys
from typing import Any

import llama_cpp  # type: ignore[import-not-found, unused-ignore]


def main(path: str) -> None:
    silent = llama_cpp.llama_log_callback(lambda level, text, data: None)
    llama_cpp.llama_log_set(silent, None)
    llama_cpp.llama_backend_init()
    options = llama_cpp.llama_model_default_params()
    options.vocab_only = True
    model = llama_cpp.llama_model_load_from_file(path.encode(), options)
    if not model:
        sys.exit(f"llama.cpp cannot load {path}")
    vocab = llama_cpp.llama_model_get_vocab(model)
    count = llama_cpp.llama_vocab_n_tokens(vocab)
    texts = json.load(sys.stdin)
    json.dump(
        {
            "ids": [tokens(vocab, text, parse_special=False) for text in texts],
            "parsed": [tokens(vocab, text, parse_special=True) for text in texts],
            "around": tokens(vocab, "", parse_special=False, add_special=True),
            "ends": [i for i in range(count) if llama_cpp.llama_vocab_is_eog(vocab, i)],
            "control": [i for i in range(count) if llama_cpp.llama_vocab_is_control(vocab, i)],
            "pieces": [piece(vocab, i) for i in range(count)],
        },
        sys.stdout,
    )


def tokens(vocab: Any, text: str, parse_special: bool, add_special: bool = False) -> list[int]:
    raw = text.encode()
    room = len(raw) + 8
    found = (llama_cpp.llama_token * room)()
    count = llama_cpp.llama_tokenize(vocab, raw, len(raw), found, room, add_special, parse_special)
    assert count >= 0
    return list(found[:count])


def piece(vocab: Any, token: int) -> str:
    room = 4096
    text = ctypes.create_string_buffer(room)
    size = llama_cpp.llama_token_to_piece(vocab, token, text, room, 0, True)
    assert size >= 0
    return text.raw[:size].hex()


if __name__ == "__main__":
    main(sys.argv[1])
