"""Reading a tokenizer from a checkpoint folder or a GGUF file."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from tokenizers import Tokenizer as Backend

from penstock.errors import TokenizerError, as_error
from penstock.freed_memory import give_back
from penstock.gguf.metadata import GgufValue, read_metadata
from penstock.gguf.names import is_gguf
from penstock.regular_file import read_regular
from penstock.tokenizer.codec import LibraryCodec
from penstock.tokenizer.gguf_vocab import build_vocab
from penstock.tokenizer.native_errors import refusing
from penstock.tokenizer.sentencepiece_folder import described_sentencepiece
from penstock.tokenizer.sentencepiece_model import read_sentencepiece
from penstock.tokenizer.tokenizer import Tokenizer, TokenizerSettings

_ROLES = (
    "bos_token",
    "eos_token",
    "unk_token",
    "pad_token",
    "sep_token",
    "cls_token",
    "mask_token",
)
_VOCABULARIES = "tokenizer.json", "tokenizer.model"
_FILES = (
    *_VOCABULARIES,
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
)
_PART = re.compile(r"(.+)-\d{5}-of-(\d{5})\.gguf")
_PROBE = "a"  # any text that encodes to something


def load_tokenizer(
    source: str | Path,
    check_templates: bool = True,
    metadata: Mapping[str, GgufValue] | None = None,
) -> Tokenizer:
    """Load the tokenizer of a checkpoint folder (with tokenizer.json, or else SentencePiece's
    tokenizer.model) or of a GGUF file, which may be any part of a model in several. ``metadata``
    are those of the file, where they were read before.

    From a folder, tokenizer_config.json, special_tokens_map.json, generation_config.json and
    chat_template.jinja are read where present. Raises TokenizerError naming the file at fault.
    Without ``check_templates`` a chat template that is no program is only refused when it is used.
    """
    tokenizer = _load(Path(source)) if metadata is None else _of_gguf(Path(source), metadata)
    if check_templates:
        tokenizer.check_templates()
    give_back()
    return tokenizer


def tokenizer_files(source: Path) -> tuple[Path, ...]:
    """The files on which the tokens depend that :func:`load_tokenizer` makes of a text; none where
    there is no tokenizer."""
    if is_gguf(source):
        return (_vocabulary_part(source),)
    if not any((source / name).exists() for name in _VOCABULARIES):
        return ()
    return tuple(path for name in _FILES if (path := source / name).exists())


def has_tokenizer(source: Path) -> bool:
    """Whether a folder or GGUF file has what :func:`load_tokenizer` reads, whole or broken."""
    return bool(tokenizer_files(source))


def _load(path: Path) -> Tokenizer:
    if is_gguf(path):
        return _load_gguf(path)
    if not path.is_dir():
        raise TokenizerError(f"{path} is neither a folder with tokenizer.json nor a GGUF file")
    if not os.path.lexists(path / "tokenizer.json") and (path / "tokenizer.model").is_file():
        return _load_sentencepiece(path)
    backend = _load_backend(path)
    config = _load_json(path / "tokenizer_config.json")
    special = _special_tokens(config, _load_json(path / "special_tokens_map.json"))
    bos = _token_id(backend, special.get("bos_token"))
    eos = _token_id(backend, special.get("eos_token"))
    broken = f"{path / 'tokenizer.json'} is corrupt"
    with as_error(lambda cause: TokenizerError(f"{broken}: {cause}; download it again")):
        prefix, suffix = _surroundings(backend)
        between = _between(backend, prefix, suffix)
    for flag, token in (("add_bos_token", bos), ("add_eos_token", eos)):
        if config.get(flag) is False:
            between = tuple(each for each in between if each != token)
    prefix = _with_override(config.get("add_bos_token"), bos, prefix)
    suffix = _with_override(config.get("add_eos_token"), eos, suffix)
    settings = TokenizerSettings(
        bos_token_id=bos,
        eos_token_ids=_end_ids(eos, path / "generation_config.json"),
        prefix_ids=prefix,
        suffix_ids=suffix,
        between_ids=between,
        special_tokens=special,
        chat_templates=_chat_templates(path, config),
    )
    return Tokenizer(LibraryCodec(backend), settings)


def _load_sentencepiece(folder: Path) -> Tokenizer:
    """A folder with tokenizer.model, and what lies beside it."""
    config = _load_json(folder / "tokenizer_config.json")
    special = _special_tokens(config, _load_json(folder / "special_tokens_map.json"))
    vocab = build_vocab(
        described_sentencepiece(
            read_sentencepiece(folder / "tokenizer.model"),
            _added_tokens(folder, config),
            special,
            config,
        ),
        native=False,  # whoever writes a file of it asks the library
    )
    eos = next(iter(vocab.end_token_ids), None)
    ends = _end_ids(eos, folder / "generation_config.json")
    settings = TokenizerSettings(
        bos_token_id=vocab.bos_token_id,
        eos_token_ids=ends,
        prefix_ids=vocab.prefix_ids,
        suffix_ids=vocab.suffix_ids,
        special_tokens={**vocab.special_tokens, **special},
        chat_templates=_chat_templates(folder, config),
        silent_ids=vocab.silent_ids,
    )
    return Tokenizer(vocab.codec, settings)


def _added_tokens(folder: Path, config: Mapping[str, Any]) -> dict[int, tuple[str, bool]]:
    """The text of tokens that were added to the pieces, and whether they are special, by id: those
    of added_tokens.json, and of added_tokens_decoder in tokenizer_config.json."""
    added: dict[int, tuple[str, bool]] = {}
    plain = _load_json(folder / "added_tokens.json")
    decoder = config.get("added_tokens_decoder") or {}
    try:
        added |= {int(token): (str(text), False) for text, token in plain.items()}
        added |= {
            int(token): (str(entry["content"]), bool(entry.get("special")))
            for token, entry in decoder.items()
        }
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise TokenizerError(
            f"{folder} names added tokens in a form that is not known: {error!r}"
        ) from error
    return added


def _load_gguf(path: Path) -> Tokenizer:
    path = _vocabulary_part(path)
    return _of_gguf(path, read_metadata(path, TokenizerError))


def _vocabulary_part(path: Path) -> Path:
    """The file that has the vocabulary: of a model in several, the first."""
    if match := _PART.fullmatch(path.name):
        first = path.with_name(f"{match[1]}-00001-of-{match[2]}.gguf")
        return first if first.exists() else path
    return path


def _of_gguf(path: Path, metadata: Mapping[str, GgufValue]) -> Tokenizer:
    part = metadata.get("split.no", 0)
    if part and "tokenizer.ggml.tokens" not in metadata:
        raise TokenizerError(
            f"{path} is a later part of a split model (split.no is {part!r:.20}), and the first "
            "one has the vocabulary; name that"
        )
    with as_error(lambda cause: TokenizerError(f"{path} is corrupt: {cause}; download it again")):
        vocab = build_vocab(metadata)
    settings = TokenizerSettings(
        bos_token_id=vocab.bos_token_id,
        eos_token_ids=vocab.end_token_ids,
        prefix_ids=vocab.prefix_ids,
        suffix_ids=vocab.suffix_ids,
        special_tokens=vocab.special_tokens,
        chat_templates=_gguf_templates(metadata),
        silent_ids=vocab.silent_ids,
    )
    return Tokenizer(vocab.codec, settings)


def _gguf_templates(metadata: Mapping[str, GgufValue]) -> dict[str, str]:
    """``tokenizer.chat_template`` and the named ones beside it."""
    key = "tokenizer.chat_template"
    templates = {}
    for name, template in metadata.items():
        if name == key or name.startswith(key + "."):
            if not isinstance(template, str):
                raise TokenizerError(f"{name} is not a text; convert the model again")
            templates[name[len(key) + 1 :] or "default"] = template
    return templates


def _load_backend(folder: Path) -> Backend:
    path = folder / "tokenizer.json"
    if not os.path.lexists(path):
        raise TokenizerError(
            f"{folder} has no tokenizer.json; download the checkpoint again with its tokenizer, or "
            "name a folder that has one with --tokenizer"
        )
    try:
        text = read_regular(path).decode()
    except OSError as error:
        raise TokenizerError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise TokenizerError(f"{path} is corrupt: {error}; download it again") from error
    with refusing(f"{path} is corrupt (download it again)"):
        return Backend.from_str(text)


def _load_json(path: Path) -> dict[str, Any]:
    """An optional JSON object; empty if the file is absent."""
    if not os.path.lexists(path):
        return {}
    try:
        return msgspec.json.decode(read_regular(path), type=dict[str, Any])
    except OSError as error:
        raise TokenizerError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:  # of msgspec, and of bytes that are no text
        raise TokenizerError(f"{path} is corrupt: {error}; download it again") from error


def _special_tokens(config: dict[str, Any], token_map: dict[str, Any]) -> dict[str, str]:
    """Special tokens by role; each is a string, or an object with its ``content``."""
    special = {}
    for role in _ROLES:
        value = config.get(role) or token_map.get(role)
        if isinstance(value, dict):
            value = value.get("content")
        if isinstance(value, str):
            special[role] = value
        elif value is not None:
            raise TokenizerError(f"{role} in tokenizer_config.json is {value!r}, not a token")
    return special


def _token_id(backend: Backend, token: str | None) -> int | None:
    if token is None:
        return None
    token_id: int | None = backend.token_to_id(token)
    if token_id is None:
        raise TokenizerError(
            f"tokenizer_config.json names the special token {token!r}, which tokenizer.json lacks"
        )
    return token_id


def _surroundings(backend: Backend) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """What the tokenizer's post-processor puts before and after a text."""
    with refusing("tokenizer.json cannot encode a text"):
        bare = backend.encode(_PROBE, add_special_tokens=False).ids
        full = backend.encode(_PROBE, add_special_tokens=True).ids
    for start in range(len(full) - len(bare) + 1):
        if full[start : start + len(bare)] == bare:
            return tuple(full[:start]), tuple(full[start + len(bare) :])
    raise TokenizerError("tokenizer.json has a post-processor that changes the text's own tokens")


def _between(backend: Backend, prefix: tuple[int, ...], suffix: tuple[int, ...]) -> tuple[int, ...]:
    """What the post-processor puts between two texts that are a pair."""
    bare = tuple(backend.encode(_PROBE, add_special_tokens=False).ids)
    pair = tuple(backend.encode(_PROBE, _PROBE, add_special_tokens=True).ids)
    first, last = (*prefix, *bare), (*bare, *suffix)
    if pair[: len(first)] != first or pair[-len(last) :] != last:
        return ()
    return pair[len(first) : -len(last)]


def _with_override(
    wanted: object, token_id: int | None, present: tuple[int, ...]
) -> tuple[int, ...]:
    """``add_bos_token`` and ``add_eos_token`` overrule the post-processor where they are given."""
    if wanted is True and token_id is not None and token_id not in present:
        return (*present, token_id)
    if wanted is False:
        return tuple(token for token in present if token != token_id)
    return present


def _end_ids(eos: int | None, generation_config: Path) -> tuple[int, ...]:
    declared = _load_json(generation_config).get("eos_token_id")
    others = declared if isinstance(declared, list) else [declared]
    ids = [token for token in (eos, *others) if token is not None]
    if any(not isinstance(token, int) for token in ids):
        raise TokenizerError(f"{generation_config}: eos_token_id is {declared!r}, not token ids")
    return tuple(dict.fromkeys(ids))


def _chat_templates(folder: Path, config: dict[str, Any]) -> dict[str, str]:
    """The template files if there are any, else what tokenizer_config.json holds."""
    files = {
        path.stem: path for path in sorted((folder / "additional_chat_templates").glob("*.jinja"))
    }
    if os.path.lexists(folder / "chat_template.jinja"):
        files["default"] = folder / "chat_template.jinja"
    try:
        templates = {name: read_regular(path).decode() for name, path in files.items()}
    except (OSError, UnicodeDecodeError) as error:
        raise TokenizerError(f"cannot read the chat templates in {folder}: {error}") from error
    if "default" in templates:
        return templates
    value = config.get("chat_template") or _load_json(folder / "chat_template.json").get(
        "chat_template"
    )
    if isinstance(value, str):
        return {**templates, "default": value}
    if isinstance(value, list):
        try:
            named = {str(entry["name"]): str(entry["template"]) for entry in value}
        except (TypeError, KeyError) as error:
            raise TokenizerError("chat_template in tokenizer_config.json is malformed") from error
        return {**named, **templates}
    return templates
