"""All that a calibration measured, in a file: fits can be made of it again, without the machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import msgspec

from penstock.bench.load.document import LoadedRun
from penstock.errors import ConfigError
from penstock.simulate.engine_log import EngineLog
from penstock.simulate.model_key import Covered, ModelKey
from penstock.simulate.others import Others
from penstock.simulate.server_loads import Seen, ServerLoad
from penstock.simulate.step_times import ObservedStep, StepTimes, WindowShare

VERSION: Final = 1
"""The version of recordings."""


class ClientRequest(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What the client saw of a request. Times are seconds from the load's start."""

    sent_s: float
    prompt: int
    """Tokens of the prompt, those of the chat template included."""
    output: int
    gaps_us: list[int]
    """Microseconds from sending to the first chunk, and from each chunk to the next."""


class RecordedLoad(msgspec.Struct, frozen=True, kw_only=True):
    """A load that was measured."""

    name: str
    load: ServerLoad
    round: int
    began: float
    """When it began, by ``time.monotonic``."""
    seconds: float
    requests: list[ClientRequest]
    template: int | None
    """Tokens of a prompt that nobody asked for: the median; None where the server does not say."""
    others: Others
    """What others took of the machine meanwhile, in processors."""

    @property
    def disturbed(self) -> float:
        """Processors that other processes and the host took together."""
        return sum(self.others)

    @property
    def seen(self) -> Seen:
        """What the client saw of it."""
        found = Seen()
        found.seconds = self.seconds
        for each in self.requests:
            first, *gaps = (gap / 1e6 for gap in each.gaps_us)
            found.add(each.sent_s, each.sent_s + first, each.sent_s + first + sum(gaps))
            for gap in gaps:
                found.gaps.add(gap)
        return found


class Recording(msgspec.Struct, frozen=True, kw_only=True):
    """What ``penstock calibrate --recording`` writes."""

    version: int
    made: str
    model: str
    key: ModelKey
    windows: tuple[WindowShare, ...]
    covered: Covered
    alone: list[ObservedStep]
    """Steps of the model in a process of its own, with nothing beside them: medians of rounds."""
    loads: list[RecordedLoad]
    engine: EngineLog
    """What the server's engine noted under the loads."""
    beside: StepTimes | None = None
    """What steps take while ``neighbours`` compute on the same machine; None: not measured."""
    neighbours: int = 0
    machine: dict[str, Any] = {}

    @property
    def rounds(self) -> tuple[int, ...]:
        return tuple(sorted({each.round for each in self.loads}))

    def of_rounds(self, rounds: set[int]) -> Recording:
        """The same with the loads of these rounds alone."""
        kept = [each for each in self.loads if each.round in rounds]
        return msgspec.structs.replace(self, loads=kept)

    def write(self, path: Path) -> None:
        """Raises OSError."""
        path.write_bytes(msgspec.msgpack.encode(self))

    @classmethod
    def read(cls, path: Path) -> Recording:
        """Raises ConfigError where the file is none of this version, and OSError."""
        try:
            found = msgspec.msgpack.decode(path.read_bytes(), type=cls)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ConfigError(
                f"{path} is no recording of a calibration ({error}); make one: penstock calibrate "
                "MODEL --recording FILE --out FILE"
            ) from None
        if found.version != VERSION:
            raise ConfigError(
                f"{path} is a recording of version {found.version}, and this Penstock reads "
                f"{VERSION}; make it anew: penstock calibrate MODEL --recording FILE --out FILE"
            )
        return found


def recorded(
    name: str, load: ServerLoad, number: int, run: LoadedRun, began: float, others: Others
) -> RecordedLoad:
    """Keep of a run what fits need."""
    whole = [each for each in run.requests if each.ok and each.gaps_us]
    more = sorted(
        each.input_tokens - each.input_tokens_asked
        for each in whole
        if each.input_tokens is not None and each.input_tokens_asked is not None
    )
    return RecordedLoad(
        name=name,
        load=load,
        round=number,
        began=began,
        seconds=run.seconds,
        requests=[
            ClientRequest(
                each.sent_s,
                each.input_tokens or each.input_tokens_asked or 0,
                each.tokens,
                each.gaps_us,
            )
            for each in whole
        ],
        template=more[len(more) // 2] if more else None,
        others=others,
    )
