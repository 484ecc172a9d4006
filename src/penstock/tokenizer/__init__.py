"""Text to token ids and back."""

from penstock.tokenizer.detokenizer import IncrementalDetokenizer
from penstock.tokenizer.load import has_tokenizer, load_tokenizer
from penstock.tokenizer.tokenizer import Tokenizer, TokenizerSettings

__all__ = [
    "IncrementalDetokenizer",
    "Tokenizer",
    "TokenizerSettings",
    "has_tokenizer",
    "load_tokenizer",
]
