"""What joins devices: a link within machines, a network between them, and how long exchanges take.

Devices are numbered machine by machine. The ranks of a stage are neighbours, and so are stages; as
many ranks as fit share a machine. Where ranks lie on several machines, each exchange is made in two
parts, as NCCL's are where devices have interfaces of their own: between machines each rank has the
part that its neighbours of the same place there have, so that a machine receives nothing twice, and
within machines ranks share what they have received. With N ranks, g of them on each of m machines,
and S bytes in all, a rank receives

- of a gather ``(m - 1) / N * S`` by the network and ``(g - 1) / g * S`` by the link;
- of an all-reduce twice as much, of which the network has a part of ``1 / g``: reduce-scatter, then
  gather, in rings (Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms", 2009).
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.errors import ConfigError
from penstock.sizing.accelerator import Accelerator, Link, Network
from penstock.sizing.parallel import Kind, Parallelism


@dataclass(frozen=True)
class Fabric:
    """A link that joins up to ``most`` devices of a machine, and a network between machines."""

    link: Link | None
    most: int
    network: Network | None = None

    @classmethod
    def of(cls, device: Accelerator, network: Network | None = None) -> Fabric:
        return cls(device.link, device.most if device.link is not None else 1, network)

    def machines(self, parallel: Parallelism) -> int:
        """How many machines a replica takes."""
        if parallel.tensor > self.most:
            return -(-parallel.tensor // self.most) * parallel.pipeline
        return -(-parallel.pipeline // self._stages(parallel.tensor))

    def check(self, parallel: Parallelism, device: str) -> None:
        """Raise ConfigError, which says what would fit, where devices are not joined so."""
        tensor, most = parallel.tensor, self.most
        if self.network is None and self.machines(parallel) > 1:
            raise ConfigError(
                f"{parallel.devices} x {device} ({parallel}) are more than one machine, which has "
                f"at most {most} that are linked; take fewer, or name what joins machines "
                "(a network, such as InfiniBand NDR)"
            )
        if tensor > most and tensor % most:
            fits = f"{tensor // most * most} or {(tensor // most + 1) * most}"
            raise ConfigError(
                f"{tensor} ranks do not fill machines of {most} {device}; take {fits} ranks"
            )

    def seconds(self, kind: Kind, num_bytes: float, ranks: int) -> float:
        """The time of an exchange of ``num_bytes`` in all between so many ranks."""
        here = min(ranks, self.most)
        others = ranks // here - 1
        times = 2 if kind == "all_reduce" else 1
        total = 0.0
        if here > 1:
            assert self.link is not None, "a machine has one device"
            total += _over(self.link, times * (here - 1) / here * num_bytes, times)
        if others:
            assert self.network is not None, "there is one machine"
            # Of an all-reduce, rings of m ranks have 1 / g of the bytes each; of a gather, too.
            between = times * others / ranks * num_bytes
            total += _over(self.network, between * self._sharing(here), times)
        return total

    def handed_on(self, num_bytes: float, parallel: Parallelism, stage: int) -> float:
        """The time of handing so many bytes from a stage to the next one. Between machines each
        rank receives a part, which it shares with the others of its machine."""
        if num_bytes == 0:
            return 0.0
        here = min(parallel.tensor, self.most)
        apart = parallel.tensor > self.most or (stage + 1) % self._stages(parallel.tensor) == 0
        if not apart:
            assert self.link is not None, "stages share a machine"
            return _over(self.link, num_bytes, 1)
        assert self.network is not None, "there is one machine"
        total = _over(self.network, num_bytes / here * self._sharing(here), 1)
        return total + self.seconds("all_gather", num_bytes, here)

    def _stages(self, tensor: int) -> int:
        """Stages that fit one machine."""
        return max(self.most // tensor, 1)

    def _sharing(self, here: int) -> int:
        """Ranks of a machine that share one interface."""
        assert self.network is not None
        return here if self.network.per == "machine" else 1


def _over(link: Link | Network, num_bytes: float, hops: int) -> float:
    return num_bytes / (link.gb_per_s * 1e9) + hops * link.us * 1e-6
