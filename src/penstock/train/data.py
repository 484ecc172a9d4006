"""Texts to train on: from files and folders to lists of token ids, training and held out."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from penstock.errors import ConfigError, RequestError
from penstock.tokenizer import Tokenizer

SUFFIXES: Final = (".txt", ".md", ".py", ".jsonl")
"""Files that are read out of folders. A file that is named is read whatever its suffix."""


class Line(msgspec.Struct):
    """One line of a JSON Lines file; other fields are left alone."""

    text: str | None = None
    prompt: str | None = None
    completion: str | None = None
    messages: list[dict[str, Any]] | None = None


@dataclass(frozen=True)
class Sample:
    """One document. ``prompt`` is how many of its tokens come before the answer, 0 if unknown."""

    name: str
    token_ids: list[int]
    prompt: int = 0

    def held_out(self, share: float) -> bool:
        """Whether it is among the ``share`` that is not trained on: a matter of its name alone."""
        return self.place < round(share * 1000)

    @property
    def place(self) -> int:
        """A number from 0 to 999 that its name alone decides."""
        digest = hashlib.sha256(self.name.encode()).digest()
        return int.from_bytes(digest[:4], "little") % 1000


def read_samples(data: Path, tokenizer: Tokenizer) -> list[Sample]:
    """Every document of a file, or of all files below a folder, in the order of their names.

    A text file is one document, each line of a ``.jsonl`` file another. Raises ConfigError naming
    the file and the line at fault, and where there is no text at all.
    """
    if data.is_dir():
        files = sorted(file for file in data.rglob("*") if file.suffix in SUFFIXES)
        if not files:
            raise ConfigError(f"{data} has no files that end in {', '.join(SUFFIXES)}")
    elif data.is_file():
        files = [data]
    else:
        raise ConfigError(f"there is no file or folder {data} to train on")
    samples = [
        sample
        for file in files
        for sample in _read(
            file, file.relative_to(data).as_posix() if data.is_dir() else file.name, tokenizer
        )
    ]
    if not samples:
        raise ConfigError(f"{data} has no text to train on")
    return samples


def split(samples: list[Sample], share: float) -> tuple[list[Sample], list[Sample]]:
    """``(training, held_out)``: a matter of the documents' names, as long as there are enough.

    Of a few documents perhaps none would be held out, or all. Then those of the lowest
    :attr:`Sample.place` are, until they have ``share`` of the tokens, but for at least one document
    that is trained on; and of one document, its end is.
    """
    if len(samples) == 1:
        (whole,) = samples
        cut = round(len(whole.token_ids) * (1 - share))
        return [Sample(whole.name, whole.token_ids[:cut])], [
            Sample(whole.name, whole.token_ids[cut:])
        ]
    count = sum(sample.held_out(share) for sample in samples)
    if 0 < count < len(samples):
        chosen = [sample for sample in samples if sample.held_out(share)]
    else:
        wanted = share * sum(len(sample.token_ids) for sample in samples)
        chosen = []
        for sample in sorted(samples, key=lambda each: (each.place, each.name))[:-1]:
            if chosen and sum(len(each.token_ids) for each in chosen) >= wanted:
                break
            chosen.append(sample)
    names = {sample.name for sample in chosen}
    return [sample for sample in samples if sample.name not in names], chosen


def _read(file: Path, name: str, tokenizer: Tokenizer) -> Iterator[Sample]:
    try:
        text = file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file}: not UTF-8 text ({error})") from None
    if file.suffix != ".jsonl":
        if text.strip():
            yield Sample(name, tokenizer.encode(text, parse_special=False))
        return
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            where = f"{file}, line {number}"
            try:
                parsed = msgspec.json.decode(line, type=Line)
                yield _sample(parsed, f"{name}:{number}", where, tokenizer)
            except (msgspec.DecodeError, RequestError) as error:
                raise ConfigError(f"{where}: {error}") from None


def _sample(line: Line, name: str, where: str, tokenizer: Tokenizer) -> Sample:
    given = [field for field in ("text", "prompt", "messages") if getattr(line, field) is not None]
    if len(given) != 1 or (line.completion is not None and line.prompt is None):
        raise ConfigError(
            f'{where}: each line needs "text", or "prompt" and "completion", or "messages"'
            f"{'; this one has ' + ' and '.join(given) if given else ''}"
        )
    if line.text is not None:
        return Sample(name, tokenizer.encode(line.text, parse_special=False))
    if line.prompt is not None:
        prompt = [*tokenizer.settings.prefix_ids, *tokenizer.encode(line.prompt, False, False)]
        answer = tokenizer.encode(line.completion or "", False, False)
        return Sample(name, [*prompt, *answer, *tokenizer.eos_token_ids[:1]], len(prompt))
    messages = line.messages or []
    for message in messages:
        if not isinstance(message.get("role"), str) or "content" not in message:
            raise ConfigError(f'{where}: each of "messages" needs a "role" and a "content"')
    if not messages:
        raise ConfigError(f'{where}: "messages" is empty')
    asked = messages[:-1] if messages[-1]["role"] == "assistant" else messages
    whole = tokenizer.apply_chat_template(messages, add_generation_prompt=False)
    prompt_ids = tokenizer.encode(tokenizer.apply_chat_template(asked), False) if asked else []
    return Sample(name, tokenizer.encode(whole, False), len(prompt_ids))
