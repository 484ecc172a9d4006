"""A server in its own process: all of it real but the engine's core, which is ``fake_core.py``.

``http_client.py`` starts and asks it.
"""

from __future__ import annotations

import asyncio
import os
import resource
import sys
from collections.abc import Mapping
from multiprocessing.connection import Connection
from pathlib import Path

import msgspec

from penstock.cli.listen import bind
from penstock.config import EngineConfig
from penstock.engine.ipc.spawn import EngineChild
from penstock.frontend.async_llm import AsyncLLM
from penstock.profile import Profile
from penstock.repository.catalogue import Catalogue
from penstock.repository.reading import read_catalogue
from penstock.server.hosts import HostRule
from penstock.server.http_server import Tls
from penstock.server.keys import Keys
from penstock.server.kserve.grpc_options import grpc_options
from penstock.server.logs import LogOptions
from penstock.server.metric_families import MetricNames
from penstock.server.models.run import Models, serve_models
from penstock.server.options import ServerOptions
from penstock.server.run import RunOptions, serve
from penstock.server.setups import EngineSetup, Setups
from penstock.server.supervisor import SupervisorOptions
from penstock.server.trace_options import trace_options
from penstock.service_level import parse_limit

MAX_BODY_BYTES = 200_000
ADMIN_KEY = "admin-key"
HOST = "127.0.0.1"
FAKE_CORE = "support.fake_core:load"


class Settings(msgspec.Struct, forbid_unknown_fields=True):
    """What a test may want otherwise."""

    folder: str  # holds the tokenizer
    step_ms: int = 0
    max_model_len: int | None = None
    max_input_len: int | None = None
    max_output_len: int | None = None
    grace_s: float = 1
    request_timeout_s: float | None = None
    headers_timeout_s: float = 30
    body_timeout_s: float = 30
    stall_s: float = 60
    max_waiting: int = 1024
    max_restarts: int = 5
    backoff_s: float = 0.05
    hang_s: float = 30
    step_timeout_s: float = 600
    dying_core: bool = False  # engines after the first do not start
    files: int | None = None  # that the server's process may have open
    api_keys: str | None = None
    cors_origins: tuple[str, ...] = ()
    page: bool = True
    observe: bool = True
    slo: tuple[str, ...] = ()
    metric_names: MetricNames = MetricNames.PENSTOCK
    tool_call_parser: str = "auto"
    port: int = 0  # any
    allowed_hosts: tuple[str, ...] | None = None  # None: any
    tls: tuple[str, str] | None = None
    log_format: str = "text"
    log_prompts: bool = False
    otlp_endpoint: str | None = None
    grpc_port: int | None = None
    models: str | None = None  # a catalogue's file, in the place of one model
    models_memory: int = 1_000_000_000
    batch_dir: str | None = None
    lora_modules: tuple[str, ...] = ()
    max_loras: int | None = None

    def run_options(self) -> RunOptions:
        keys = {"PENSTOCK_ADMIN_KEY": ADMIN_KEY}
        if self.api_keys is not None:
            keys["PENSTOCK_API_KEYS"] = self.api_keys
        read = Keys.read(None, None, keys)
        hosts = self.allowed_hosts
        return RunOptions(
            grace_s=self.grace_s,
            request_timeout_s=self.request_timeout_s,
            headers_timeout_s=self.headers_timeout_s,
            server=ServerOptions(
                MAX_BODY_BYTES,
                self.body_timeout_s,
                read,
                self.cors_origins,
                self.log_prompts,
                page=self.page,
                tool_call_parser=self.tool_call_parser,
                observe=self.observe,
                slo=tuple(map(parse_limit, self.slo)),
                metric_names=self.metric_names,
                batch_dir=None if self.batch_dir is None else Path(self.batch_dir),
                hosts=None if hosts is None else HostRule.of(HOST, HOST, hosts, bool(read.users)),
            ),
            supervisor=SupervisorOptions(
                max_restarts=self.max_restarts,
                backoff_s=self.backoff_s,
                hang_s=self.hang_s,
                step_timeout_s=self.step_timeout_s,
            ),
            logs=LogOptions("json" if self.log_format == "json" else "text"),
            tls=None if self.tls is None else Tls(Path(self.tls[0]), Path(self.tls[1])),
            traces=trace_options(self.otlp_endpoint, os.environ),
            grpc=grpc_options(HOST, self.grpc_port),
        )


def main(
    settings: Settings, environment: Mapping[str, str], stderr: Connection | None, told: Connection
) -> None:
    """Serve until told to end: the body of a process, which gets the ``environment``, logs to the
    file behind ``stderr`` and tells its port and the engine's process id."""
    os.environ.clear()
    os.environ.update(environment)
    if stderr is not None:
        os.dup2(stderr.fileno(), sys.stderr.fileno())
        stderr.close()
    if settings.files is not None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (settings.files, settings.files))
    if settings.models is not None:
        _serve_models(settings, Path(settings.models), told)
        return
    config = EngineConfig(
        tokenizer=settings.folder,
        seed=settings.step_ms,
        served_model_name="fake",
        max_model_len=settings.max_model_len,
        max_input_len=settings.max_input_len,
        max_output_len=settings.max_output_len,
        lora_modules=settings.lora_modules,
        max_loras=settings.max_loras,
    )
    later = "support.fake_core:load_dies" if settings.dying_core else FAKE_CORE

    def of_profile(profile: Profile) -> EngineSetup:
        own = profile.max_waiting
        return EngineSetup(
            msgspec.structs.replace(config, profile=profile, **profile.options.engine()),
            settings.max_waiting if own is None else own,
            core=later,
        )

    first = EngineSetup(config, settings.max_waiting, core=later)
    setups = Setups(first, of_profile, lambda profile: None)
    with bind(HOST, settings.port, settings.stall_s) as listener:
        child = EngineChild.spawn(config, FAKE_CORE)
        port = listener.getsockname()[1]

        def announce(llm: AsyncLLM) -> None:
            told.send((port, child.process.pid))
            told.close()

        asyncio.run(serve(child, setups, listener, settings.run_options(), announce))


def _serve_models(settings: Settings, catalogue: Path, told: Connection) -> None:
    def read() -> Catalogue:
        return read_catalogue(catalogue, {"tokenizer": settings.folder}, int)

    models = Models(read(), read, settings.models_memory, settings.max_waiting, FAKE_CORE)
    with bind(HOST, settings.port, settings.stall_s) as listener:
        port = listener.getsockname()[1]

        def announce() -> None:
            told.send((port, 0))  # no engine runs yet
            told.close()

        asyncio.run(serve_models(models, listener, settings.run_options(), announce))
