"""Talk to a model in the terminal.

  penstock chat Qwen/Qwen3-0.6B
  penstock chat path/to/model.gguf --system "You answer in one sentence."
  penstock chat path/to/model.gguf --quick "Why is the sky blue?"
  git diff | penstock chat path/to/model.gguf --quick "Write a commit message."
  penstock chat --url http://127.0.0.1:8000

MODEL is a folder, a GGUF file or a hub id, and with --url the server's name for it. Without one, a
small model for chats is downloaded, if you agree. /help lists what you can do in a conversation.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.chat.parameters import ChatParameters
from penstock.cli.main import EXIT_INTERRUPTED, debugging
from penstock.cli.options import (
    ADAPTERS,
    RARE_ENGINE,
    RARE_SAMPLING,
    add_engine_arguments,
    add_sampling_arguments,
    engine_config,
    option_name,
    sampling_params,
)
from penstock.cli.parser import UsageError
from penstock.cli.server_key import server_key
from penstock.cli.standard_input import is_piped, piped_text, text_argument
from penstock.collector import uncollected
from penstock.config import EngineConfig
from penstock.json_text import MAX_VALUE_DEPTH, decoded
from penstock.sampling.params import SamplingParams

if TYPE_CHECKING:
    from penstock.chat.chat_model import ChatModel
    from penstock.chat.conversation import Conversation
    from penstock.chat.session import ChatSession

KEY_VARIABLE = "PENSTOCK_API_KEY"
_SKIPPED_SAMPLING = set(SamplingParams.__struct_fields__) - set(ChatParameters.__struct_fields__)
_SKIPPED_ENGINE = {"seed", "load_format", "served_model_name", *ADAPTERS}


RARE = RARE_ENGINE | RARE_SAMPLING


def add_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("conversation")
    group.add_argument("--system", type=text_argument, metavar="TEXT", help="the system message")
    group.add_argument(
        "--load", type=Path, metavar="FILE", help="go on with a conversation that /save has written"
    )
    group.add_argument(
        "--quick",
        type=text_argument,
        nargs="?",
        const="",
        metavar="TEXT",
        help="ask this one question, write the answer and end; what is piped in is appended to it, "
        "or is the question if there is no TEXT",
    )
    group.add_argument(
        "--chat-template",
        type=Path,
        metavar="FILE",
        help="a Jinja template that makes a prompt of messages, in place of the model's own",
    )
    group.add_argument(
        "--chat-template-kwargs",
        type=_json_object,
        metavar="JSON",
        help="variables of the chat template, such as '{\"enable_thinking\": false}'",
    )
    group.add_argument(
        "--yes", action="store_true", help="without MODEL, download the small model unasked"
    )
    group.add_argument(
        "--no-history", action="store_true", help="do not keep what you write for the next time"
    )
    group = parser.add_argument_group("another server")
    group.add_argument(
        "--url",
        metavar="URL",
        help="ask this server, which speaks OpenAI's API, instead of loading a model here: "
        "http://HOST:PORT, or a URL with the path that /chat/completions is below",
    )
    group.add_argument(
        "--api-key-env",
        metavar="NAME",
        help=f"the environment variable that holds the server's key (default: {KEY_VARIABLE}, if "
        "it is set)",
    )
    add_sampling_arguments(parser, skip=_SKIPPED_SAMPLING)
    add_engine_arguments(
        parser,
        skip=_SKIPPED_ENGINE,
        model_help="The model to talk to: a folder, a GGUF file or a hub id, made for chats; with "
        "--url, the server's name for it. Without one, a small model is offered.",
    )


def run(args: argparse.Namespace) -> int:
    conversation = _conversation(args)
    question = _question(args)
    from penstock.chat.session import ChatSession
    from penstock.chat.views import Screen

    model = _remote(args) if args.url is not None else _local(args)
    try:
        _check_chat_template_kwargs(args.chat_template_kwargs or {}, model.chat_template_kwargs)
        session = ChatSession(model, Screen(sys.stdout), conversation, debugging(args.debug))
        if question is None:
            _converse(session, args.no_history)
        else:
            answer = session.ask(question)
            if answer.stopped:
                return EXIT_INTERRUPTED
            if sys.stderr.isatty():
                print(answer.summary(), file=sys.stderr)
    finally:
        model.close()
    return 0


def _converse(session: ChatSession, forget: bool) -> None:
    from penstock.chat.commands import command_words
    from penstock.chat.lines import LineReader, line_with_prompt_aside, state_folder

    folder = state_folder()
    history = None if forget or folder is None else folder / "chat_history"
    read = input if sys.stdout.isatty() else line_with_prompt_aside
    session.run(LineReader(history, command_words(), read))


def _conversation(args: argparse.Namespace) -> Conversation:
    from penstock.chat.conversation import Conversation, load_conversation

    sampling_params(args)  # refuses what is out of range
    conversation = Conversation() if args.load is None else load_conversation(args.load)
    given = {
        name: tuple(value) if isinstance(value, list) else value
        for name in ChatParameters.__struct_fields__
        if (value := getattr(args, name, None)) is not None
    }
    parameters = msgspec.structs.replace(conversation.parameters, **given)
    conversation = conversation.with_parameters(parameters)
    options = {**conversation.chat_template_kwargs, **(args.chat_template_kwargs or {})}
    conversation = msgspec.structs.replace(conversation, chat_template_kwargs=options)
    return conversation if args.system is None else conversation.with_system(args.system)


def _json_object(text: str) -> dict[str, Any]:
    try:
        return decoded(text, dict[str, Any], MAX_VALUE_DEPTH)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r:.80} is no JSON object: {error}") from None


def _check_chat_template_kwargs(given: dict[str, Any], known: tuple[str, ...] | None) -> None:
    unread = [] if known is None else [name for name in given if name not in known]
    if unread:
        reads = f"it reads {', '.join(known)}" if known else "it reads none of its own"
        raise UsageError(
            f"argument --chat-template-kwargs: the model's chat template reads no variable "
            f"{unread[0]!r}; {reads}"
        )


def _question(args: argparse.Namespace) -> str | None:
    """The one question that is asked; None for a conversation."""
    if args.quick is None and sys.stdin is not None and sys.stdin.isatty():
        return None
    piped = piped_text() if is_piped() else ""
    question = "\n\n".join(part for part in (args.quick or "", piped.strip("\n")) if part.strip())
    if not question:
        raise UsageError("there is no question: write it behind --quick, or pipe it in")
    return question


def _remote(args: argparse.Namespace) -> ChatModel:
    from penstock.chat.remote_model import Endpoint, RemoteModel

    local = [name for name in EngineConfig.__struct_fields__ if hasattr(args, name)]
    local = [name for name in local if name not in ("model", "seed")]
    local += ["chat_template"] if args.chat_template is not None else []
    if local:
        raise UsageError(
            f"argument {option_name(local[0])}: it is for a model that is loaded here, not for a "
            "server's; leave it or --url out"
        )
    return RemoteModel(Endpoint(args.url, server_key(args.api_key_env, KEY_VARIABLE)), args.model)


def _local(args: argparse.Namespace) -> ChatModel:
    if args.api_key_env is not None:
        raise UsageError("argument --api-key-env: it is for a server; name one with --url")
    config = msgspec.structs.asdict(engine_config(args))
    del config["seed"]  # the conversation's, see add_arguments
    if not config["model"]:
        from penstock.cli.first_model import first_model

        config["model"] = first_model(args.yes)

    with uncollected():
        from penstock.chat.local_model import LocalModel
        from penstock.cli.load import loaded

    llm = loaded(config, args.chat_template, quiet=False)
    try:
        return LocalModel(llm)
    except BaseException:
        llm.close()
        raise
