"""Serve a model over the OpenAI API: completions, chats, responses and embeddings, below /v1.

Also /health, /ready, /metrics (Prometheus), /version, and /admin with the admin key.
Ctrl-C or SIGTERM stops taking requests, lets open ones finish for --grace seconds, and exits; a
second one exits at once. docs/serve.md says more.
"""

from __future__ import annotations

import argparse
import logging
import os
import socket
import sys
import time
from typing import TYPE_CHECKING

from penstock.cli.http_options import check_tls
from penstock.cli.listen import address_in_use, addresses, bind, raise_file_limit
from penstock.cli.load_progress import LoadProgress
from penstock.cli.main import debugging, drop_output, outcome
from penstock.cli.options import engine_config
from penstock.cli.parser import UsageError
from penstock.cli.serve_options import RARE, add_arguments
from penstock.cli.serve_profile import engine_core, engine_setup, notes, with_profile
from penstock.cli.serve_roles import role
from penstock.cli.serve_server import chat_template, run_options
from penstock.collector import uncollected
from penstock.config import EngineConfig
from penstock.engine.ipc.spawn import EngineChild
from penstock.engine.ipc.startup import Ledger, describe, process_started_at
from penstock.errors import PenstockError
from penstock.server.guardian import Guardian, GuardOptions, Life
from penstock.server.kept_profile import KeptProfile
from penstock.terminal import columns
from penstock.threads import format_count

if TYPE_CHECKING:
    from penstock.cli.announcement import Announcement
    from penstock.frontend.async_llm import AsyncLLM
    from penstock.parsing.styles import Styles
    from penstock.profile import Profile
    from penstock.server.run import RunOptions
    from penstock.server.setups import EngineSetup

__all__ = ["RARE", "add_arguments", "run"]


def run(args: argparse.Namespace) -> int:
    if args.models is not None:
        from penstock.cli import serve_models

        return serve_models.run(args)
    if args.models_memory is not None:
        raise UsageError("argument --models-memory: it needs --models")
    ledger = Ledger(process_started_at())
    check_tls(args)
    chat_template(args.chat_template)
    role(args)  # raises for what would fail later
    raise_file_limit()
    with bind(args.host, args.port) as listener:
        config = engine_config(args)
        ledger.mark("python")
        options = GuardOptions(max_restarts=args.max_restarts, log_format=args.log_format)
        kept = KeptProfile()
        # From here on there are two processes: this one waits, the other one serves.
        return Guardian(listener, options).run(
            lambda life: outcome(
                lambda: _live(life, config, kept, listener, args, ledger), debugging(args.debug)
            )
        )


def _live(
    life: Life,
    config: EngineConfig,
    kept: KeptProfile,
    listener: socket.socket,
    args: argparse.Namespace,
    ledger: Ledger,
) -> int:
    """One life of the serving process. Errors of penstock.errors end it for good."""
    if life.restarts:
        ledger = Ledger(time.monotonic())
    profile = kept.read()
    if profile is not None:
        args = with_profile(args, profile)
        config = engine_config(args)
    try:
        # First of all the engine's process, so that it loads while this one imports a server.
        child = EngineChild.spawn(config, engine_core(os.environ), role(args))
        try:
            _serve(life, child, config, kept, listener, args, ledger)
        finally:
            child.kill()
    except PenstockError:
        life.over()
        raise
    life.over()
    return 0


def _serve(
    life: Life,
    child: EngineChild,
    config: EngineConfig,
    kept: KeptProfile,
    listener: socket.socket,
    args: argparse.Namespace,
    ledger: Ledger,
) -> None:
    with uncollected():
        import asyncio

        from penstock.server.run import serve
        from penstock.server.setups import Setups

    options = run_options(args, config, listener, life.restarts)
    host, port = listener.getsockname()[:2]
    log = logging.getLogger("penstock.server")
    progress = LoadProgress(sys.stderr, enabled=not life.restarts, say=log.info)

    def announce(llm: AsyncLLM) -> None:
        life.ready()
        progress.close()
        if life.restarts:
            return  # the log says it
        for phase in llm.ready.phases:
            ledger.mark(phase.name, phase.seconds)
        ledger.mark("server")
        total = sum(phase.seconds for phase in ledger.phases)
        try:
            print(_announcement(args, config, options, listener, llm).text(_columns()))
            print(describe(ledger.phases, total), flush=True)
        except OSError as error:  # it serves all the same, as with a log that cannot be written
            log.warning("standard output cannot be written: %s", error.strerror)
            drop_output()

    def of_profile(profile: Profile) -> EngineSetup:
        with_it = with_profile(args, profile)
        return engine_setup(with_it, engine_config(with_it))

    setups = Setups(engine_setup(args, config), of_profile, kept.keep)
    with progress, address_in_use(host, port):
        asyncio.run(serve(child, setups, listener, options, announce, progress))


def _announcement(
    args: argparse.Namespace,
    config: EngineConfig,
    options: RunOptions,
    listener: socket.socket,
    llm: AsyncLLM,
) -> Announcement:
    from penstock.cli.announcement import Announcement
    from penstock.server.model_card import made_for
    from penstock.version import __version__

    host, port = listener.getsockname()[:2]
    scheme = "http" if options.tls is None else "https"
    keys_needed = bool(options.server.keys.users)
    facts = [*_facts(llm), *_of_profile(args, config), str(_styles(args, llm))]
    if not keys_needed and not _is_loopback(host):
        facts.append(f"note: anyone who reaches {host} may use this server; see --api-key-file")
    chats = made_for(llm.model, llm.tokenizer.has_chat_template) == "chat"
    return Announcement(
        version=__version__,
        model=llm.model.served_model_name,
        urls=[f"{scheme}://{address}:{port}" for address in addresses(listener)],
        facts=facts,
        chats=chats,
        prompt="Hello!" if chats else "def fib(n):" if llm.model.is_demo else "Once upon a time",
        keys_needed=keys_needed,
        has_page=options.server.page,
    )


def _facts(llm: AsyncLLM) -> list[str]:
    """What was decided for the model, and what there is to note."""
    from penstock.backends.registry import backend

    resolved = llm.ready.config
    if resolved is None:
        return list(llm.ready.notes)
    on_gpu = backend(resolved.backend).on_gpu
    with_threads = "" if on_gpu else f" with {format_count(resolved.threads)}"
    return [
        f"{resolved.model_path}: {resolved.dtype} on {resolved.backend}{with_threads}, "
        f"context {resolved.max_model_len:,} tokens, "
        f"KV cache {resolved.kv_cache_bytes / 2**20:,.0f} MiB",
        *(f"note: {note}" for note in resolved.notes),
        *llm.ready.notes,
    ]


def _of_profile(args: argparse.Namespace, config: EngineConfig) -> list[str]:
    """What there is to say of the profile besides what the engine's notes say."""
    profile = config.profile
    if profile is None:
        return []
    found = (f"note: {note}" for note in notes(args, profile))
    return [f"profile of {profile.made}, {profile.told}", *found]


def _columns() -> int | None:
    return columns(sys.stdout) if sys.stdout.isatty() else None


def _styles(args: argparse.Namespace, llm: AsyncLLM) -> Styles:
    from penstock.parsing.styles import Styles

    return Styles.of(llm.tokenizer, args.tool_call_parser, args.reasoning_parser)


def _is_loopback(host: str) -> bool:
    return host == "::1" or host.startswith("127.")
