"""``lm-eval``: log-likelihoods and texts over HTTP, and the same computed by ``LLM``."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from client import Client, Figures, Job, Outcome

from penstock import LLM, SamplingParams

TASKS = Path(__file__).parent / "tasks"
LIKELIHOOD, TEXT = "penstock_continue", "penstock_complete"


class LmEval(Client):
    name = "lm-eval"
    requirements = ("lm_eval[api]", "transformers", "torch==2.13.0")
    reported = ("lm_eval", "torch", "transformers", "datasets")
    why_not_more = (
        "its own tasks take their data from the Hugging Face hub, which cannot be reached here: "
        "the tasks are ours, over files beside this script"
    )

    def run(self, job: Job) -> Outcome:
        tasks = job.folder / "tasks"
        shutil.copytree(TASKS, tasks)
        for file in tasks.glob("*.yaml"):
            file.write_text(file.read_text().replace("DATA", str(tasks)))
        tokenizer = f"tokenizer={job.tokenizer},tokenizer_backend=huggingface"
        common = f"model={job.model},num_concurrent=4,max_retries=1"
        self._evaluate(
            job,
            "completions",
            f"{common},{tokenizer},base_url={job.server.url}/v1/completions",
            "local-completions",
            f"{LIKELIHOOD},{TEXT}",
        )
        self._evaluate(
            job,
            "chat",
            f"{common},base_url={job.server.url}/v1/chat/completions",
            "local-chat-completions",
            TEXT,
            "--apply_chat_template",
        )
        return _outcome(job)

    def _evaluate(
        self, job: Job, name: str, model_args: str, kind: str, tasks: str, *more: str
    ) -> None:
        job.call(
            "lm_eval",
            *("--model", kind, "--model_args", model_args, "--tasks", tasks, *more),
            *("--include_path", str(job.folder / "tasks"), "--seed", "0", "--log_samples"),
            *("--output_path", str(job.folder / name)),
        )


def _outcome(job: Job) -> Outcome:
    """Compares what lm-eval got with what ``LLM`` computes in this process."""
    rows: list[Figures] = []
    agrees = True
    with LLM(threads=2) as llm:
        for what, name, task in (
            ("completions: log-likelihood, greedy", "completions", LIKELIHOOD),
            ("completions: generated text", "completions", TEXT),
            ("chat: generated text", "chat", TEXT),
        ):
            requests, equal = compared(llm, job.folder / name, task, as_chat=name == "chat")
            rows.append({"what": what, "requests": requests, "equal": equal})
            agrees &= equal == requests > 0
    return Outcome(rows, agrees)


def compared(llm: LLM, folder: Path, task: str, as_chat: bool = False) -> tuple[int, int]:
    """How many requests lm-eval's samples in ``folder`` hold, and how many ``llm`` agrees with."""
    requests = equal = 0
    for sample in _samples(folder, task):
        for returned, arguments in _answers(sample):
            if task == LIKELIHOOD:
                computed: Any = _likelihood(llm, *arguments)
            else:
                computed = _text(llm, arguments[0], as_chat)
            requests += 1
            equal += returned == computed
    return requests, equal


def _samples(folder: Path, task: str) -> Iterator[dict[str, Any]]:
    (file,) = folder.rglob(f"samples_{task}_*.jsonl")
    for line in file.read_text(encoding="utf-8").splitlines():
        yield json.loads(line)


def _answers(sample: dict[str, Any]) -> Iterator[tuple[Any, list[Any]]]:
    """(what the server said, the arguments of the request) of each request of a sample."""
    for given, returned in zip(sample["arguments"].values(), sample["resps"], strict=True):
        value = returned[0]
        if isinstance(value, list):
            value = (float(value[0]), value[1] in (True, "True"))
        yield value, list(given.values())


def _likelihood(llm: LLM, context: str, continuation: str) -> tuple[float, bool]:
    """The log-probability of ``continuation`` and whether greedy search would say it.

    lm-eval moves spaces at the end of a context to the continuation, and sums in this order.
    """
    bare = context.rstrip()
    context, continuation = bare, context[len(bare) :] + continuation
    tokens = llm.tokenizer.encode(context + continuation, False)
    start = len(llm.tokenizer.encode(context, False))
    params = SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=1)
    (output,) = llm.generate({"prompt_token_ids": tokens}, params)
    positions = [at for at in (output.prompt_logprobs or [])[start:] if at is not None]
    own = [at[token] for token, at in zip(tokens[start:], positions, strict=True)]
    return sum(entry.logprob for entry in own), all(entry.rank == 1 for entry in own)


def _text(llm: LLM, prompt: Any, as_chat: bool) -> str:
    params = SamplingParams(max_tokens=32, temperature=0.0, stop=("\n\n",))
    if not as_chat:
        tokens = llm.tokenizer.encode(prompt, False)
        (output,) = llm.generate({"prompt_token_ids": tokens}, params)
    else:
        messages = json.loads(prompt[0]) if isinstance(prompt, list) else json.loads(prompt)
        messages = [{"role": m["role"], "content": m["content"]} for m in messages]
        (output,) = llm.chat(messages, params)
    text: str = output.outputs[0].text
    return text
