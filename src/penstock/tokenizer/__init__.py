"""Text to token ids and back."""

from penstock.tokenizer.detokenizer import IncrementalDetokenizer
from penstock.tokenizer.load import load_tokenizer
from penstock.tokenizer.tokenizer import Tokenizer, TokenizerSettings

__all__ = [
    "IncrementalDetokenizer",
    "Tokenizer",
    "TokenizerSettings",
    "load_tokenizer",
]
