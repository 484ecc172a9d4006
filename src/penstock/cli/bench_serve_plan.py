"""What the options of ``penstock bench serve`` ask for: a server, and a plan of loads."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.cli.bench_serve_options import (
    DEFAULT_CONCURRENCY,
    DEFAULT_GOOD_SHARE,
    DEFAULT_REQUESTS,
    DRAWN,
    KEY_VARIABLE,
)
from penstock.cli.options import positive_int
from penstock.cli.parser import UsageError
from penstock.cli.server_key import server_key

if TYPE_CHECKING:
    from penstock.bench.load.arrivals import Arrivals
    from penstock.bench.load.campaign import LoadPlan
    from penstock.bench.load.load import Load
    from penstock.bench.load.target import Target
    from penstock.bench.load.workload import Workload


def target_of(args: argparse.Namespace) -> Target:
    """The server that is named. Raises ConfigError."""
    from penstock.bench.load.target import Target, checked_header

    headers = dict(checked_header(text) for text in args.header)
    key = server_key(args.api_key_env, KEY_VARIABLE)
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
    from penstock.bench.load.run import Timeouts
    from penstock.service_level import parse_limit

    if args.find_rate and not args.slo:
        raise UsageError("argument --find-rate: it needs a --slo, such as ttft:500ms")
    if args.find_rate and args.rate is not None and len(args.rate) > 1:
        raise UsageError("argument --find-rate: it begins at one --rate")
    if args.good_share is not None and not (args.find_rate and args.good_share <= 1):
        raise UsageError("argument --good-share: a part of 1, for --find-rate")
    workload = _workload(args)
    conversations = args.num_prompts
    if conversations is None and workload.endless and args.duration is None:
        conversations = DEFAULT_REQUESTS
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
        good_share=(args.good_share or DEFAULT_GOOD_SHARE) if args.find_rate else None,
    )


def _loads(
    args: argparse.Namespace, workload: Workload
) -> tuple[Callable[[float | None], Arrivals | None], tuple[Load, ...]]:
    """How conversations arrive, and at which loads."""
    from penstock.bench.load.arrivals import parse_arrivals
    from penstock.bench.load.load import Load

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
        users = [DEFAULT_CONCURRENCY]
    loads = tuple(Load(rate, bound) for rate in rates or [None] for bound in users or [None])

    def arrivals(rate: float | None) -> Arrivals | None:
        if kind == "recorded" or (kind is None and rate is None):
            return None
        return parse_arrivals(kind or "poisson", rate)

    arrivals(loads[0].rate)  # refused before anything is sent
    return arrivals, loads


def _workload(args: argparse.Namespace) -> Workload:
    from penstock.bench.load.workload import ChatWorkload, PatternWorkload, RandomWorkload
    from penstock.workload.patterns import PATTERNS, Patterns

    kind = args.workload
    _check_unused(args, kind)
    if kind not in DRAWN:
        return _of_file(args, Path(kind))
    prefix = args.prefix_len or (512 if kind == "prefix" else 0)
    if kind == "patterns":
        return PatternWorkload(
            Patterns(
                _pair(args.input_len, "--input-len", PATTERNS.inputs),
                _pair(args.output_len, "--output-len", PATTERNS.outputs),
            )
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
        raise UsageError(f"argument --workload: {path} is none of {', '.join(DRAWN)}, and no file")
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


def _pair(text: str | None, option: str, default: tuple[int, int]) -> tuple[int, int]:
    if text is None:
        return default
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
        fields = msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError) as error:
        raise UsageError(f"argument --body: no JSON object: {error}") from None
    for name, only, why in (
        ("n", 1, "one answer to each request is measured; leave it out"),
        ("best_of", 1, "one answer to each request is measured; leave it out"),
        ("stream", True, "answers are measured as they come; leave it out"),
    ):
        if fields.get(name, only) not in (only, None):
            raise UsageError(f"argument --body: {name} is {fields[name]!r}: {why}")
    return fields
