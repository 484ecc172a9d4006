"""Answers tests/tokenizer/gguf_words.json anew: what llama.cpp makes of its texts.

    LLAMA_CPP_LIB_PATH=FOLDER PYTHONPATH=src:tests python tests/tools/write_gguf_words.py PYTHON

PYTHON is an interpreter with llama-cpp-python. Of the token ids of each text and
pre-tokenizer a digest is kept.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from support.gguf_files import digest, word_vocabulary, write_metadata

from penstock.tokenizer.gguf_pre_tokenizers import pre_tokenizer_names


def main(python: str) -> None:
    here = Path(__file__).parent
    target = here.parent / "tokenizer" / "gguf_words.json"
    texts = json.loads(target.read_text())["texts"]
    answers = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in pre_tokenizer_names():
            if name == "gpt2":  # an old name, which llama.cpp has lost
                continue
            file = write_metadata(Path(folder) / "v.gguf", {}, **word_vocabulary(name))
            found = subprocess.run(
                [python, here / "llama_cpp_tokens.py", file],
                input=json.dumps(texts),
                capture_output=True,
                text=True,
                check=True,
            )
            answer = json.loads(found.stdout)
            answers[name] = {
                "around": answer["around"],
                "ids": " ".join(digest(ids) for ids in answer["ids"]),
            }
            print(name, file=sys.stderr)
    target.write_text(json.dumps({"texts": texts, "answers": answers}, indent=0) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
