"""What a decode engine knows of a prefill engine: what it has asked for, how busy the other one is,
and how fast blocks come. It knows no clock."""

from __future__ import annotations

from dataclasses import dataclass, replace

from penstock.engine.handover.rule import FIRST_BANDWIDTH, Load, Measured
from penstock.engine.handover.wire import Ask, Beat, Blocks
from penstock.processes.frames import WireError


@dataclass
class _Open:
    """A handover that was asked for."""

    blocks: int
    """All blocks of the prompt, those not asked for included."""
    left_tokens: int
    progress_at: float


class PeerBook:
    """The account of a prefill engine. Times are seconds of whatever clock its owner has."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._load = Load(0, 0.0)
        self._bandwidth = Measured(FIRST_BANDWIDTH)
        self._open: dict[int, _Open] = {}
        self.received_bytes = 0
        """Bytes of blocks that have come."""

    @property
    def bandwidth(self) -> float:
        """Bytes of blocks that come in a second."""
        return self._bandwidth.value

    @property
    def load(self) -> Load:
        """How busy it is: by what it has said, or what it was asked for since."""
        own = sum(each.left_tokens for each in self._open.values())
        return replace(self._load, queued_tokens=max(own, self._load.queued_tokens))

    def asked(self, ask: Ask, blocks: int, at: float) -> None:
        """A handover of a prompt of so many blocks begins."""
        left = (blocks - ask.first) * self._block_size
        self._open[ask.number] = _Open(blocks, left, at)

    def told(self, beat: Beat) -> None:
        self._load = Load(beat.queued_tokens, beat.tokens_per_s)

    def received(self, message: Blocks, num_bytes: int, seconds: float, at: float) -> bool:
        """Blocks have come, of which the bytes took so long; returns whether they are wanted.
        Raises WireError for blocks that their prompt does not have."""
        self.received_bytes += num_bytes
        self._bandwidth.add(num_bytes, seconds)
        handover = self._open.get(message.number)
        if handover is None:  # it was cancelled
            return False
        end = message.first + len(message.checksums)
        if not 0 <= message.first < end <= handover.blocks:
            raise WireError(
                f"blocks {message.first} to {end} came of a prompt of {handover.blocks}"
            )
        handover.progress_at = at
        left = (handover.blocks - end) * self._block_size
        handover.left_tokens = min(handover.left_tokens, left)
        return True

    def end(self, number: int) -> bool:
        """A handover is over; returns whether it was open."""
        return self._open.pop(number, None) is not None

    def end_all(self) -> list[int]:
        """All of them are; returns those that were open."""
        lost = list(self._open)
        self._open.clear()
        return lost

    def late(self, before: float) -> list[int]:
        """The handovers of which nothing has come since a time."""
        return [number for number, each in self._open.items() if each.progress_at < before]
