"""What the command line of ``penstock serve`` says of the server, beside its engines."""

from __future__ import annotations

import argparse
import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.cli.http_options import host_rule, log_options, tls
from penstock.config import EngineConfig

if TYPE_CHECKING:
    from penstock.server.run import RunOptions


def run_options(
    args: argparse.Namespace, config: EngineConfig | None, listener: socket.socket, restarts: int
) -> RunOptions:
    """The server's options; ``config`` is that of its engine, where there is one."""
    from penstock.server.keys import Keys
    from penstock.server.kserve.grpc_options import grpc_options
    from penstock.server.metric_families import MetricNames
    from penstock.server.options import ServerOptions
    from penstock.server.run import RunOptions
    from penstock.server.supervisor import SupervisorOptions
    from penstock.server.trace_options import trace_options

    keys = Keys.read(args.api_key_file, args.admin_key_file, best_priority=args.best_priority)
    address = listener.getsockname()[0]
    return RunOptions(
        grace_s=args.grace,
        request_timeout_s=args.request_timeout,
        tokenizer="" if config is None else config.tokenizer or config.model or "",
        chat_template=chat_template(args.chat_template),
        server=ServerOptions(
            keys=keys,
            cors_origins=tuple(args.cors_origin),
            log_prompts=args.log_prompts,
            tool_call_parser=args.tool_call_parser,
            reasoning_parser=args.reasoning_parser,
            page=not args.no_page,
            observe=not args.no_observe,
            metric_names=MetricNames(args.metric_names),
            slo=tuple(args.slo),
            hosts=host_rule(args, address, keys_needed=bool(keys.users)),
            batch_dir=args.batch_dir,
            restarts=restarts,
        ),
        supervisor=SupervisorOptions(
            max_restarts=args.max_restarts,
            step_timeout_s=args.step_timeout,
            stream_interval_s=args.stream_interval / 1000,
        ),
        logs=log_options(args),
        tls=tls(args),
        grpc=grpc_options(address, args.grpc_port),
        traces=trace_options(args.otlp_endpoint, os.environ),
        guarded=True,
    )


def chat_template(path: Path | None) -> str:
    """What the file holds. Raises ConfigError for what would fail once the model is loaded."""
    if path is None:
        return ""
    from penstock.tokenizer.chat import read_chat_template

    return read_chat_template(path, f"--chat-template {path}")
