"""The tokenizer of an ``LLM``."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path

from penstock.gguf.metadata import GgufValue
from penstock.tokenizer import Tokenizer, has_tokenizer, load_tokenizer
from penstock.weights.model_files import ModelFiles


class LlmTokenizer:
    """A model's tokenizer, loaded when it is first needed. Safe to share between threads.

    ``path`` is where it is, which need not be among the model's ``files``. ``chat_template`` takes
    the place of its own, if it is not empty.
    """

    def __init__(self, path: str, files: ModelFiles, vocab_size: int, chat_template: str) -> None:
        self._path = path
        self._vocab_size = vocab_size
        self._chat_template = chat_template
        self._metadata: Mapping[str, GgufValue] | None = None
        if files.gguf is not None and str(files.path) == path:
            self._metadata = files.gguf.metadata  # read already
        self._lock = threading.RLock()
        self._loaded: Tokenizer | None = None

    @property
    def exists(self) -> bool:
        """Whether there is one: a model of token ids alone (dummy weights, say) needs none."""
        path = Path(self._path)
        return not path.is_dir() or has_tokenizer(path)

    def get(self) -> Tokenizer:
        """The tokenizer. Raises TokenizerError if there is none that can be read."""
        with self._lock:
            if self._loaded is None:
                self._loaded = self._load()
                self._metadata = None
            return self._loaded

    def _load(self) -> Tokenizer:
        # Prompts need no template: one that is no program is refused by chats.
        tokenizer = load_tokenizer(self._path, check_templates=False, metadata=self._metadata)
        tokenizer.check_model(self._vocab_size)
        if not self._chat_template:
            return tokenizer
        return tokenizer.with_chat_template(self._chat_template)
