"""The options of ``penstock bench serve``, and what they ask for."""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from penstock.cli.bench_common import add_json_argument
from penstock.cli.options import positive_int
from penstock.cli.parser import UsageError

if TYPE_CHECKING:
    from penstock.bench.load.arrivals import Arrivals
    from penstock.bench.load.campaign import Load, LoadPlan
    from penstock.bench.load.target import Target
    from penstock.bench.load.workload import Workload

KEY_VARIABLE: Final = "OPENAI_API_KEY"
_DRAWN: Final = ("random", "prefix", "multi-turn", "patterns")
_REQUESTS: Final = 100
_CONCURRENCY: Final = 8
_GOOD_SHARE: Final = 0.95

RARE: Final = frozenset(
    {
        *("--prefixes", "--turns", "--think-ms", "--scale", "--speed", "--arrivals", "--warmup"),
        *("--seed", "--good-share", "--body", "--header", "--insecure", "--tokenizer"),
        *("--timeout", "--stall-timeout", "--connect-timeout", "--scrape", "--api-key-env"),
        *("--endpoint", "--csv"),
    }
)
"""Options that ``--help`` leaves out."""

Number = TypeVar("Number", int, float)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "url",
        metavar="URL",
        help="http://HOST:PORT, or a URL with the path that /chat/completions is below",
    )
    _add_workload(parser.add_argument_group("workload"))
    _add_load(parser.add_argument_group("load"))
    _add_server(parser.add_argument_group("server"))
    group = parser.add_argument_group("results")
    group.add_argument(
        "--slo",
        nargs="+",
        default=[],
        metavar="LIMIT",
        help="what a good answer keeps to, such as ttft:500ms tpot:30ms e2el:10s",
    )
    add_json_argument(parser)
    group.add_argument(
        "--csv", type=Path, metavar="FILE", help="write a line for each request here"
    )


def _add_workload(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--workload",
        default="random",
        metavar="KIND|FILE",
        help=f"{', '.join(_DRAWN)}, or a file (default: random)",
    )
    group.add_argument(
        "--input-len",
        metavar="N",
        help="prompt tokens: 512, 100..900 (any between) or 512~64 (mean and deviation); of "
        "multi-turn, what a turn adds; of patterns, SHORT,LONG (default: 512; 128,2048)",
    )
    group.add_argument(
        "--output-len",
        metavar="N",
        help="answers' tokens, in the same form (default: 128; 32,512; of prompt files, as the "
        "server ends them)",
    )
    group.add_argument(
        "--prefix-len",
        type=positive_int,
        metavar="N",
        help="tokens that prompts begin with and share (default: 0; of prefix, 512)",
    )
    group.add_argument(
        "--prefixes", type=positive_int, metavar="N", help="how many different ones (default: 1)"
    )
    group.add_argument("--turns", metavar="N", help="of multi-turn conversations (default: 4)")
    group.add_argument(
        "--think-ms",
        metavar="N",
        help="milliseconds between an answer and the next turn (default: 0)",
    )
    group.add_argument(
        "--scale", type=_positive, metavar="X", help="multiply a trace's lengths (default: 1)"
    )
    group.add_argument(
        "--speed", type=_positive, metavar="X", help="replay a trace X times as fast (default: 1)"
    )
    group.add_argument(
        "--seed",
        type=int,
        metavar="N",
        help="repeats texts, lengths and times; without it, texts are new in each call, so that "
        "none is in the server's cache",
    )


def _add_load(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--rate",
        type=_several(_positive),
        metavar="R[,R...]",
        help="conversations that begin in a second; several are measured one after the other",
    )
    group.add_argument(
        "--concurrency",
        type=_several(positive_int),
        metavar="N[,N...]",
        help=f"conversations that are open at once (default: {_CONCURRENCY} without --rate); with "
        "--rate, at most",
    )
    group.add_argument(
        "--num-prompts",
        type=positive_int,
        metavar="N",
        help=f"conversations of each run (default: {_REQUESTS}; without end with --duration; of a "
        "file, all)",
    )
    group.add_argument(
        "--duration", type=_positive, metavar="S", help="begin no conversation after S seconds"
    )
    group.add_argument(
        "--arrivals",
        default=None,
        metavar="KIND",
        help="poisson, constant or gamma:CV with --rate; at-once; ramp:LOW..HIGH:SECONDS; recorded "
        "(default: poisson; of traces without --rate or --concurrency, recorded)",
    )
    group.add_argument(
        "--repeats",
        type=positive_int,
        default=1,
        metavar="N",
        help="runs of each load (default: 1)",
    )
    group.add_argument(
        "--warmup", type=int, default=0, metavar="N", help="conversations before them (default: 0)"
    )
    group.add_argument(
        "--find-rate",
        action="store_true",
        help="search for the highest rate within --slo, from --rate on (default: 1)",
    )
    group.add_argument(
        "--good-share",
        type=_positive,
        metavar="X",
        help=f"the part of answers that has to be within it (default: {_GOOD_SHARE})",
    )


def _add_server(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--model", default="", metavar="NAME", help="the server's name for it, if it has several"
    )
    group.add_argument(
        "--endpoint",
        choices=("chat", "completions"),
        default="chat",
        help="which API is asked (default: chat)",
    )
    group.add_argument(
        "--api-key-env",
        metavar="NAME",
        help=f"the environment variable that holds the server's key (default: {KEY_VARIABLE}, if "
        "it is set)",
    )
    group.add_argument(
        "--header", action="append", default=[], metavar="'N: V'", help="send this header, too"
    )
    group.add_argument(
        "--body", metavar="JSON", help="fields of every request, such as '{\"temperature\": 0}'"
    )
    group.add_argument(
        "--tokenizer",
        metavar="DIR|ID",
        help="the model's, for prompts of exact lengths; Penstock's servers and vLLM's need none",
    )
    group.add_argument(
        "--insecure", action="store_true", help="do not check the server's certificate"
    )
    for name, default, about in (
        ("--timeout", 3600.0, "a request is given up after S seconds"),
        ("--stall-timeout", 600.0, "or after S without a byte"),
        ("--connect-timeout", 10.0, "and a connection after S"),
        ("--scrape", 1.0, "seconds between two looks at the server's /metrics; 0: none"),
    ):
        group.add_argument(
            name,
            type=_positive if default > 1 else _from_zero,
            default=default,
            metavar="S",
            help=f"{about} (default: {default:g})",
        )


def target_of(args: argparse.Namespace) -> Target:
    """The server that is named. Raises ConfigError."""
    from penstock.bench.load.target import Target, checked_header

    headers = dict(checked_header(text) for text in args.header)
    key = _api_key(args.api_key_env)
    if key is not None:
        if not (key.isascii() and key.isprintable()):  # a header's own error would show it
            raise UsageError("the server's key has characters that no key has; check its variable")
        headers.setdefault("Authorization", f"Bearer {key}")
    return replace(
        Target.parse(args.url),
        headers=headers,
        kind=args.endpoint,
        model=args.model,
        extra=_body(args.body),
        verify=not args.insecure,
    )


def load_plan(args: argparse.Namespace, text_seed: int) -> LoadPlan:
    """What the options ask for. Raises ConfigError, and OSError of a workload's file."""
    from penstock.bench.load.campaign import LoadPlan
    from penstock.bench.load.goodput import parse_limit
    from penstock.bench.load.run import Timeouts

    if args.find_rate and not args.slo:
        raise UsageError("argument --find-rate: it needs a --slo, such as ttft:500ms")
    if args.find_rate and args.rate is not None and len(args.rate) > 1:
        raise UsageError("argument --find-rate: it begins at one --rate")
    if args.good_share is not None and not (args.find_rate and args.good_share <= 1):
        raise UsageError("argument --good-share: a part of 1, for --find-rate")
    workload = _workload(args)
    conversations = args.num_prompts
    if conversations is None and workload.endless and args.duration is None:
        conversations = _REQUESTS
    arrivals, loads = _loads(args, workload)
    return LoadPlan(
        workload,
        loads,
        arrivals,
        repeats=args.repeats,
        conversations=conversations,
        duration_s=args.duration,
        warmup=max(args.warmup, 0),
        seed=args.seed or 0,
        text_seed=text_seed,
        limits=tuple(parse_limit(text) for text in args.slo),
        timeouts=Timeouts(args.timeout, args.stall_timeout),
        connect_timeout_s=args.connect_timeout,
        scrape_s=args.scrape or None,
        good_share=(args.good_share or _GOOD_SHARE) if args.find_rate else None,
    )


def _loads(
    args: argparse.Namespace, workload: Workload
) -> tuple[Callable[[float | None], Arrivals | None], tuple[Load, ...]]:
    """How conversations arrive, and at which loads."""
    from penstock.bench.load.arrivals import parse_arrivals
    from penstock.bench.load.campaign import Load

    rates, users = args.rate, args.concurrency
    if args.find_rate and rates is None:
        rates = [1.0]
    timed = any(each.at_s is not None for each in getattr(workload, "recorded", ()))
    kind = args.arrivals
    if kind is None and rates is None and users is None and timed:
        kind = "recorded"
    if kind == "recorded" and not timed:
        raise UsageError("argument --arrivals: recorded times are those of a trace")
    if rates is not None and users is not None and min(len(rates), len(users)) > 1:
        raise UsageError("arguments --rate, --concurrency: several of one, or of the other")
    free = kind is not None and kind.partition(":")[0] in ("recorded", "at-once", "ramp")
    if rates is not None and free:
        raise UsageError(f"argument --arrivals: {kind} has rates of its own; leave --rate out")
    if rates is None and kind is not None and not free:
        raise UsageError(f"argument --arrivals: {kind} needs a --rate")
    if rates is None and users is None and kind is None:
        users = [_CONCURRENCY]
    loads = tuple(Load(rate, bound) for rate in rates or [None] for bound in users or [None])

    def arrivals(rate: float | None) -> Arrivals | None:
        if kind == "recorded" or (kind is None and rate is None):
            return None
        return parse_arrivals(kind or "poisson", rate)

    arrivals(loads[0].rate)  # refused before anything is sent
    return arrivals, loads


def _workload(args: argparse.Namespace) -> Workload:
    from penstock.bench.load.workload import ChatWorkload, PatternWorkload, RandomWorkload

    kind = args.workload
    _check_unused(args, kind)
    if kind not in _DRAWN:
        return _of_file(args, Path(kind))
    prefix = args.prefix_len or (512 if kind == "prefix" else 0)
    if kind == "patterns":
        return PatternWorkload(
            *_pair(args.input_len or "128,2048", "--input-len"),
            *_pair(args.output_len or "32,512", "--output-len"),
        )
    prompt, output = _sizes(args.input_len, "512"), _sizes(args.output_len, "128")
    if kind == "multi-turn":
        return ChatWorkload(
            _sizes(args.turns, "4"), prompt, output, _sizes(args.think_ms, "0", least=0), prefix
        )
    return RandomWorkload(prompt, output, prefix, args.prefixes or 1)


def _of_file(args: argparse.Namespace, path: Path) -> Workload:
    from penstock.bench.load.prompt_files import read_prompt_file
    from penstock.bench.load.trace_files import TraceScale, is_trace, read_trace

    if not path.suffix and not path.exists():
        raise UsageError(f"argument --workload: {path} is none of {', '.join(_DRAWN)}, and no file")
    if is_trace(path):
        if args.output_len is not None:
            raise UsageError("argument --output-len: a trace has its own; see --scale")
        scale = TraceScale(args.scale or 1.0, args.speed or 1.0)
        return read_trace(path, scale, args.num_prompts)
    for name in ("scale", "speed"):
        if getattr(args, name) is not None:
            raise UsageError(f"argument --{name}: it is for traces; {path} is a file of prompts")
    output = None if args.output_len is None else positive_int(args.output_len)
    return read_prompt_file(path, output)


def _check_unused(args: argparse.Namespace, kind: str) -> None:
    """Refuse options that another workload has."""
    uses = {
        "random": {"input_len", "output_len", "prefix_len", "prefixes"},
        "prefix": {"input_len", "output_len", "prefix_len", "prefixes"},
        "multi-turn": {"input_len", "output_len", "prefix_len", "turns", "think_ms"},
        "patterns": {"input_len", "output_len"},
    }.get(kind, {"output_len", "scale", "speed"})
    for name in (
        *("input_len", "output_len", "prefix_len", "prefixes", "turns", "think_ms"),
        *("scale", "speed"),
    ):
        if getattr(args, name) is not None and name not in uses:
            option = "--" + name.replace("_", "-")
            raise UsageError(f"argument {option}: the workload {kind!r} has none")


def _sizes(text: str | None, default: str, least: int = 1) -> Any:
    from penstock.bench.load.sizes import Sizes

    return Sizes.parse(text or default, least)


def _pair(text: str, option: str) -> tuple[int, int]:
    short, comma, long = text.partition(",")
    try:
        found = positive_int(short), positive_int(long)
    except argparse.ArgumentTypeError:
        found = (0, 0)
    if not comma or not 0 < found[0] < found[1]:
        raise UsageError(
            f"argument {option}: patterns have a short and a long one, such as 128,2048"
        )
    return found


def _body(text: str | None) -> dict[str, Any]:
    if text is None:
        return {}
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError) as error:
        raise UsageError(f"argument --body: no JSON object: {error}") from None


def _api_key(variable: str | None) -> str | None:
    if variable is None:
        return os.environ.get(KEY_VARIABLE)
    if not os.environ.get(variable):
        raise UsageError(f"argument --api-key-env: there is no environment variable {variable}")
    return os.environ[variable]


def _positive(text: str) -> float:
    value = _from_zero(text)
    if not value > 0:
        raise argparse.ArgumentTypeError(f"not above 0: {text!r}")
    return value


def _from_zero(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"not a number: {text!r}") from None
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"not a number from 0 on: {text!r}")
    return value


def _several(read: Callable[[str], Number]) -> Callable[[str], list[Number]]:
    def parse(text: str) -> list[Number]:
        return [read(part) for part in text.split(",")]

    return parse
