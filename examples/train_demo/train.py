"""Train the demo models that ship inside Penstock: a small code model and a smaller draft.

    python examples/train_demo/train.py --size demo  --minutes 90 --out build/demo
    python examples/train_demo/train.py --size draft --minutes 30 --out build/draft \\
        --tokenizer build/demo/tokenizer.json

Llama-style decoders (GQA, RoPE, SwiGLU, RMSNorm, tied embeddings) on the source of the Python
standard library. Matrices are updated by Muon, everything else by AdamW; the learning rate
follows warm-up, a plateau and a linear decay, all against the *clock*, so the run ends when the
minutes do, whatever the machine. The result is an ordinary Hugging Face checkpoint in bf16 with
a model card that states the held-out bits per byte.

Needs the extra ``train``: ``pip install '.[train]'``. It can be interrupted: the latest checkpoint
is kept.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import transformers
from tokenizers import Tokenizer
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from card import write as write_card
from corpus import Document, read_documents, split
from vocabulary import CHAT_TOKENS, END_OF_TEXT, train_tokenizer

VOCAB_SIZE = 4096
CONTEXT = 2048

# Messages become the comments and docstrings that the model knows from its corpus.
CHAT_TEMPLATE = (
    "{{- bos_token }}"
    "{%- for message in messages %}"
    "{%- if message['role'] == 'assistant' %}{{ message['content'] + '\\n\\n' }}"
    "{%- else %}{{ '# ' + message['content'] | replace('\\n', '\\n# ') + '\\n' }}"
    "{%- endif %}"
    "{%- endfor %}"
)


@dataclass(frozen=True)
class Size:
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    ffn: int
    learning_rate: float  # AdamW's; Muon's updates are scaled to the same RMS


SIZES = {
    "demo": Size(hidden=256, layers=6, heads=4, kv_heads=2, ffn=704, learning_rate=3e-3),
    "draft": Size(hidden=96, layers=2, heads=2, kv_heads=1, ffn=256, learning_rate=6e-3),
}


def model_config(size: Size) -> LlamaConfig:
    return LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=size.hidden,
        intermediate_size=size.ffn,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        num_key_value_heads=size.kv_heads,
        head_dim=size.hidden // size.heads,
        max_position_embeddings=CONTEXT,
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=0,
        dtype="bfloat16",
    )


def token_stream(tokenizer: Tokenizer, documents: list[Document], seed: int) -> np.ndarray:
    """All documents in one shuffled int32 stream, each after its ``<|endoftext|>``."""
    order = np.random.default_rng(seed).permutation(len(documents))
    encoded = tokenizer.encode_batch([documents[i].text for i in order])
    return np.concatenate([np.asarray(e.ids, dtype=np.int32) for e in encoded])


def batches(stream: np.ndarray, length: int, count: int, generator: np.random.Generator):
    """Endless ``[count, length + 1]`` int64 windows, shuffled anew with each pass."""
    while True:
        shift = int(generator.integers(length))
        starts = np.arange(shift, len(stream) - length - 1, length)
        generator.shuffle(starts)
        for i in range(0, len(starts) - count + 1, count):
            windows = [stream[s : s + length + 1] for s in starts[i : i + count]]
            yield torch.from_numpy(np.stack(windows).astype(np.int64))


def loss_of(model: nn.Module, windows: torch.Tensor, reduction: str = "mean") -> torch.Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = model(input_ids=windows[:, :-1]).logits
    targets = windows[:, 1:].reshape(-1)
    return nn.functional.cross_entropy(
        logits.float().view(-1, VOCAB_SIZE), targets, reduction=reduction
    )


@torch.no_grad()
def bits_per_byte(
    model: nn.Module, tokenizer: Tokenizer, held_out: list[Document], most_bytes: int | None = None
) -> float:
    """Held-out code length in bits per UTF-8 byte, each document cut into windows of 1,024."""
    model.eval()
    nats, size = 0.0, 0
    for document in held_out:
        ids = torch.tensor(tokenizer.encode(document.text).ids)
        for start in range(0, len(ids) - 1, 1024):
            window = ids[start : start + 1025][None]
            nats += float(loss_of(model, window, "sum"))
        size += len(document.text.encode())
        if most_bytes and size > most_bytes:
            break
    model.train()
    return nats / math.log(2) / size


def make_optimizers(model: nn.Module, size: Size) -> list[torch.optim.Optimizer]:
    """Muon for the layers' matrices, AdamW for the embedding (tied to the head) and the norms."""
    matrices = [p for n, p in model.named_parameters() if p.ndim == 2 and "embed" not in n]
    others = [p for n, p in model.named_parameters() if p.ndim != 2 or "embed" in n]
    return [
        torch.optim.Muon(
            matrices, lr=size.learning_rate, weight_decay=0.05, adjust_lr_fn="match_rms_adamw"
        ),
        torch.optim.AdamW(others, lr=size.learning_rate, betas=(0.9, 0.95), weight_decay=0.0),
    ]


def rate_at(progress: float) -> float:
    """Learning-rate factor at ``progress`` in [0, 1] of the time: 2 % up, flat, last 40 % down."""
    return min(1.0, progress / 0.02 + 0.01, max(0.0, (1.0 - progress) / 0.4) + 0.002)


def save(model: LlamaForCausalLM, tokenizer: Tokenizer, out: Path, card: dict[str, object]) -> None:
    """Write a bf16 Hugging Face checkpoint with its tokenizer, template and model card."""
    out.mkdir(parents=True, exist_ok=True)
    state = {name: t.to(torch.bfloat16).clone() for name, t in model.state_dict().items()}
    clone = LlamaForCausalLM(model.config).to(torch.bfloat16)
    clone.load_state_dict(state)
    clone.save_pretrained(out)
    tokenizer.save(str(out / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": END_OF_TEXT,
        "eos_token": END_OF_TEXT,
        "additional_special_tokens": list(CHAT_TOKENS),
        "model_max_length": CONTEXT,
        "chat_template": CHAT_TEMPLATE,
    }
    (out / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n")
    (out / "training.json").write_text(json.dumps(card, indent=2) + "\n")
    write_card(out)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--size", choices=SIZES, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=90.0, help="time spent training")
    parser.add_argument("--tokenizer", type=Path, help="reuse this tokenizer.json")
    parser.add_argument("--batch-tokens", type=int, default=8192)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()

    torch.set_num_threads(arguments.threads)
    torch.manual_seed(arguments.seed)
    training, held_out = split(read_documents())
    if arguments.tokenizer:
        tokenizer = Tokenizer.from_file(str(arguments.tokenizer))
    else:
        tokenizer = train_tokenizer((d.text for d in training), VOCAB_SIZE)
    stream = token_stream(tokenizer, training, arguments.seed)
    size = SIZES[arguments.size]
    model = LlamaForCausalLM(model_config(size)).float()
    parameters = sum(p.numel() for p in model.parameters())
    print(f"{parameters:,} parameters, {len(stream):,} training tokens", flush=True)

    forward = torch.compile(model)
    optimizers = make_optimizers(model, size)
    generator = np.random.default_rng(arguments.seed)
    short, long = CONTEXT // 4, CONTEXT
    per_step = arguments.batch_tokens
    sources = {n: batches(stream, n, max(1, per_step // n), generator) for n in (short, long)}

    card: dict[str, object] = {}
    budget = arguments.minutes * 60
    used, step, seen, smooth = 0.0, 0, 0, 0.0
    while used < budget:
        began = time.process_time()
        progress = used / budget
        # Most is learnt from nearby tokens; the last fifth teaches the positions beyond 512.
        windows = next(sources[short if progress < 0.8 else long])
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = size.learning_rate * rate_at(progress)
        loss = loss_of(forward, windows)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        step += 1
        seen += windows[:, 1:].numel()
        smooth = loss.item() if step == 1 else 0.98 * smooth + 0.02 * loss.item()
        # Processor time, so that a paused or shared machine shortens nothing.
        used += (time.process_time() - began) / arguments.threads
        if step % 25 == 0:
            print(
                f"step {step} loss {smooth:.3f} tokens {seen / 1e6:.2f}M "
                f"{seen / used:,.0f} tok/s {used / 60:.1f} min",
                flush=True,
            )
        if step % 250 == 0 or used >= budget:
            final = used >= budget
            bpb = bits_per_byte(model, tokenizer, held_out, None if final else 100_000)
            print(f"held-out {bpb:.4f} bits per byte", flush=True)
            card = {
                "parameters": parameters,
                "training_tokens_seen": seen,
                "corpus_tokens": len(stream),
                "passes": round(seen / len(stream), 2),
                "training_documents": len(training),
                "held_out_documents": len(held_out),
                "held_out_bits_per_byte": round(bpb, 4),
                "complete": final,
                "torch": torch.__version__,
                "transformers": transformers.__version__,
            }
            save(model, tokenizer, arguments.out, card)


if __name__ == "__main__":
    main()
