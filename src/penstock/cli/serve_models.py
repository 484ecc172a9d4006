"""``penstock serve --models``: several models behind one address."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import socket
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from penstock.cli.http_options import check_tls
from penstock.cli.listen import address_in_use, addresses, bind, raise_file_limit
from penstock.cli.main import debugging, drop_output, outcome
from penstock.cli.options import parse_size, values_of
from penstock.cli.parser import UsageError
from penstock.cli.serve_profile import engine_core
from penstock.collector import uncollected
from penstock.config import EngineConfig
from penstock.engine.ipc.startup import process_started_at
from penstock.errors import ConfigError, PenstockError
from penstock.repository.catalogue import Catalogue
from penstock.repository.reading import read_catalogue
from penstock.server.guardian import Guardian, GuardOptions, Life

if TYPE_CHECKING:
    from penstock.server.models.run import Models
    from penstock.server.run import RunOptions

MEMORY_SHARE = 0.75
"""Part of the memory that is free at the start that models may take where nothing is said: the rest
is for the server, for files that are read and for whatever else runs."""
_OF_ONE_MODEL = {
    "served_model_name": "--served-model-name",
    "revision": "--revision",
    "tokenizer": "--tokenizer",
    "lora_modules": "--lora-modules",
    "profile": "--profile",
}


@dataclass(frozen=True)
class _Source:
    """Where the models of a server come from, and the memory for them."""

    args: argparse.Namespace
    budget: int
    """Bytes for all that are loaded, where the catalogue says nothing."""

    def read(self) -> Catalogue:
        """The catalogue as it is now. Options of the command line hold for all models that say
        nothing else. Raises ConfigError."""
        options = values_of(EngineConfig, self.args)
        options.pop("model", None)
        catalogue = read_catalogue(self.args.models, options, _size)
        if self.args.models_memory is not None:
            catalogue = replace(catalogue, memory_bytes=self.budget)
        budget = catalogue.memory_bytes or self.budget
        for entry in catalogue:
            if entry.memory_bytes is not None and entry.memory_bytes > budget:
                raise ConfigError(
                    f"{catalogue.origin}: the model {entry.name!r} takes {entry.memory_bytes:,} "
                    f"bytes of memory, and all together may take {budget:,}; raise that "
                    "(--models-memory, or memory in the file)"
                )
        return catalogue


def run(args: argparse.Namespace) -> int:
    _check(args)
    source = _Source(args, _budget(args))
    source.read()  # raises for what would fail later
    check_tls(args)
    raise_file_limit()
    with bind(args.host, args.port) as listener:
        options = GuardOptions(
            max_restarts=args.max_restarts, log_format=args.log_format, hang_up=True
        )
        return Guardian(listener, options).run(
            lambda life: outcome(lambda: _live(life, source, listener), debugging(args.debug))
        )


def _live(life: Life, source: _Source, listener: socket.socket) -> int:
    """One life of the serving process. Errors of penstock.errors end it for good."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until the server listens to it
    try:
        _serve(life, source, listener)
    except PenstockError:
        life.over()
        raise
    life.over()
    return 0


def _serve(life: Life, source: _Source, listener: socket.socket) -> None:
    with uncollected():
        import asyncio

        from penstock.cli.serve_profile import max_waiting
        from penstock.cli.serve_server import run_options
        from penstock.server.models.run import Models, serve_models

    args = source.args
    options = run_options(args, None, listener, life.restarts)
    host, port = listener.getsockname()[:2]
    models = Models(
        catalogue=source.read(),
        read_again=source.read,
        budget=source.budget,
        max_waiting=max_waiting(args, EngineConfig()),
        core=engine_core(os.environ),
    )

    def announce() -> None:
        life.ready()
        if life.restarts:
            return
        try:
            print(_announcement(models, options, listener), flush=True)
        except OSError as error:
            log = logging.getLogger("penstock.server")
            log.warning("standard output cannot be written: %s", error.strerror)
            drop_output()

    with address_in_use(host, port):
        asyncio.run(serve_models(models, listener, options, announce))


def _announcement(models: Models, options: RunOptions, listener: socket.socket) -> str:
    from penstock.version import __version__

    port = listener.getsockname()[1]
    scheme = "http" if options.tls is None else "https"
    first, *others = [f"{scheme}://{address}:{port}" for address in addresses(listener)]
    catalogue = models.catalogue
    count = len(catalogue.entries)
    budget = catalogue.memory_bytes or models.budget
    lines = [
        f"penstock {__version__} serves {count} model{'s' if count > 1 else ''} at {first}/v1",
        *(f"  also at {url}/v1" for url in others),
        f"  of {catalogue.origin}, in {budget / 2**20:,.0f} MiB of memory",
    ]
    for entry in catalogue:
        names = ", ".join(entry.names)
        when = ", loaded now" if entry.at_start else ""
        lines.append(f"  {names}: {entry.config.model}{when}")
    seconds = time.monotonic() - process_started_at()
    links = (f"  metrics  {first}/metrics", "  stop     Ctrl-C")
    ready = f"ready in {seconds:.2f} s: models are loaded when they are asked for"
    return "\n".join([*lines, "", *links, "", ready])


def _check(args: argparse.Namespace) -> None:
    """Raise UsageError for what goes with one model alone."""
    if args.model is not None:
        raise UsageError(
            "argument MODEL: it does not go with --models; write it into the catalogue"
        )
    for name, option in _OF_ONE_MODEL.items():
        if getattr(args, name, None) is not None:
            raise UsageError(f"argument {option}: it is one model's; write it into the catalogue")
    if args.chat_template is not None:
        raise UsageError("argument --chat-template: it is one model's, and goes not with --models")
    if args.role != "both":
        raise UsageError("argument --role: it does not go with --models")


def _budget(args: argparse.Namespace) -> int:
    """Bytes that all models may take where their catalogue says nothing."""
    asked: int | None = args.models_memory
    if asked is not None:
        return asked
    from penstock.hardware import detect

    return int(detect().memory_available * MEMORY_SHARE)


def _size(text: str) -> int:
    try:
        return parse_size(text)
    except argparse.ArgumentTypeError as error:
        raise ConfigError(str(error)) from None
