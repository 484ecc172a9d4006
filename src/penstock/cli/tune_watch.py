"""``penstock tune --watch``: a server's load beside what its profile was made for."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import deque
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.cli.bench_common import ended
from penstock.cli.main import EXIT_INTERRUPTED
from penstock.cli.observe import KEY_VARIABLE
from penstock.cli.parser import UsageError
from penstock.cli.serve_profile import with_profile
from penstock.cli.server_key import server_key
from penstock.cli.tune_apply import apply
from penstock.errors import PenstockError
from penstock.profile import Profile
from penstock.server_url import split_server_url
from penstock.terminal import harmless

if TYPE_CHECKING:
    from penstock.hardware import Hardware
    from penstock.tune.load import TraceLoad
    from penstock.workload.observed_server import ObservedServer


def watch(args: argparse.Namespace) -> int:
    """Look once, or every ``--interval`` until the load is another, and then propose a profile.
    With ``--apply`` the server is given it, and watched further."""
    from penstock.workload.observed_server import ObservedServer

    profile: Profile | None = getattr(args, "profile", None)
    if profile is None:
        raise UsageError("argument --watch: name the --profile that the server runs with")
    if not args.calibration:
        raise UsageError(
            "argument --watch: name a --calibration of this machine; while it serves, nothing can "
            "be measured here (penstock calibrate MODEL --out FILE, before it does)"
        )
    for name in ("rate", "speed", "arrivals"):
        if getattr(args, name) is not None:
            raise UsageError(f"argument --{name}: --watch takes the server's own times")
    if args.apply_within is not None and not args.apply:
        raise UsageError("argument --apply-within: it is for --apply")
    server = ObservedServer(args.watch, server_key(args.api_key_env, KEY_VARIABLE))
    try:
        load = _drifted(server, args, profile)
        while True:
            if load is None:
                load = _later(server, args, profile)
            if load is None:
                return 0
            stopped = _propose(server, args, profile, load)
            if stopped or not args.apply:
                return ended(stopped)
            profile = Profile.read(args.out)
            apply(server.url, args, profile)
            if args.interval is None:
                return 0
            args, load = with_profile(args, profile), None
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


def _later(server: ObservedServer, args: argparse.Namespace, profile: Profile) -> TraceLoad | None:
    """The load at the first look from now on that finds another than the profile's; None without
    ``--interval``."""
    load = None
    while load is None and args.interval is not None:
        time.sleep(args.interval)
        try:
            load = _drifted(server, args, profile)
        except PenstockError as error:
            # An earlier look has found it, so it is away for a while: restarted, or busy.
            _say(f"this look failed: {error}; the next is in {args.interval:g} s")
    return load


def _propose(
    server: ObservedServer, args: argparse.Namespace, profile: Profile, load: TraceLoad
) -> bool:
    """Write the next profile to the file of ``--out``; returns whether it was stopped."""
    from penstock.cli.tune_run import tune

    objective = args.objective or profile.objective
    stopped = tune(args, load, objective, _without(server.url), verify=False)
    if not stopped:
        otherwise = "" if args.apply else ", or start the next server with it"
        _say(
            "this is a prediction: verify it where nothing else is served (penstock observe --out "
            f"TRACE, then penstock tune --trace TRACE){otherwise}"
        )
    return stopped


def _drifted(
    server: ObservedServer, args: argparse.Namespace, profile: Profile
) -> TraceLoad | None:
    """The load that the server sees now, if it is another than the profile's."""
    from penstock.tune.drift import FEWEST, drifts

    load = _seen(server, args, args.slo or profile.slo)
    if load is None:
        _say(f"{server.url} has seen no request with a prompt and an answer yet")
        return None
    seen = load.summary()
    if seen.requests < FEWEST:
        _say(f"{seen.requests} requests are too few to compare; {FEWEST} are needed")
        return None
    found = drifts(profile.made_for.workload, seen)
    _say(f"seen: {seen}")
    if not found:
        _say("it is what the profile was made for: there is nothing to propose")
        return None
    for each in found:
        _say(str(each))
    return load


def _seen(
    server: ObservedServer, args: argparse.Namespace, slo: tuple[str, ...]
) -> TraceLoad | None:
    from penstock.cli.tune_run import load_of
    from penstock.workload.trace import encoded_lines, read_lines
    from penstock.written_file import write_pieces

    with tempfile.TemporaryDirectory(prefix="penstock-tune-") as folder:
        observed, latest = Path(folder) / "all.jsonl", Path(folder) / "observed.jsonl"
        write_pieces(observed, server.trace(args.since))
        asked = (line for _, line in read_lines(observed) if line.input_length)
        # What it was asked for long ago says nothing of what it needs now.
        lines = deque((line for line in asked if line.output_length), maxlen=args.num_prompts)
        if not lines:
            return None
        write_pieces(latest, encoded_lines(list(lines)))
        return load_of(args, latest, slo)


def _without(url: str) -> Hardware:
    """This machine as it is when the server has ended: what it holds is its successor's."""
    from penstock.cli.size_table import gib
    from penstock.hardware import detect
    from penstock.tune.present_server import held_memory

    hardware, parts = detect(), split_server_url(url)
    host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
    held = held_memory(host, port)
    free = hardware.memory_available
    if held:
        _say(f"memory: {gib(free)} are free, and {gib(held)} more when the server there has ended")
    else:
        _say(
            f"memory: {gib(free)} are free; no server of yours on this machine listens there, so "
            "nothing is added of what it holds"
        )
    return replace(hardware, memory_available=min(free + held, hardware.memory_total))


def _say(text: str) -> None:
    print(harmless(text, sys.stdout), flush=True)
