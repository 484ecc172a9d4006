"""Say what a model needs to serve a load: memory, accelerators, latency and cost.

Reads the model's configuration but no weights. Every configuration of the catalogue's accelerators
that holds the model is estimated; shown are those that meet the objectives, the cheapest first. The
figures are those of a roofline that reaches usual parts of the peaks (--peak: all of them), and
means; what they leave out is in docs/sizing.md. --this-machine predicts Penstock itself here.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

from penstock.cli.options import parse_count, positive_int
from penstock.cli.parser import UsageError
from penstock.cli.size_options import (
    COUNTS,
    listed,
    one_of,
    parse_objective,
    parse_price,
    parse_speculation,
    parse_threads,
    parse_tokens,
    slo_of,
)
from penstock.dtypes import QuantizationName
from penstock.errors import ConfigError, ModelError

if TYPE_CHECKING:
    from penstock.cache.geometry import KvDType
    from penstock.models.spec import ModelSpec
    from penstock.sizing.search import Choices, Demanded, Search

_WEIGHTS: Sequence[QuantizationName] = ("none", "int8", "int4")
_KV = ("auto", "bfloat16", "float16", "float32", "fp8", "int8", "k8v4", "int4")

RARE = frozenset(
    {"--exchange", "--peak", "--max-num-batched-tokens", "--ignore-config-field", "--replicas"}
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model",
        metavar="MODEL",
        nargs="?",
        help="a checkpoint folder, a config.json, a GGUF file, or a hub id, of which the "
        "configuration alone is downloaded (default: the demo model)",
    )
    load = parser.add_argument_group("load")
    load.add_argument(
        "--isl", type=parse_tokens, default=1000, metavar="N", help="prompt tokens (default: 1000)"
    )
    load.add_argument(
        "--osl", type=parse_tokens, default=250, metavar="N", help="output tokens (default: 250)"
    )
    load.add_argument(
        "--concurrency",
        type=positive_int,
        default=16,
        metavar="N",
        help="requests that are open at any time (default: 16)",
    )
    load.add_argument(
        "--slo",
        type=parse_objective,
        nargs="+",
        action="extend",
        default=[],
        metavar="NAME:TIME",
        help="objectives: ttft:500ms, tpot:30ms, latency:10s (of a whole request); means",
    )
    load.add_argument(
        "--speculate",
        type=parse_speculation,
        metavar="tokens=K,accept=A[,cost=C]",
        help="drafts of K tokens, each accepted with chance A, each C of a step's time",
    )
    choices = parser.add_argument_group("choices")
    choices.add_argument(
        "--gpu",
        type=listed(str),
        action="extend",
        default=[],
        metavar="NAME[,NAME]",
        help="accelerators or CPUs of the catalogue (default: all)",
    )
    choices.add_argument(
        "--catalogue", type=Path, metavar="FILE", help="a file of accelerators of your own"
    )
    choices.add_argument("--tp", type=COUNTS, metavar="N[,N]", help="ranks that share each layer")
    choices.add_argument("--pp", type=COUNTS, metavar="N[,N]", help="stages of layers")
    choices.add_argument(
        "--network",
        metavar="NAME",
        help="a network of the catalogue that joins machines, such as 'InfiniBand NDR' or "
        "'Ethernet 25G': ranks and stages may then be on several",
    )
    choices.add_argument(
        "--replicas", type=positive_int, metavar="N", help="how many (default: the least that do)"
    )
    choices.add_argument(
        "--quantization",
        type=listed(one_of("none", "int8", "int4")),
        metavar="NAME[,NAME]",
        help="types of weights: none (as they are), int8, int4 (default: each)",
    )
    choices.add_argument(
        "--kv-cache-dtype",
        type=listed(one_of(*_KV)),
        metavar="NAME[,NAME]",
        help="types of keys and values: auto (the weights'), int8, fp8, ... (default: auto)",
    )
    choices.add_argument(
        "--max-num-batched-tokens",
        type=parse_count,
        metavar="N",
        help="tokens of a step at most (default: 2048 on a GPU, 512 on a CPU)",
    )
    choices.add_argument(
        "--exchange",
        choices=("gather", "reduce"),
        default="gather",
        help="how ranks put a layer together: gather columns, whose bits do not depend on their "
        "number, or reduce sums in rings (default: gather)",
    )
    choices.add_argument(
        "--peak", action="store_true", help="the bounds: every peak reached, no overhead"
    )
    here = parser.add_argument_group("this machine")
    here.add_argument(
        "--this-machine",
        action="store_true",
        help="measure this machine for a minute, and predict Penstock on its CPU",
    )
    here.add_argument(
        "--threads",
        type=parse_threads,
        metavar="N|LIST",
        help="compute threads (default: the engine's)",
    )
    here.add_argument(
        "--price", type=parse_price, metavar="USD", help="what an hour of this machine costs"
    )
    parser.add_argument(
        "--ignore-config-field",
        action="append",
        default=[],
        metavar="TEXT",
        help="accept a field of config.json that Penstock does not know",
    )
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write every figure here, - for the terminal"
    )


def run(args: argparse.Namespace) -> int:
    from penstock.backends.registry import multiplied_as_stored
    from penstock.cli.size_json import document, to_terminal, write_document
    from penstock.cli.size_table import table
    from penstock.sizing.model import SizedModel
    from penstock.sizing.ranking import best
    from penstock.sizing.search import Search

    demanded = _demanded(args)
    spec = read_spec_of(args.model, args.ignore_config_field)
    _check_context(spec, demanded)
    model = SizedModel(spec, multiplied_as_stored())
    if args.this_machine:
        from penstock.cli.size_this_machine import run_here

        _refuse_other_machines(args)
        return run_here(args, model, demanded, _weights(args, spec))
    if args.threads is not None or args.price is not None:
        raise UsageError("--threads and --price are of --this-machine; add that, or leave them out")
    search = Search(model, demanded, _choices(args, spec))
    found = search.all()
    chosen = best(found)
    if not to_terminal(args):
        print(table(args.model or "the demo model", search, found, chosen))
        if not chosen.meets:
            print(_elsewhere(search, args.catalogue))
    if args.json is not None:
        write_document(args, document(search, found, chosen))
    return 0


def _elsewhere(search: Search, own: Path | None) -> str:
    """What meets the objectives where the user's choices do not."""
    from penstock.cli.size_table import named
    from penstock.sizing.catalogue import Catalogue
    from penstock.sizing.ranking import best
    from penstock.sizing.search import Search

    everything = replace(search.choices, accelerators=Catalogue.load(own).accelerators)
    try:
        wider = best(Search(search.model, search.demanded, everything).all())
    except ConfigError:  # --tp and --pp may fit the user's accelerators alone
        return "         nothing else in the catalogue meets them"
    if not wider.meets:
        return "         nothing else in the catalogue meets them"
    price = wider.cheapest.usd_per_hour
    cost = "" if price is None else f", {price:,.2f} $/h"
    return f"         of the whole catalogue {named(wider.cheapest)} would meet them{cost}"


def _demanded(args: argparse.Namespace) -> Demanded:
    from penstock.sizing.search import Demanded
    from penstock.sizing.serving import Speculation, Workload

    workload = Workload(args.isl, args.osl, args.speculate or Speculation())
    return Demanded(workload, args.concurrency, slo_of(args.slo))


def _choices(args: argparse.Namespace, spec: ModelSpec) -> Choices:
    from penstock.sizing.catalogue import Catalogue
    from penstock.sizing.roofline import PEAK
    from penstock.sizing.search import Choices

    catalogue = Catalogue.load(args.catalogue)
    names = [name for group in args.gpu for name in ([group] if isinstance(group, str) else group)]
    devices = tuple(dict.fromkeys(map(catalogue.find, names))) or catalogue.accelerators
    return Choices(
        devices,
        weights=_weights(args, spec),
        kv=[_kv_dtype(each) for each in args.kv_cache_dtype or ("auto",)],
        tensor=args.tp or (1, 2, 4, 8),
        pipeline=args.pp,
        replicas=args.replicas,
        exchange=args.exchange,
        network=None if args.network is None else catalogue.find_network(args.network),
        attained=PEAK if args.peak else None,
        step_tokens=args.max_num_batched_tokens,
    )


def _weights(args: argparse.Namespace, spec: ModelSpec) -> Sequence[QuantizationName]:
    """The types of weights to choose from: of a checkpoint that is quantized, its own alone."""
    asked = cast("Sequence[QuantizationName] | None", args.quantization)
    quantized = spec.quantized is not None and bool(spec.quantized.schemes)
    if quantized and asked is not None and set(asked) != {"none"}:
        raise UsageError(
            f"the checkpoint is quantized already ({spec.quantized}); leave --quantization out, or "
            "name the checkpoint that it was made from"
        )
    return ("none",) if quantized else asked or _WEIGHTS


def _refuse_other_machines(args: argparse.Namespace) -> None:
    for option in ("gpu", "catalogue", "tp", "pp", "network", "replicas"):
        if getattr(args, option):
            raise UsageError(
                f"--{option} is of other machines, --this-machine of this one; leave one out"
            )


def _kv_dtype(name: str) -> KvDType | None:
    return None if name == "auto" else cast("KvDType", name)


def read_spec_of(model: str | None, ignore: Sequence[str]) -> ModelSpec:
    """The spec of MODEL, of which nothing but the configuration is read; None: the demo model's.

    Raises UsageError, and what reading a configuration raises.
    """
    from penstock.demo_model import demo_model_path
    from penstock.models.json_objects import read_json_object
    from penstock.models.registry import read_spec
    from penstock.weights.hub import resolve_config
    from penstock.weights.model_folder import load_model_spec

    if model == "":
        raise UsageError("argument MODEL: it is empty; name a model, or leave it out for the demo")
    path = Path(model or "").expanduser()
    if path.suffix == ".json" and path.is_file():
        config = read_json_object(path, ModelError, infinite=True)
        return read_spec(config, default_dtype="bfloat16", ignore=ignore, where=str(path))
    folder = resolve_config(model) if model else demo_model_path()
    return load_model_spec(folder, ignore)


def _check_context(spec: ModelSpec, demanded: Demanded) -> None:
    tokens = demanded.workload.tokens
    if tokens > spec.max_positions:
        raise UsageError(
            f"a request of {tokens:,} tokens is longer than the model's context of "
            f"{spec.max_positions:,}; lower --isl or --osl"
        )
