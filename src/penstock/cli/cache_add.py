"""Compute a prefix, and keep it on disk for good: a text, or the messages of a conversation.

  penstock cache add manual.txt --label manual
  penstock cache add messages.json --url http://127.0.0.1:8000
  penstock cache add manual.txt MODEL --kv-disk /var/cache/penstock-kv:100GB

Without --kv-disk a running server is asked, which computes it; MODEL is then the one of a server of
several. With it the model is loaded here, with the options that the server has; both may use the
folder at once. Whole blocks of 32 tokens are kept, from the first token on.

A JSON file has a list of messages, or an object of a chat request: its 'messages', and what else
the prompt depends on. Anything else is a text, and continued as one.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any, Final

import msgspec

from penstock import json_text
from penstock.cli.cache_places import add_key_argument, asked, link_to, queried
from penstock.cli.options import (
    ADAPTERS,
    RARE_ENGINE,
    add_engine_arguments,
    engine_config,
    option_name,
    values_of,
)
from penstock.cli.parser import UsageError
from penstock.cli.quantity import size
from penstock.collector import uncollected
from penstock.config import EngineConfig
from penstock.errors import PenstockError, RequestError
from penstock.server_link import ServerLink
from penstock.terminal import encodable

COMPUTE_TIMEOUT_S: Final = 3600.0
_HERE: Final = frozenset({"messages", "tools", "chat_template_kwargs", "model"})
"""Fields of a conversation that are known without a server."""

RARE = RARE_ENGINE


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, metavar="FILE", help="the text or the messages")
    group = parser.add_argument_group("prefix")
    group.add_argument("--label", default="", help="what to call it")
    group.add_argument("--url", help="the server that computes it (default: http://127.0.0.1:8000)")
    group.add_argument(
        "--chat-template",
        type=Path,
        metavar="FILE",
        help="with --kv-disk: a Jinja template that makes a prompt of messages, as the server's "
        "--chat-template",
    )
    add_key_argument(parser)
    add_engine_arguments(
        parser, skip={"served_model_name", *ADAPTERS}, model_help="the model that computes it"
    )


def run(args: argparse.Namespace) -> int:
    from penstock.kvstore.pinned_prefix import check_label

    check_label(args.label)
    asked_for = _prompt(args.file)
    if engine_config(args).kv_disk is None:
        return _by_server(args, asked_for)
    if args.url is not None:
        raise UsageError("give --url, to ask a server, or --kv-disk, to compute it here")
    return _here(args, asked_for)


def _prompt(path: Path) -> str | dict[str, Any]:
    """The text of a file, or the fields of its conversation. Raises PenstockError."""
    content = path.read_bytes()
    decoded: Any = None
    try:
        decoded = json_text.decoded(content, Any)
    except ValueError as error:
        if path.suffix == ".json":
            raise PenstockError(f"{path} is no JSON: {error}") from None
    if isinstance(decoded, list) and decoded and all(_is_message(each) for each in decoded):
        return {"messages": decoded}
    if isinstance(decoded, dict) and isinstance(decoded.get("messages"), list):
        return decoded
    if path.suffix == ".json":
        raise PenstockError(
            f"{path} has no messages: it is to hold a list of them, or an object with 'messages'; "
            "name it otherwise if it is the text itself"
        )
    try:
        text = content.decode()
    except UnicodeDecodeError:
        raise PenstockError(f"{path} is neither a text in UTF-8 nor JSON") from None
    if not text:
        raise PenstockError(f"{path} is empty")
    return text


def _is_message(value: object) -> bool:
    return isinstance(value, dict) and "role" in value


def _by_server(args: argparse.Namespace, prompt: str | dict[str, Any]) -> int:
    given = sorted(values_of(EngineConfig, args).keys() - {"model"})
    given += ["chat_template"] if args.chat_template is not None else []
    if given:
        raise UsageError(
            f"argument {option_name(given[0])}: it is for computing the prefix here, with "
            "--kv-disk; a server has its own"
        )
    link = link_to(args.url or "http://127.0.0.1:8000", args)
    body: dict[str, Any]
    if isinstance(prompt, str):
        path, body = "/v1/completions", {"prompt": prompt}
    else:
        path, body = "/v1/chat/completions", dict(prompt)
    if args.model or "model" not in body:
        body["model"] = args.model or _first_model(link)
    where = queried("/admin/cache/pin", path=path, label=args.label or None)
    _tell(asked(link, where, body, COMPUTE_TIMEOUT_S), args.label)
    return 0


def _first_model(link: ServerLink) -> str:
    models = asked(link, "/v1/models")["data"]
    if not models:
        raise RequestError("the server has no model yet; name the one that is to compute: --model")
    return str(models[0]["id"])


def _here(args: argparse.Namespace, prompt: str | dict[str, Any]) -> int:
    config = msgspec.structs.asdict(engine_config(args))
    with uncollected():
        from penstock.cli.load import loaded
        from penstock.engine.block_checksum import block_checksum
        from penstock.engine.prompt_keys import prompt_keys
        from penstock.kvstore.pinning import pin_computed
        from penstock.sampling.params import SamplingParams

    if isinstance(prompt, dict) and (unknown := sorted(prompt.keys() - _HERE)):
        raise RequestError(f"{unknown[0]!r} of {args.file} needs a server; give --url")
    if isinstance(prompt, dict):
        _check_kinds(prompt, args.file)
    with loaded(config, args.chat_template, quiet=False) as llm:
        place = llm.block_place
        if place is None:
            raise PenstockError("the folder of --kv-disk cannot be used; see above")
        params = SamplingParams(temperature=0.0, max_tokens=1)
        if isinstance(prompt, str):
            (output,) = llm.generate([prompt], params)
        else:
            (output,) = llm.chat(
                prompt["messages"],
                params,
                tools=prompt.get("tools"),
                chat_template_kwargs=prompt.get("chat_template_kwargs"),
            )
        if output.error is not None:
            raise PenstockError(output.error)
        keys = prompt_keys(output.prompt_token_ids)
    # What was still to be written is on disk now.
    _tell(msgspec.to_builtins(pin_computed(place, keys, args.label, block_checksum)), args.label)
    return 0


def _check_kinds(fields: dict[str, Any], path: Path) -> None:
    """Raise RequestError where a field of a conversation is not of the kind that it has there."""
    for name, kind, called in (
        ("tools", list, "a list"),
        ("chat_template_kwargs", dict, "an object"),
    ):
        if not isinstance(fields.get(name), kind | None):
            raise RequestError(f"{name!r} of {path} must be {called}")


def _tell(prefix: dict[str, Any], label: str) -> None:
    its = str(prefix.get("label", ""))
    name = f"{str(prefix['id'])[:12]} {its}".rstrip()
    told = f"{name}: {prefix['tokens']:,} tokens of {prefix['model']}, {size(prefix['bytes'])}"
    before = "under this label" if its else "without a label"
    done = "are pinned" if its == label else f"were pinned before, {before}"
    print(encodable(f"{told}, {done}", sys.stdout))
