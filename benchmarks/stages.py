"""Compare what ``penstock simulate`` predicts of the stages of a pipeline with what they do.

Two stages of one thread each are set beside one process of two threads, on this machine: so many
sequences that decode, and prompts alone. Steps are measured once, of one process with two threads,
and of one with one thread, alone and beside another one; what stages take is made of these. Loads
are then measured in rounds, both configurations in turn, each in processes of their own.

    python benchmarks/stages.py steps here.json
    python benchmarks/stages.py round here.json        # as often as there are to be rounds
    python benchmarks/stages.py table here.json
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Final

import msgspec

from penstock.bench.load.turn import Conversation, Piece, Turn
from penstock.bench.progress import Unseen
from penstock.config import EngineConfig, LoadFormat
from penstock.engine.loader import open_model, plan_engine
from penstock.simulate.configuration import Configuration
from penstock.simulate.fleet import Fleet, Offered
from penstock.simulate.front_end import FrontTimes
from penstock.simulate.machine_setups import Planned, limits_of, measured_stages
from penstock.simulate.measured_steps import measure_steps
from penstock.simulate.setup import Setup
from penstock.simulate.step_times import StepTimes
from penstock.written_file import write_json

MODEL: Final = str(Path(__file__).with_name("configs") / "qwen3-0.6b")
CONTEXT, SEQUENCES, STEP_TOKENS = 512, 32, 256
ALONE: Final = FrontTimes(request=0, prompt_token=0, answer=0, chunk=0, pause=0)
"""No server: requests are offered to the engine itself."""


class Load(msgspec.Struct, frozen=True):
    """Requests that are offered at once."""

    name: str
    requests: int
    prompt: int
    output: int


LOADS: Final = (
    Load("1 sequence decodes", 1, 1, 100),
    Load("8 sequences", 8, 1, 100),
    Load("16 sequences", 16, 1, 100),
    Load("32 sequences", 32, 1, 100),
    Load("8 prompts of 384 tokens", 8, 384, 1),
)


class Seen(msgspec.Struct, frozen=True):
    """Tokens a second of a load, computed by two threads and by two stages."""

    threads: float
    stages: float

    @property
    def ratio(self) -> float:
        return self.stages / self.threads


class Kept(msgspec.Struct):
    """What has been measured."""

    model: str
    two: StepTimes
    one: StepTimes
    """Times of steps by one thread."""
    beside: StepTimes
    rounds: list[dict[str, Seen]] = []


def load_format(model: str) -> LoadFormat:
    """Shapes have no weights."""
    return "auto" if model.endswith(".gguf") else "dummy"


def config(model: str, threads: int, stages: int = 1) -> EngineConfig:
    return EngineConfig(
        model=model,
        load_format=load_format(model),
        threads=threads,
        pipeline_parallel=stages,
        max_model_len=CONTEXT,
        max_num_seqs=SEQUENCES,
        max_num_batched_tokens=STEP_TOKENS,
    )


def steps(model: str) -> Kept:
    two = measure_steps(config(model, 2), Unseen())
    one = measure_steps(config(model, 1), Unseen(), neighbours=1)
    assert one.beside is not None
    return Kept(model, two.times, one.times, one.beside)


def measured(model: str, load: Load, stages: int) -> float:
    """Tokens a second of ``penstock bench throughput``."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.json"
        command = [
            *(sys.executable, "-m", "penstock", "bench", "throughput", model),
            *("--load-format", load_format(model), "--threads", "2"),
            *("--max-model-len", str(CONTEXT)),
            *("--max-num-seqs", str(SEQUENCES), "--max-num-batched-tokens", str(STEP_TOKENS)),
            *("--num-prompts", str(load.requests), "--input-len", str(load.prompt)),
            *("--output-len", str(load.output), "--json", str(out)),
        ]
        if stages > 1:
            command += ["--pipeline-parallel", str(stages)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return float(json.loads(out.read_text())["total_tokens_per_s"])


def simulated(kept: Kept, load: Load, stages: int) -> float:
    """The same of a simulation."""
    asked = config(kept.model, 2, stages)
    planned = Planned(Configuration("tried", asked), plan_engine(asked, open_model(asked)))
    alone = kept.two if stages == 1 else kept.one
    setup = Setup(
        "tried",
        limits_of(planned.engine_plan),
        measured_stages(planned, alone, kept.beside if stages > 1 else None),
        ALONE,
    )
    fleet = Fleet(setup, Offered(None))
    talks = [
        Conversation(str(i), (Turn((Piece((i,), load.prompt),), load.output),), 0.0)
        for i in range(load.requests)
    ]
    fleet.run(iter(talks))
    seconds = max(each.last_s for each in fleet.answers)
    return load.requests * (load.prompt + load.output) / seconds


def table(kept: Kept) -> Iterator[str]:
    """Medians of the rounds, lowest and highest in parentheses."""
    heads = ("two threads", "two stages", "stages / threads")
    yield f"| tokens/s | {' | '.join(f'{each} | simulated' for each in heads)} |"
    yield "|---|---:|---:|---:|---:|---:|---:|"
    for load in LOADS:
        found = [each[load.name] for each in kept.rounds]
        predicted = Seen(simulated(kept, load, 1), simulated(kept, load, 2))
        cells = []
        for name in ("threads", "stages", "ratio"):
            each, one = [getattr(seen, name) for seen in found], getattr(predicted, name)
            form = ".2f" if name == "ratio" else ",.0f"
            low, high = format(min(each), form), format(max(each), form)
            cells += [f"{median(each):{form}} ({low} to {high})", f"{one:{form}}"]
        yield f"| {load.name} | {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("what", choices=("steps", "round", "table"))
    parser.add_argument("file", type=Path)
    parser.add_argument("--model", default=MODEL)
    args = parser.parse_args()
    if args.what == "steps":
        write_json(args.file, steps(args.model))
        return
    kept = msgspec.json.decode(args.file.read_bytes(), type=Kept)
    if args.what == "round":
        kept.rounds.append(
            {
                load.name: Seen(*(measured(kept.model, load, stages) for stages in (1, 2)))
                for load in LOADS
            }
        )
        write_json(args.file, kept)
    else:
        print("\n".join(table(kept)))


if __name__ == "__main__":
    main()
