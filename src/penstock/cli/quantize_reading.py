"""Reads the options of ``penstock quantize`` into what is asked for, and refuses what does not go
together, before a model is opened."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Final

from penstock.cli.parser import UsageError
from penstock.cli.quantize_options import (
    AUTO,
    CALIBRATED,
    INTEGERS,
    METHODS,
    QUIP_BITS,
    SPARSE,
    check,
    of_method,
)
from penstock.cli.quantize_request import ComparisonRequest, MethodRequest, Request
from penstock.cli.quantize_tasks import is_file
from penstock.quantize.budget import Budget

_OF_TEXT: Final = ("calibration", "samples", "sample_length", "seed")
"""Options of the text for those that read one, which may be left when these are taken out."""
_MOST_WINDOWS: Final = 20
_COMPARED: Final = ("method", "bits", "group_size", "asymmetric", "budget", "sparsity")
"""Options that the words of a comparison say."""


def request_of(args: argparse.Namespace) -> Request:
    """What the options ask for, checked. Raises UsageError."""
    given = [name for name in _COMPARED if getattr(args, name) is not None]
    if args.compare and given:
        option = "--" + given[0].replace("_", "-")
        raise UsageError(f"argument {option}: --compare names methods and bits; leave it out")
    for name in ("text", "tasks", "task_folder", "max_questions", "max_windows"):
        if getattr(args, name) is not None and not args.compare:
            raise UsageError(
                f"argument --{name.replace('_', '-')}: is of --compare alone; leave it out"
            )
    asked = _method_of(args)
    out: Path = args.out.expanduser()
    threads = args.threads or len(os.sched_getaffinity(0))
    what: MethodRequest | ComparisonRequest
    if args.compare:
        what = _comparison(args, asked)
    else:
        check(asked)
        what = asked
    return Request(args.model, args.revision, out, args.restart, threads, what)


def _method_of(args: argparse.Namespace) -> MethodRequest:
    """The method, with all options that were given, its own or not."""
    names = [each.name for each in fields(MethodRequest)]
    given = {name: getattr(args, name) for name in names}
    given["method"] = args.method or ("magnitude" if args.sparsity else "rtn")
    if args.allowed_bits is not None:
        given["allowed_bits"] = tuple(args.allowed_bits)
    return MethodRequest(**given)


def _comparison(args: argparse.Namespace, of_all: MethodRequest) -> ComparisonRequest:
    if not args.text:
        raise UsageError("argument --compare: needs --text FILE, by which variants are judged")
    variants = {text: variant_of(text, of_all) for text in args.compare}
    for name in ("task_folder", "max_questions"):
        if getattr(args, name) is not None and not args.tasks:
            raise UsageError(f"argument --{name.replace('_', '-')}: needs --tasks")
    texts, words = tuple(args.text), tuple(args.tasks or ())
    files = tuple(Path(each).expanduser() for each in words if is_file(each))
    named = tuple(each for each in words if not is_file(each))
    names = [*(each.name.partition(".")[0] for each in files), *named]
    if len(set(names)) < len(names):
        raise UsageError("argument --tasks: tasks must have different names")
    if args.task_folder and not named:
        raise UsageError("argument --task-folder: --tasks has files alone; leave it out")
    folders = tuple(each.expanduser() for each in args.task_folder or ())
    for folder in folders:
        if not folder.is_dir():
            raise UsageError(f"argument --task-folder: there is no folder {folder}")
    _require_a_taker(of_all, variants)
    most = args.max_windows or _MOST_WINDOWS
    return ComparisonRequest(
        variants,
        texts,
        most,
        args.calibration,
        files,
        named_tasks=named,
        task_folders=folders,
        max_questions=args.max_questions,
    )


def _require_a_taker(of_all: MethodRequest, variants: Mapping[str, MethodRequest]) -> None:
    """Refuse what was given for all variants, and none of them has."""
    for each in fields(MethodRequest):
        name = each.name
        if name in (*_COMPARED, *_OF_TEXT) or getattr(of_all, name) is None:
            continue
        if all(getattr(own, name) is None for own in variants.values()):
            more = "; :tuned behind a method asks for it" if name.startswith("fine_tune") else ""
            raise UsageError(
                f"argument --{name.replace('_', '-')}: is of none of the methods of --compare"
                f"{more}; leave it out"
            )


def variant_of(text: str, of_all: MethodRequest) -> MethodRequest:
    """One of ``--compare``: METHOD[:BITS[:GROUP]][:asymmetric][:tuned], and what ``of_all`` has
    for its method besides; BITS may be auto=BUDGET, and ``tuned`` is what ``--fine-tune`` asks for.
    Raises UsageError for what is no such text."""
    method, *rest = text.split(":")
    tuned = rest[-1:] == ["tuned"]
    if tuned:
        rest.pop()
        if of_all.fine_tune is None:
            raise UsageError(f"argument --compare: {text} needs --fine-tune STEPS")
    else:
        of_all = replace(of_all, fine_tune=None, fine_tune_codes=None)
    asymmetric = rest[-1:] == ["asymmetric"]
    words = rest[:-1] if asymmetric else rest
    bits = words[0] if words else ""
    group = words[1] if len(words) > 1 else ""
    if method not in METHODS:
        raise UsageError(f"argument --compare: {text} begins with none of {', '.join(METHODS)}")
    budget = _budget(bits) if method in INTEGERS else None
    known = bits in ("", "2", "3", "4", "8") or budget is not None
    known = known and group in ("", "32", "64", "128", "row")
    known = known and not (method in ("squeezellm", "quip") and (group or asymmetric))
    known = known and not (method == "quip" and bits not in ("", *map(str, QUIP_BITS)))
    several = (*INTEGERS, *SPARSE, "squeezellm", "quip")
    if not known or len(words) > 2 or (rest and method not in several):
        raise UsageError(
            f"argument --compare: {text} is not METHOD[:BITS[:GROUP]][:asymmetric], with bits 2, "
            "3, 4, 8 or, such as auto=3.5, a budget, and groups of 32, 64, 128 or row, for "
            f"{', '.join(INTEGERS)}, and but for a budget {' and '.join(SPARSE)}; squeezellm and "
            "quip have METHOD[:BITS], quip with bits 2, 3 or 4, and others have a METHOD alone; "
            "with --fine-tune STEPS, :tuned may follow"
        )
    if (method in CALIBRATED or budget is not None) and of_all.calibration is None:
        raise UsageError(f"argument --compare: {text} needs --calibration FILE")
    size = None if not group else 0 if group == "row" else int(group)
    number = AUTO if budget is not None else int(bits) if bits else None
    own = of_method(of_all, method, number, size, asymmetric or None)
    own = replace(own, budget=budget)
    check(own)
    return own


def _budget(bits: str) -> Budget | None:
    """That of ``auto=BUDGET``; None of any other text."""
    word, _, text = bits.partition("=")
    try:
        return Budget.parse(text) if word == AUTO else None
    except ValueError:
        return None
