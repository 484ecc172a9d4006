"""Makes the document of a load test."""

from __future__ import annotations

import datetime
import shlex

import msgspec

from penstock.bench.load.campaign import Campaign, LoadPlan
from penstock.bench.load.document import VERSION, LoadReport, ServerAbout, TextAbout, points_of
from penstock.bench.load.figures import NAMES
from penstock.bench.load.probe import Server
from penstock.bench.machine import Speeds, describe_machine


def made_report(
    command: list[str], plan: LoadPlan, server: Server, campaign: Campaign
) -> LoadReport:
    """Everything that was found. ``command`` are the words after ``penstock``."""
    target, book = server.target, server.wordbook
    machine = describe_machine(Speeds(unmeasured="this is the client's machine"), 1)
    return LoadReport(
        version=VERSION,
        benchmark="serve",
        finished=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        command=shlex.join(["penstock", *command]),
        partial=any(run.partial for run in campaign.runs),
        server=ServerAbout(
            url=target.url,
            endpoint=target.kind,
            model=target.model,
            models=list(server.models),
            max_model_len=server.max_model_len,
            owned_by=server.owned_by,
            round_trip_s=server.round_trip_s,
            tells_usage=server.tells_usage,
            ignores_eos=target.exact_lengths,
        ),
        text=TextAbout(
            known_by=book.known_by, tokens_per_word=book.tokens_per_word, exact=book.exact
        ),
        workload={
            "name": plan.workload.name,
            **plan.workload.described(),
            "num_prompts": plan.conversations,
            "duration_s": plan.duration_s,
            "warmup": plan.warmup,
            "seed": plan.seed,
            "text_seed": plan.text_seed,
            "body": dict(target.extra),
        },
        slo=list(plan.limits),
        names={name: dict(other) for name, other in NAMES.items()},
        machine=msgspec.to_builtins(machine),
        runs=campaign.runs,
        points=points_of(campaign.runs),
        search=campaign.search,
    )
