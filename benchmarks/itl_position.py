"""Time between tokens against position: does a step grow with anything but its keys and values?

    python benchmarks/itl_position.py benchmarks/configs/llama-3.2-1b --load-format dummy
    python benchmarks/itl_position.py MODEL --kv-cache-dtype int8 --json itl.json

One stream decodes a few tokens at each position, on a prompt whose beginning is cached. The places
are visited in turn, ``--repeats`` times, so that a slow minute of the machine falls on all of them;
of each visit the median step counts, of the visits the fastest. Keys and values are given the time
that their bytes take at the measured read bandwidth; what is left should be the same everywhere.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from statistics import median

import msgspec

from penstock.bench.meter import Step, timed_step
from penstock.bench.report import report
from penstock.bench.session import Session
from penstock.bench.workload import check_fit, fixed_lengths
from penstock.cli.bench_common import add_json_argument, command_line, machine_rows, print_table
from penstock.cli.options import add_engine_arguments, engine_config, positive_int
from penstock.errors import ConfigError, EngineDeadError, PenstockError
from penstock.interface.messages import EngineRequest
from penstock.sampling.params import SamplingParams
from penstock.written_file import write_json

ALLOWED = 0.10
"""How far what is left may be from that of the first position."""


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Decoding just after ``position`` tokens."""

    position: int
    itl_s: float
    host_s: float  # of it, outside the executor
    kv_bytes: int

    def rest_s(self, bandwidth: float) -> float:
        """What keys and values do not account for at ``bandwidth`` bytes a second."""
        return self.itl_s - self.kv_bytes / bandwidth


@dataclass
class Stream:
    """One sequence at a time, its prompt the beginning of one list of tokens."""

    session: Session
    tokens: list[int]
    visits: int = 0

    def decode(self, position: int, steps: int) -> list[Step]:
        """The steps that follow a prompt of ``position`` tokens, one token each."""
        self.visits += 1
        core, meter = self.session.core, self.session.meter
        request = EngineRequest(
            request_id=f"visit{self.visits}",
            prompt_token_ids=self.tokens[:position],
            params=SamplingParams(temperature=0, max_tokens=steps + 1, ignore_eos=True),
        )
        core.add_request(request)
        decoded: list[Step] = []
        while core.has_work:
            updates, step = timed_step(core, meter)
            for update in updates:
                if update.error is not None:
                    raise EngineDeadError(f"a benchmark request failed: {update.error}")
            if step.run is not None and step.run.shortest_context > position:
                decoded.append(step)
        return decoded


def measure(session: Session, positions: list[int], steps: int, repeats: int) -> list[Place]:
    """The fastest visit to each position."""
    generator = range(max(positions))
    stream = Stream(session, [1 + i * 7919 % (session.vocab_size - 1) for i in generator])
    best: dict[int, Place] = {}
    for repeat in range(repeats + 1):  # the first warms up, and fills the prefix cache
        for position in positions:
            decoded = stream.decode(position, steps)
            place = Place(
                position=position,
                itl_s=median(step.seconds for step in decoded),
                host_s=median(step.host_seconds for step in decoded),
                kv_bytes=sum(s.run.kv_bytes for s in decoded if s.run) // len(decoded),
            )
            known = best.get(position)
            if repeat and (known is None or place.itl_s < known.itl_s):
                best[position] = place
    return [best[position] for position in positions]


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_engine_arguments(parser, skip={"enable_prefix_caching", "max_num_seqs"})
    parser.add_argument(
        "--positions",
        type=positive_int,
        nargs="+",
        default=[128, 256, 512, 1024, 1536, 2048, 3072, 4096 - 16],
        metavar="N",
    )
    parser.add_argument("--steps", type=positive_int, default=16, help="tokens at each position")
    parser.add_argument("--repeats", type=positive_int, default=5)
    add_json_argument(parser)
    return parser.parse_args()


def main() -> int:
    args = parse()
    positions = sorted(set(args.positions))
    config = msgspec.structs.replace(engine_config(args), max_num_seqs=1)
    if config.max_model_len is None:
        config = msgspec.structs.replace(config, max_model_len=positions[-1] + args.steps + 1)
    with Session.open(config) as session:
        check_fit(fixed_lengths(1, positions[-1], args.steps + 1), session.max_model_len)
        places, machine = session.measured(
            lambda: measure(session, positions, args.steps, args.repeats)
        )
        bandwidth = machine.read_bandwidth_bytes_per_s
        if bandwidth is None:
            raise ConfigError(f"the read bandwidth is not known here: {machine.unmeasured}")
        rest = [place.rest_s(bandwidth) for place in places]
        change = [value / rest[0] - 1 for value in rest]
        document = report(
            "itl_position",
            command_line(),
            {"positions": positions, "steps": args.steps, "repeats": args.repeats},
            machine,
            {"places": msgspec.to_builtins(places), "rest_s": rest, "change": change},
            session.engine_plan,
        )
        kv_dtype = session.engine_plan.config.kv_cache_dtype
    print_table([*machine_rows(machine), ("KV cache", kv_dtype)])
    print("\nposition     ITL ms  host ms    KV MB    KV ms   rest ms   change")
    for place, value, off in zip(places, rest, change, strict=True):
        print(
            f"{place.position:>8}  {place.itl_s * 1e3:>9.3f} {place.host_s * 1e3:>8.3f} "
            f"{place.kv_bytes / 1e6:>8.2f} {place.kv_bytes / bandwidth * 1e3:>8.3f} "
            f"{value * 1e3:>9.3f} {off:>+8.1%}"
        )
    worst = max(change, key=abs)
    print(
        f"\nwithout keys and values a step changes by at most {worst:+.1%} "
        f"({'within' if abs(worst) <= ALLOWED else 'beyond'} {ALLOWED:.0%})"
    )
    if args.json is not None:
        write_json(args.json, document)
    return 0 if abs(worst) <= ALLOWED else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except PenstockError as error:
        sys.exit(f"error: {error}")
