"""Train the demo models' tokenizer: byte-level BPE over the training documents."""

from __future__ import annotations

from collections.abc import Iterable

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

END_OF_TEXT = "<|endoftext|>"
CHAT_TOKENS = ("<|system|>", "<|user|>", "<|assistant|>")

# Newlines with the indentation that follows (in source code an indent is one decision and
# should be one token), words with their leading space, digits in threes, runs of punctuation.
PIECES = r"\n+[ \t]*| ?[A-Za-z_]+| ?\d{1,3}| ?[^\s\w]+| ?\w+|[ \t\r\f\v]+|\s+"


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """A lossless byte-level BPE: every byte is a token, so no text is unknown.

    ``<|endoftext|>`` is id 0 and both starts and ends a document; it is prepended when
    special tokens are asked for, which is how the models were trained.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_TEXT, *CHAT_TOKENS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{END_OF_TEXT} $A", special_tokens=[(END_OF_TEXT, 0)]
    )
    return tokenizer
