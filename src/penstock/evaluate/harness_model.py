"""A model as lm-evaluation-harness asks one: how likely texts are behind others, and what it says.

That package looks for nothing but methods of these names, and attributes of its instances, so it is
not imported here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Protocol, cast

from penstock.api import LLM, Prompt
from penstock.errors import ConfigError, ModelError
from penstock.evaluate.multiple_choice import window_of
from penstock.evaluate.text_model import bos_before
from penstock.evaluate.windows import Window
from penstock.frontend.outputs import RequestOutput
from penstock.sampling.params import SamplingParams

_TOGETHER: Final = 64
"""Prompts that the engine is given at a time, so that there is something to tell of."""
_DEFAULT_TOKENS: Final = 256
"""Tokens of a text where a task does not say how many, as the package has it."""
_SAMPLED: Final = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
"""What a task may say of sampling, by the names that it has here as well."""

OnRequest = Callable[[int, int], None]
"""Told how many of how many texts are done."""


class Asked(Protocol):
    """One of the package's requests."""

    @property
    def args(self) -> tuple[Any, ...]:
        """A context and what follows it (a likelihood), a whole text (its likelihood), or a context
        and the options of generation (a text to be written)."""
        ...


class HarnessModel:
    """What ``lm_eval.evaluate`` asks, answered by an engine.

    A text has the BOS before it that the model expects, and is cut from the left where it is longer
    than a sequence may be.
    """

    rank: Final = 0
    world_size: Final = 1

    def __init__(self, llm: LLM, tell: OnRequest = lambda done, count: None) -> None:
        self._llm, self._tell = llm, tell
        bos = bos_before(llm.tokenizer)
        self._bos = [] if bos is None else [bos]
        self._most: int = llm.config.max_model_len - 1
        """Tokens of a prompt, which a token follows."""

    def loglikelihood(self, requests: Sequence[Asked]) -> list[tuple[float, bool]]:
        """The sum of the log-probabilities of each continuation's tokens behind its context, and
        whether it is what greedy search would write."""
        windows: list[Window] = []
        for request in requests:
            context, continuation = request.args
            windows.append(self._pair(context, continuation))
        return self._judged(windows)

    def loglikelihood_rolling(self, requests: Sequence[Asked]) -> list[float]:
        """The sum of the log-probabilities of all tokens of each text, in windows as long as
        sequences may be, none of which counts a token twice, the last with the tokens before it."""
        windows: list[Window] = []
        counts: list[int] = []
        for request in requests:
            own = self._rolling(request.args[0])
            windows += own
            counts.append(len(own))
        found = iter(self._judged(windows))
        return [sum(next(found)[0] for _ in range(count)) for count in counts]

    def generate_until(self, requests: Sequence[Asked]) -> list[str]:
        """What follows each context, up to the first of the texts that its options name."""
        prompts: list[list[int]] = []
        params: list[SamplingParams] = []
        for request in requests:
            context, options = request.args
            own = sampling_of(options)
            most = self._most + 1 - cast(int, own.max_tokens)
            if most < 1:
                raise ConfigError(
                    f"a task asks for texts of {own.max_tokens} tokens, and a sequence of this "
                    f"model has {self._most + 1}; leave it out"
                )
            tokens = self._llm.tokenizer.encode(context, False, parse_special=False)
            prompts.append([*self._bos, *tokens][-most:])
            params.append(own)
        return [output.outputs[0].text for output in self._run(prompts, params)]

    def _pair(self, context: str, continuation: str) -> Window:
        """Both are cut into tokens together; behind an empty context, and without a BOS, the first
        token is what an end of text is followed by."""
        if not context and not self._bos:
            tokens = self._llm.tokenizer.encode(continuation, False, parse_special=False)
            return self._cut(Window((self._start(), *tokens), 1))
        return self._cut(window_of(self._llm.tokenizer, context, continuation))

    def _rolling(self, text: str) -> list[Window]:
        tokens = self._llm.tokenizer.encode(text, False, parse_special=False)
        whole = [self._start(), *tokens]
        step = self._most - 1
        windows: list[Window] = []
        for start in range(1, len(whole), step):
            end = min(start + step, len(whole))
            first = max(0, end - self._most)
            windows.append(Window(tuple(whole[first:end]), start - first))
        return windows

    def _start(self) -> int:
        """The token before a text that has nothing before it."""
        tokenizer = self._llm.tokenizer
        for token in (*self._bos, tokenizer.bos_token_id, tokenizer.eos_token_id):
            if token is not None:
                return token
        raise ConfigError("this model has neither a BOS nor an EOS token before which texts begin")

    def _cut(self, window: Window) -> Window:
        less = len(window.token_ids) - self._most
        if less <= 0:
            return window
        return Window(window.token_ids[less:], max(1, window.first - less))

    def _judged(self, windows: Sequence[Window]) -> list[tuple[float, bool]]:
        params = SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=0)
        outputs = self._run([list(each.token_ids) for each in windows], [params] * len(windows))
        return [_judged(*each) for each in zip(windows, outputs, strict=True)]

    def _run(
        self, prompts: Sequence[list[int]], params: Sequence[SamplingParams]
    ) -> Iterable[RequestOutput]:
        found: list[RequestOutput] = []
        for first in range(0, len(prompts), _TOGETHER):
            some = slice(first, first + _TOGETHER)
            asked: list[Prompt] = [{"prompt_token_ids": each} for each in prompts[some]]
            found += self._llm.generate(asked, list(params[some]))
            self._tell(len(found), len(prompts))
        failed = next((each.error for each in found if each.error is not None), None)
        if failed is not None:
            raise ModelError(failed)
        return found


def _judged(window: Window, output: RequestOutput) -> tuple[float, bool]:
    positions = (output.prompt_logprobs or [])[window.first :]
    own = [
        at[token]
        for token, at in zip(window.token_ids[window.first :], positions, strict=True)
        if at is not None
    ]
    return sum(each.logprob for each in own), all(each.rank == 1 for each in own)


def sampling_of(options: Mapping[str, object]) -> SamplingParams:
    """What a task says of the texts that are to be written, greedily unless it says otherwise.
    Raises ConfigError for what is not known here."""
    given = dict(options)
    until = given.pop("until", None) or []
    stop = [until] if isinstance(until, str) else list(cast("Iterable[str]", until))
    length = given.pop("max_gen_toks", None) or given.pop("max_tokens", None) or _DEFAULT_TOKENS
    samples = bool(given.pop("do_sample", False)) or bool(given.get("temperature"))
    own = {name: given.pop(name) for name in _SAMPLED if name in given}
    if given.get("num_beams") == 1:
        del given["num_beams"]
    if given:
        raise ConfigError(
            f"a task asks for generation with {', '.join(given)}, which is not known here; leave "
            "the task out"
        )
    values: dict[str, Any] = {name: value for name, value in own.items() if value is not None}
    if not samples:
        values["temperature"] = 0.0
    return SamplingParams(
        max_tokens=int(cast(int, length)),
        stop=tuple(each for each in stop if each),
        seed=0,
        **values,
    )
