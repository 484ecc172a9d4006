"""The options of ``penstock serve``."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.cli.http_options import (
    RARE_HTTP,
    add_access_arguments,
    add_listen_arguments,
    add_log_arguments,
    seconds,
)
from penstock.cli.models_options import add_models_arguments
from penstock.cli.options import RARE_ENGINE, add_engine_arguments, whole_number
from penstock.cli.serve_roles import RARE_ROLES, add_role_arguments
from penstock.errors import ConfigError

if TYPE_CHECKING:
    from penstock.service_level import Limit

RARE = (
    RARE_ENGINE
    | RARE_ROLES
    | RARE_HTTP
    | {
        *("--max-waiting", "--max-restarts", "--step-timeout", "--stream-interval"),
        *("--slo", "--metric-names", "--no-observe", "--best-priority", "--admin-key-file"),
        *("--log-prompts", "--otlp-endpoint", "--grpc-port", "--batch-dir"),
    }
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("server options")
    add_listen_arguments(group, port=8000)
    group.add_argument(
        "--max-waiting",
        type=whole_number,
        metavar="N",
        help="sequences that may wait beside those that run; more are refused with status 429 "
        "(default: the profile's, or 1024)",
    )
    group.add_argument(
        "--max-restarts",
        type=whole_number,
        default=5,
        metavar="N",
        help="how often in a row an engine that died, or the server itself, is restarted before "
        "it is given up (default: 5)",
    )
    group.add_argument(
        "--step-timeout",
        type=seconds,
        default=600.0,
        metavar="SECONDS",
        help="an engine that is in one step for so long is killed and restarted (default: 600)",
    )
    group.add_argument(
        "--stream-interval",
        type=whole_number,
        default=50,
        metavar="MS",
        help="while many streams are open, tokens of one that come within this time share an "
        "event; 0 gives each its own, which costs a fast model throughput (default: 50)",
    )
    group.add_argument(
        "--batch-dir",
        type=Path,
        metavar="FOLDER",
        help="keep uploaded files and run batches there (/v1/files, /v1/batches), which a restart "
        "goes on with (default: there are none)",
    )
    group.add_argument(
        "--grpc-port",
        type=whole_number,
        metavar="PORT",
        help="serve KServe's protocol over gRPC there as well, on the same host; needs "
        "penstock[grpc] (default: not at all)",
    )
    group.add_argument(
        "--no-page",
        action="store_true",
        help="leave out the page for browsers (/, /engine, /docs); what it reads stays",
    )
    group.add_argument(
        "--no-observe",
        action="store_true",
        help="keep no lengths, times and hashed prefixes of requests for 'penstock observe'",
    )
    group.add_argument(
        "--metric-names",
        choices=("penstock", "vllm"),
        default="penstock",
        help="what stands before the names of metrics that vLLM has too; vllm is for dashboards "
        "and routers that were made for it (default: penstock)",
    )
    group.add_argument(
        "--slo",
        nargs="+",
        action="extend",
        type=_limit,
        default=[],
        metavar="LIMIT",
        help="count the answers that keep to limits, such as ttft:500ms tpot:50ms e2el:10s, from a "
        "request's arrival on (metrics penstock:request_slo_...)",
    )
    add_models_arguments(parser)
    _add_answer_arguments(parser)
    _add_access_arguments(parser)
    add_role_arguments(parser)
    add_engine_arguments(parser)
    _add_log_arguments(parser)


def _add_answer_arguments(parser: argparse.ArgumentParser) -> None:
    from penstock.parsing.styles import REASONING_CHOICES, TOOL_CHOICES

    group = parser.add_argument_group("chats")
    group.add_argument(
        "--chat-template",
        type=Path,
        metavar="FILE",
        help="a Jinja template that makes a prompt of messages, in place of the model's own; "
        "needed for chats with a model that has none",
    )
    group.add_argument(
        "--tool-call-parser",
        choices=TOOL_CHOICES,
        default="auto",
        help="how the model writes calls of tools; auto looks into its chat template, and takes "
        "generic where that shows no tools: they are described in the system message; none takes "
        "no tools (default: auto)",
    )
    group.add_argument(
        "--reasoning-parser",
        choices=REASONING_CHOICES,
        default="auto",
        help="how the model marks its reasoning, which becomes reasoning_content; none leaves it "
        "in the content (default: auto)",
    )


def _add_access_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("access")
    group.add_argument(
        "--api-key-file",
        type=Path,
        metavar="FILE",
        help="keys that clients must send, one a line, with weight=NUMBER and priority=NUMBER "
        "behind it where they are not 1 and that of --best-priority; more may be in "
        "PENSTOCK_API_KEYS, separated by commas (default: anyone may ask)",
    )
    group.add_argument(
        "--best-priority",
        type=_best_priority,
        default=0,
        metavar="N",
        help="the lowest priority, which goes first, that a request may ask for where its key says "
        "nothing else (default: 0)",
    )
    group.add_argument(
        "--admin-key-file",
        type=Path,
        metavar="FILE",
        help="the key for /admin, instead of PENSTOCK_ADMIN_KEY (default: nobody has it)",
    )
    add_access_arguments(group, " (default: where keys are needed, all)")


def _add_log_arguments(parser: argparse.ArgumentParser) -> None:
    group = add_log_arguments(parser)
    group.add_argument(
        "--log-prompts", action="store_true", help="put prompts and outputs into these lines"
    )
    group = parser.add_argument_group("traces")
    group.add_argument(
        "--otlp-endpoint",
        metavar="URL",
        help="send OpenTelemetry traces to the collector there, such as http://localhost:4318; "
        "instead of OTEL_EXPORTER_OTLP_ENDPOINT (default: none)",
    )


def _best_priority(text: str) -> int:
    from penstock.server.keys import BEST_PRIORITY, best_priority

    value = best_priority(text)
    if value is None:
        raise argparse.ArgumentTypeError(f"not a whole number from {BEST_PRIORITY} to 0: {text!r}")
    return value


def _limit(text: str) -> Limit:
    from penstock.server.options import SLO_MEASURES
    from penstock.service_level import parse_limit

    try:
        limit = parse_limit(text)
    except ConfigError as error:
        raise argparse.ArgumentTypeError(str(error).removeprefix("--slo ")) from None
    if limit.measure not in SLO_MEASURES:
        raise argparse.ArgumentTypeError(
            f"a server knows {', '.join(SLO_MEASURES)}, not {limit.measure}"
        )
    return limit
