"""What a model gains from more devices and machines, by ``penstock size``'s rooflines.

Nothing runs: a table of steps on the ranks of one machine, with columns that are gathered (ours)
beside sums that are reduced (others), one of a load on ranks and stages of several machines, and
one of the ways to divide as many machines as there may be: ranks, stages and replicas.

    python benchmarks/scaling.py tests/sizing/configs/llama-2-70b.json
    python benchmarks/scaling.py benchmarks/configs/llama-3.1-8b/config.json --cluster "Xeon GNR" \\
        --network "Ethernet 25G"
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from penstock.cli.size import read_spec_of
from penstock.cli.size_table import time_text
from penstock.errors import ConfigError
from penstock.sizing.accelerator import Accelerator, Network
from penstock.sizing.catalogue import Catalogue
from penstock.sizing.model import Precision, SizedModel
from penstock.sizing.parallel import Exchange, Parallelism
from penstock.sizing.search import Choices, Demanded, Search
from penstock.sizing.serving import Load, Slo, Workload

RANKS = (1, 2, 4, 8)
MACHINES = (1, 2, 4, 8, 16, 32)
SEQUENCES, CONTEXT, CHUNK = 16, 2048, 2048
EXCHANGES: tuple[Exchange, ...] = ("gather", "reduce")


def in_a_machine(model: SizedModel, device: Accelerator) -> Iterator[str]:
    """Milliseconds of steps by so many ranks, and the part of eight that is exchanges."""
    load = Load(Workload(CONTEXT, 2), CHUNK)
    steps = {"decode": load.step(SEQUENCES, 0), "a chunk": load.step(0, CHUNK)}
    search = Search(model, Demanded(load.workload, SEQUENCES, Slo()), Choices([device]))
    precision = Precision("none", model.spec.dtype)
    head = " | ".join(f"N = {ranks}" for ranks in RANKS)
    yield f"| {device.name} | | {head} | of {RANKS[-1]}, exchanges |"
    yield f"|---|---|{'---:|' * (len(RANKS) + 1)}"
    for name, size in steps.items():
        last = {}
        for exchange in EXCHANGES:
            shapes = [Parallelism(ranks, exchange=exchange) for ranks in RANKS]
            found = [search.time(device, precision, shape).bounds(size) for shape in shapes]
            last[exchange] = found[-1]
            times = " | ".join(f"{each.seconds * 1e3:.3g}" for each in found)
            part = found[-1].communication / found[-1].seconds
            yield f"| {name} | {exchange} | {times} | {part:.0%} |"
        ratio = last["gather"].seconds / last["reduce"].seconds
        sent = last["gather"].communication / max(last["reduce"].communication, 1e-12)
        yield f"| {name} | gather / reduce | | | | {ratio:.2f} | exchanges alone {sent:.2f} times |"


@dataclass(frozen=True)
class Cluster:
    """Machines with as many devices each as go into one, and what is asked of all."""

    model: SizedModel
    device: Accelerator
    network: Network
    demanded: Demanded
    step_tokens: int | None

    @property
    def per_machine(self) -> int:
        return self.device.most if self.device.link is not None else 1

    def head(self) -> Iterator[str]:
        yield (
            f"| {self.device.name}, {self.network.name} | devices | TPOT of one request | its TTFT "
            f"| tokens/s of {self.demanded.concurrency:,} | TPOT | TTFT |"
        )
        yield f"|---|{'---:|' * 6}"

    def row(self, shape: Parallelism, replicas: int = 1) -> str:
        """The load on so many replicas of this shape, or why there are none."""
        choices = Choices(
            [self.device],
            ("none",),
            tensor=(shape.tensor,),
            pipeline=(shape.pipeline,),
            replicas=replicas,
            network=self.network,
            step_tokens=self.step_tokens,
        )
        name = str(shape) if replicas == 1 else f"{replicas} x ({shape})"
        first = f"| {name} | {shape.devices * replicas} |"
        cells: list[str] = []
        try:
            for concurrency in (replicas, self.demanded.concurrency):
                load = replace(self.demanded, concurrency=concurrency)
                (made,) = Search(self.model, load, choices).all()
                at = made.at_load
                if concurrency != replicas:
                    cells.append(f"{at.output_tps * replicas:,.0f}")
                cells += (time_text(at.tpot), time_text(at.ttft))
        except ConfigError as error:
            return f"{first} {error} | | | | |"
        return f"{first} {' | '.join(cells)} |"


def on_machines(cluster: Cluster) -> Iterator[str]:
    """A load on so many machines: as stages of a machine each, and as ranks of all."""
    yield from cluster.head()
    for machines in MACHINES:
        yield cluster.row(Parallelism(cluster.per_machine, machines))
        if machines > 1:
            yield cluster.row(Parallelism(cluster.per_machine * machines))


def divided(cluster: Cluster) -> Iterator[str]:
    """A load on as many machines as there may be, divided in every way: by a replica's stages, of
    one machine or several, and by the number of replicas."""
    yield from cluster.head()
    for span in MACHINES[:3]:
        for stages in MACHINES:
            replicas = MACHINES[-1] // (span * stages)
            if replicas:
                shape = Parallelism(cluster.per_machine * span, stages)
                yield cluster.row(shape, replicas)


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("model", help="a config.json, or whatever penstock size reads")
    parser.add_argument("--device", nargs="*", default=["H100", "H100 PCIe"], metavar="NAME")
    parser.add_argument("--cluster", default="H100", metavar="NAME", help="devices of machines")
    parser.add_argument("--network", default="InfiniBand NDR", metavar="NAME")
    parser.add_argument("--isl", type=int, default=2000)
    parser.add_argument("--osl", type=int, default=300)
    parser.add_argument("--concurrency", type=int, default=1024)
    parser.add_argument("--step-tokens", type=int, help="default: the backend's")
    args = parser.parse_args(words)
    catalogue, model = Catalogue.load(), SizedModel(read_spec_of(args.model, ()))
    for name in args.device:
        print("\n".join(in_a_machine(model, catalogue.find(name))) + "\n")
    demanded = Demanded(Workload(args.isl, args.osl), args.concurrency, Slo())
    device, network = catalogue.find(args.cluster), catalogue.find_network(args.network)
    cluster = Cluster(model, device, network, demanded, args.step_tokens)
    print("\n".join(on_machines(cluster)) + "\n")
    print("\n".join(divided(cluster)))


if __name__ == "__main__":
    main()
