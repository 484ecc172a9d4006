"""Load generators: their figures beside what the server's /metrics tell of the same requests."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from client import Client, ClientError, Figures, Job, Outcome

PROMPT_TOKENS, OUTPUT_TOKENS = 128, 48
LEVELS, QUICK_LEVELS = (1, 4, 16), (1, 4)
REQUESTS_PER_STREAM = 8
SLACK_MS = 5.0
"""A client measures from its own side of the connection and of its event loop."""


class AiPerf(Client):
    name = "aiperf"
    requirements = ("aiperf",)
    reported = ("aiperf", "transformers")
    why_not_more = "its public datasets are on the Hugging Face hub; prompts are synthetic"

    def run(self, job: Job) -> Outcome:
        return side_by_side(job, self.level)

    def level(self, job: Job, streams: int, requests: int, folder: Path) -> Figures:
        job.call(
            "aiperf",
            *("profile", "--model", job.model, "--tokenizer", str(job.tokenizer)),
            *("--url", job.server.url, "--endpoint-type", "completions", "--streaming"),
            *("--concurrency", str(streams), "--request-count", str(requests)),
            *("--prompt-input-tokens-mean", str(PROMPT_TOKENS)),
            *("--prompt-input-tokens-stddev", "0"),
            *(
                "--prompt-output-tokens-mean",
                str(OUTPUT_TOKENS),
                "--prompt-output-tokens-stddev",
                "0",
            ),
            *("--extra-inputs", "ignore_eos:true", "--random-seed", "1", "--ui", "none"),
            "--use-server-token-count",
            *("--artifact-dir", str(folder)),
            offline=False,  # told to be, it takes no folder for a tokenizer
        )
        found = json.loads(_only(folder, "profile_export_aiperf.json").read_text())
        return {
            "requests": int(found["request_count"]["avg"]),
            "output tokens/s": found["output_token_throughput"]["avg"],
            "output tokens": int(found["total_osl"]["avg"]) if "total_osl" in found else 0,
            "TTFT ms": found["time_to_first_token"]["avg"],
            "ITL ms": found["inter_token_latency"]["avg"],
            "e2e ms": found["request_latency"]["avg"],
        }


class GuideLlm(Client):
    name = "guidellm"
    requirements = ("guidellm", "torch==2.13.0")
    reported = ("guidellm", "transformers")
    why_not_more = "datasets of the Hugging Face hub cannot be reached; prompts are synthetic"

    def run(self, job: Job) -> Outcome:
        return side_by_side(job, self.level)

    def level(self, job: Job, streams: int, requests: int, folder: Path) -> Figures:
        report = folder / "benchmarks.json"
        job.call(
            "guidellm",
            *(
                "run",
                "--backend",
                f"kind=openai_http,target={job.server.url},model={job.model}"
                ",request_format=/v1/completions",
            ),
            *("--tokenizer", f"kind=hf_auto,model={job.tokenizer}"),
            *("--profile", f"kind=concurrent,streams={streams}"),
            *("--constraint", f"kind=max_requests,count={requests}"),
            *(
                "--data",
                f"kind=synthetic_text,prompt_tokens={PROMPT_TOKENS},output_tokens={OUTPUT_TOKENS}",
            ),
            *("--seed", "kind=static,value=1", "--output", f"kind=json,path={report}"),
            "--disable-console",
        )
        (found,) = json.loads(report.read_text())["benchmarks"]
        metrics = found["metrics"]

        def mean(name: str) -> float:
            value: float = metrics[name]["successful"]["mean"]
            return value

        done = int(metrics["request_totals"]["successful"])
        return {
            "requests": done,
            "output tokens/s": mean("output_tokens_per_second"),
            "output tokens": round(mean("output_token_count") * done),
            "TTFT ms": mean("time_to_first_token_ms"),
            "ITL ms": mean("inter_token_latency_ms"),
            "e2e ms": mean("request_latency") * 1000,
        }


def side_by_side(job: Job, level: Callable[[Job, int, int, Path], Figures]) -> Outcome:
    """Run ``level`` with more and more streams; each row has both sides."""
    rows: list[Figures] = []
    agrees = True
    for streams in QUICK_LEVELS if job.quick else LEVELS:
        folder = job.folder / f"streams-{streams}"
        folder.mkdir()
        before = job.server.metrics()
        measured = level(job, streams, streams * REQUESTS_PER_STREAM, folder)
        row = {"streams": streams, **measured, **_ours(before, job.server.metrics())}
        agrees &= _agree(row)
        rows.append(row)
    return Outcome(rows, agrees)


def _ours(before: Mapping[str, float], after: Mapping[str, float]) -> Figures:
    def since(name: str) -> float:
        return after[name] - before[name]

    def mean_ms(name: str) -> float:
        return 1000 * since(f"{name}_sum") / max(1.0, since(f"{name}_count"))

    return {
        "our requests": int(since("request_success_total")),
        "our output tokens": int(since("generation_tokens_total")),
        "our TTFT ms": mean_ms("time_to_first_token_seconds"),
        "our ITL ms": mean_ms("inter_token_latency_seconds"),
        "our e2e ms": mean_ms("e2e_request_latency_seconds"),
    }


def _agree(row: Mapping[str, Any]) -> bool:
    """Whether both counted alike, and the client saw no less time than the server."""
    return bool(
        row["our requests"] == row["requests"] > 0
        and row["our output tokens"] == row["output tokens"]
        and row["our e2e ms"] <= row["e2e ms"] + SLACK_MS
    )


def _only(folder: Path, name: str) -> Path:
    found = list(folder.rglob(name))
    if len(found) != 1:
        raise ClientError(f"it wrote {len(found)} files named {name}")
    return found[0]
