"""Options of a beam search."""

from __future__ import annotations

import argparse
from typing import Final

import msgspec

from penstock.cli.parser import UsageError
from penstock.sampling.beam_search import BeamSearch
from penstock.sampling.params import SamplingParams

RARE: Final = frozenset({"--beam-width", "--length-penalty", "--early-stopping"})


def add_beam_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("beam search, in place of sampling")
    group.add_argument(
        "--beam-width",
        type=int,
        metavar="N",
        help="search with so many beams for the likeliest text, or the --n likeliest",
    )
    group.add_argument(
        "--length-penalty",
        type=float,
        metavar="X",
        help="the sum of a beam's log-probabilities is divided by its length to this power: above "
        "0 longer texts gain, below 0 shorter ones (default: 1)",
    )
    group.add_argument(
        "--early-stopping",
        action="store_true",
        help="end the search with as many finished beams as its width",
    )


def with_beams(params: SamplingParams, args: argparse.Namespace) -> SamplingParams:
    """``params`` with the search that is asked for, if one is. Raises UsageError for options of a
    search without a width."""
    penalty: float | None = args.length_penalty
    if args.beam_width is None:
        for name, given in (
            ("length-penalty", penalty is not None),
            ("early-stopping", args.early_stopping),
        ):
            if given:
                raise UsageError(f"argument --{name}: it is for a beam search; add --beam-width N")
        return params
    search = BeamSearch(
        width=args.beam_width,
        length_penalty=1.0 if penalty is None else penalty,
        early_stopping=args.early_stopping,
    )
    return msgspec.structs.replace(params, beam_search=search)
