"""Train the demo models that ship inside Penstock: a small code model and a smaller draft.

    python examples/train_demo/train.py --size demo  --minutes 50 --out build/demo
    python examples/train_demo/train.py --size draft --minutes 14 --out build/draft \\
        --tokenizer build/demo/tokenizer.json --teacher build/demo

Llama-style decoders (GQA, RoPE, SwiGLU, RMSNorm, tied embeddings) on the source of the Python
standard library. Matrices are updated by Muon, everything else by AdamW; the learning rate
follows warm-up, a plateau and a linear decay, against *processor time*. The result is an ordinary
Hugging Face checkpoint in bf16 with a model card that states the held-out bits per byte.

Needs the extra ``train``: ``pip install '.[train]'``. Run by ``torchrun --nproc-per-node 2``, it
shares each step's windows among processes. With ``--state FILE`` it can be stopped, by SIGTERM or
otherwise, and continued by the same command, with more minutes if the decay has not begun.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import time
from pathlib import Path
from types import FrameType

import torch
import transformers
from tokenizers import Tokenizer
from torch import Tensor, distributed, nn

from checkpoint import save
from corpus import read_documents, read_packages, split
from decoder import (
    CONTEXT,
    SIZES,
    VOCAB_SIZE,
    bits_per_byte,
    distribution,
    loss_of,
    make_model,
    make_optimizers,
)
from progress import Average, Counts, Schedule, read_state, write_state
from stream import Windows, token_stream
from vocabulary import train_tokenizer

SHORT = CONTEXT // 4
STATE_SECONDS = 120
MICRO_BATCH_TOKENS = 2048  # their logits, 16 MB in bf16, stay in a processor's cache


compiled_loss = torch.compile(loss_of, dynamic=False)
compiled_wanted = torch.compile(distribution, dynamic=False)


class Stop:
    """Whether SIGTERM has come."""

    def __init__(self) -> None:
        self.asked = False
        signal.signal(signal.SIGTERM, self._ask)

    def _ask(self, _signal: int, _frame: FrameType | None) -> None:
        self.asked = True


def loss_on(model: nn.Module, teacher: nn.Module | None, windows: Tensor) -> Tensor:
    """The mean loss: against the next tokens, or what ``teacher`` holds them to be."""
    wanted = None if teacher is None else compiled_wanted(teacher, windows)
    return compiled_loss(model, windows, wanted=wanted)


def add_gradients(
    model: nn.Module, teacher: nn.Module | None, windows: Tensor, processes: int
) -> float:
    """Leave the gradient of the windows' mean loss, divided by the processes; return that loss."""
    count, length = windows.shape[0], windows.shape[1] - 1
    parts = windows.split(min(count, max(1, MICRO_BATCH_TOKENS // length)))
    total = 0.0
    for part in parts:
        loss = loss_on(model, teacher, part) * (len(part) / count / processes)
        loss.backward()
        total += loss.item()
    return total


def summed(values: list[float], model: nn.Module) -> list[float]:
    """Add up all processes' gradients, in place, and their ``values``."""
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    flat = torch.cat([*(g.view(-1) for g in gradients), torch.tensor(values)])
    distributed.all_reduce(flat)
    pieces = flat.split([*(g.numel() for g in gradients), len(values)])
    for gradient, piece in zip(gradients, pieces[:-1], strict=True):
        gradient.copy_(piece.view_as(gradient))
    return pieces[-1].tolist()


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--size", choices=SIZES, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=90.0, help="processor time of a thread")
    parser.add_argument("--decay-minutes", type=float, help="of these, the last; default: 40 %%")
    parser.add_argument("--long-minutes", type=float, help="with long windows; default: 20 %%")
    parser.add_argument("--packages", type=Path, help="a folder of packages to train on, too")
    parser.add_argument("--written", type=Path, help="a folder that written.py wrote, likewise")
    parser.add_argument("--state", type=Path, help="file to stop into and to continue from")
    parser.add_argument("--warm-start", type=Path, help="begin with the weights of this checkpoint")
    parser.add_argument("--teacher", type=Path, help="learn what this checkpoint would say instead")
    parser.add_argument("--tokenizer", type=Path, help="reuse this tokenizer.json")
    parser.add_argument("--learning-rate", type=float, help="default: the size's")
    parser.add_argument("--batch-tokens", type=int, default=8192)
    parser.add_argument("--threads", type=int, default=1, help="of each process")
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


def main() -> None:
    arguments = parse()
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    rank = int(os.environ.get("RANK", "0"))
    if processes > 1:
        distributed.init_process_group("gloo")
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(arguments.seed)
    stop = Stop()

    training, held_out = split(read_documents())
    packages = read_packages(arguments.packages, held_out) if arguments.packages else []
    own_text = read_packages(arguments.written, held_out) if arguments.written else []
    training += packages + own_text
    if arguments.tokenizer or arguments.warm_start:
        file = arguments.tokenizer or arguments.warm_start / "tokenizer.json"
        tokenizer = Tokenizer.from_file(str(file))
    else:
        tokenizer = train_tokenizer((d.text for d in training), VOCAB_SIZE)
    stream = token_stream(tokenizer, training, arguments.seed)
    before, without_packages, learnt = 0, 0, 0  # tokens seen
    if arguments.warm_start:
        record = json.loads((arguments.warm_start / "training.json").read_text())
        before = record["training_tokens_seen"]
        without_packages = record.get("seen_before_packages", before)
        learnt = record.get("learnt_of_teacher", 0)
    size = SIZES[arguments.size]
    model = make_model(size, arguments.warm_start)
    learning_rate = arguments.learning_rate or size.learning_rate
    teacher = make_model(size, arguments.teacher).eval() if arguments.teacher else None
    optimizers = make_optimizers(model, learning_rate)
    average = Average(model)
    counts = Counts()
    if arguments.state and arguments.state.exists():
        counts = read_state(arguments.state, model, average, optimizers)
    schedule = Schedule(arguments.minutes, arguments.decay_minutes or 0.4 * arguments.minutes)
    long_minutes = arguments.long_minutes or 0.2 * arguments.minutes
    short, long = (Windows(stream, n, arguments.seed) for n in (SHORT, CONTEXT))
    short.position, long.position = counts.short, counts.long
    parameters = sum(p.numel() for p in model.parameters())

    def say(text: str) -> None:
        if rank == 0:
            print(text, flush=True)

    def keep(*, complete: bool) -> None:
        """Measure the weights or their average, whichever is better, and write a checkpoint."""
        most = None if complete else 100_000
        measured = bits_per_byte(model, tokenizer, held_out, most)
        smooth = make_model(size, None)
        smooth.load_state_dict({**model.state_dict(), **average.tensors})
        averaged = bits_per_byte(smooth, tokenizer, held_out, most)
        say(f"held-out {measured:.4f} bits per byte, averaged {averaged:.4f}")
        card: dict[str, object] = {
            "parameters": parameters,
            "training_tokens_seen": before + counts.seen,
            "seen_before_packages": without_packages if packages else before + counts.seen,
            "learnt_of_teacher": learnt + counts.seen if teacher else learnt,
            "corpus_tokens": len(stream),
            "training_documents": len(training),
            "of_packages": len(packages),
            "of_own_text": len(own_text),
            "held_out_documents": len(held_out),
            "held_out_bits_per_byte": round(min(measured, averaged), 4),
            "complete": complete,
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        }
        save(smooth if averaged < measured else model, tokenizer, arguments.out, card)

    say(f"{parameters:,} parameters, {len(stream):,} training tokens, step {counts.step}")
    # Compiled before the clock starts; the long windows' turn is within their minutes.
    short_count = MICRO_BATCH_TOKENS // SHORT
    loss_on(model, teacher, torch.zeros(short_count, SHORT + 1, dtype=torch.long)).backward()
    written, stopped = time.monotonic(), False
    clock = time.process_time()
    while counts.used < arguments.minutes * 60 and not stopped:
        # Most is learnt from nearby tokens; the last minutes teach the positions beyond 512.
        near = counts.used < (arguments.minutes - long_minutes) * 60
        source, length = (short, SHORT) if near else (long, CONTEXT)
        windows = source.take(max(processes, arguments.batch_tokens // length))
        rate = learning_rate * schedule.rate(counts.step, counts.used / 60)
        for optimizer in optimizers:
            optimizer.zero_grad(set_to_none=True)
            for group in optimizer.param_groups:
                group["lr"] = rate
        loss = add_gradients(model, teacher, windows.tensor_split(processes)[rank], processes)
        spent, clock = time.process_time() - clock, time.process_time()
        values = [loss, spent / processes / arguments.threads, float(stop.asked)]
        loss, spent, asked = summed(values, model) if processes > 1 else values
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
        average.update(model, counts.step)
        stopped = asked > 0
        counts.seen += windows[:, 1:].numel()
        counts.short, counts.long = short.position, long.position
        counts.loss = loss if counts.step == 0 else 0.98 * counts.loss + 0.02 * loss
        counts.step += 1
        counts.used += spent
        if counts.step % 25 == 0:
            pace = counts.seen / counts.used
            say(
                f"step {counts.step} loss {counts.loss:.3f} tokens {counts.seen / 1e6:.2f}M "
                f"{pace:,.0f} tok/s {counts.used / 60:.1f} min"
            )
        if rank == 0 and counts.step % 250 == 0:
            keep(complete=False)
            clock = time.process_time()
        due = stopped or time.monotonic() - written > STATE_SECONDS
        if rank == 0 and arguments.state and due:
            write_state(arguments.state, counts, model, average, optimizers)
            written = time.monotonic()
    if rank == 0:
        keep(complete=not stopped)
    if processes > 1:
        distributed.barrier()
        distributed.destroy_process_group()


if __name__ == "__main__":
    main()
