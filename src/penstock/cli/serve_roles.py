"""The options of ``penstock serve`` for prompts that are computed apart from answers."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Final

from penstock.cli.http_options import seconds
from penstock.cli.options import whole_number
from penstock.cli.parser import UsageError
from penstock.errors import ConfigError
from penstock.handover_config import SECRET, DecodeRole, PrefillRole, Role
from penstock.peers.address import Address

RARE_ROLES: Final = frozenset(
    {
        *("--handover-key-file", "--handover-least-tokens", "--handover-max-wait"),
        *("--handover-timeout", "--handover-any-kernels"),
    }
)
_OF_PREFILL: Final = ("handover_listen",)
_OF_DECODE: Final = (
    *("prefill", "handover_least_tokens", "handover_max_wait", "handover_timeout"),
    "handover_any_kernels",
)


def add_role_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "prompts computed apart", "docs/disaggregation.md says when that pays, and how."
    )
    group.add_argument(
        "--role",
        choices=("both", "prefill", "decode"),
        default="both",
        help="prefill computes prompts for the engines that connect to --handover-listen; decode "
        "has long prompts computed by those of --prefill, and only answers; both does all by "
        "itself (default: both)",
    )
    group.add_argument(
        "--handover-listen",
        type=_address(0),
        metavar="HOST:PORT",
        help="with --role prefill: where decode engines connect",
    )
    group.add_argument(
        "--prefill",
        type=_addresses,
        metavar="HOST:PORT[,...]",
        help="with --role decode: the prefill engines, by what they have as --handover-listen",
    )
    group.add_argument(
        "--handover-key-file",
        metavar="FILE",
        help="a secret that both sides have, which they need unless all is on this machine; the "
        f"default is the environment variable {SECRET.variable}",
    )
    group.add_argument(
        "--handover-least-tokens",
        type=whole_number,
        metavar="N",
        help="with --role decode: prompts with fewer tokens that are not cached are computed here "
        "(default: as few as pay, by the times measured)",
    )
    group.add_argument(
        "--handover-max-wait",
        type=seconds,
        metavar="SECONDS",
        help="with --role decode: a prompt is computed here if no prefill engine would have done "
        "so within this time (default: 10)",
    )
    group.add_argument(
        "--handover-timeout",
        type=seconds,
        metavar="SECONDS",
        help="with --role decode: a prompt of which nothing has come for so long is computed here "
        "(default: 30)",
    )
    group.add_argument(
        "--handover-any-kernels",
        action="store_true",
        default=None,
        help="with --role decode: take blocks of prefill engines with another backend or "
        "instruction set, too; answers may then differ in the last bits from those of one engine",
    )


def role(args: argparse.Namespace) -> Role | None:
    """What the options say. Raises UsageError and ConfigError."""
    for name in (*_OF_PREFILL, *_OF_DECODE):
        needed = "prefill" if name in _OF_PREFILL else "decode"
        if getattr(args, name) is not None and args.role != needed:
            raise UsageError(f"argument --{name.replace('_', '-')}: it needs --role {needed}")
    if args.handover_key_file is not None and args.role == "both":
        raise UsageError("argument --handover-key-file: it needs --role prefill or decode")
    if args.role == "both":
        return None
    key = SECRET.read(args.handover_key_file)
    found: Role
    if args.role == "prefill":
        if args.handover_listen is None:
            raise UsageError("--role prefill needs --handover-listen HOST:PORT")
        found = PrefillRole(listen=args.handover_listen, key=key)
    else:
        if args.prefill is None:
            raise UsageError("--role decode needs --prefill HOST:PORT")
        usual = DecodeRole(prefill=args.prefill)
        found = DecodeRole(
            prefill=args.prefill,
            key=key,
            least_tokens=args.handover_least_tokens,
            max_wait_s=_given(args.handover_max_wait, usual.max_wait_s),
            timeout_s=_given(args.handover_timeout, usual.timeout_s),
            any_kernels=bool(args.handover_any_kernels),
        )
    found.check()
    return found


def _given(value: float | None, usual: float) -> float:
    return usual if value is None else value


def _address(least_port: int) -> Callable[[str], Address]:
    def parse(text: str) -> Address:
        try:
            return Address.parse(text, least_port)
        except ConfigError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return parse


def _addresses(text: str) -> tuple[Address, ...]:
    return tuple(map(_address(1), text.split(",")))
