"""The sampling options of one request."""

from __future__ import annotations

from operator import attrgetter
from typing import Annotated, Any

import msgspec
from msgspec import Meta
from msgspec.structs import asdict, astuple, fields, force_setattr, replace

from penstock.errors import RequestError, shown
from penstock.grammar.spec import GrammarSpec, text_without
from penstock.interface.token_ids import check_token_ids
from penstock.sampling.beam_search import BeamSearch
from penstock.sampling.keywords import VllmKeywords
from penstock.sampling.plain_values import PLAIN_TYPES, plain, plain_bias, plain_tuple
from penstock.sampling.ranges import MAX_STOP_CHARS, MAX_STOPS, RANGES, Range


class SamplingParams(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, metaclass=VllmKeywords
):
    """The sampling options of one request, under the names that vLLM users know.

    The order in which they act on a row of logits is fixed: logit bias, minimum length,
    penalties (repetition, then frequency and presence), grammar, temperature, top-k, top-p, min-p.
    Log-probabilities are of the logits before all of them.
    Invalid values raise :class:`~penstock.errors.RequestError` from :meth:`validate`, which the
    engine calls for every request. Values are converted when they are set: NumPy's to Python's,
    lists to tuples, a single stop, stop token or bad word to a tuple of one, and None to the
    option's default. ``structured_outputs`` (:class:`StructuredOutputsParams`, or a dict of its
    fields) is another form of ``grammar``; unknown options raise RequestError.
    """

    n: Annotated[
        int,
        Meta(
            description="How many sequences are generated from one prompt; they share the "
            "prompt's cache blocks."
        ),
    ] = 1
    temperature: Annotated[
        float, Meta(description="Divides the logits before sampling; 0 means greedy decoding.")
    ] = 1.0
    top_k: Annotated[int, Meta(description="Keeps only the k most likely tokens; 0 keeps all.")] = 0
    top_p: Annotated[
        float,
        Meta(
            description="Keeps the fewest most likely tokens whose probabilities sum to at least "
            "this."
        ),
    ] = 1.0
    min_p: Annotated[
        float,
        Meta(
            description="Keeps only tokens that are at least this fraction as likely as the most "
            "likely one."
        ),
    ] = 0.0
    repetition_penalty: Annotated[
        float,
        Meta(
            description="Divides positive and multiplies negative logits of tokens that are in "
            "the prompt or the output."
        ),
    ] = 1.0
    presence_penalty: Annotated[
        float,
        Meta(description="Is subtracted once from the logits of tokens that are in the output."),
    ] = 0.0
    frequency_penalty: Annotated[
        float,
        Meta(
            description="Is subtracted from a token's logit for each time that it is in the output."
        ),
    ] = 0.0
    repeat_last_n: Annotated[
        int | None,
        Meta(
            description="Makes all three penalties look at this many last tokens of prompt and "
            "output together, as llama.cpp's do; -1 at all of them, and 0 turns penalties off."
        ),
    ] = None
    seed: Annotated[
        int | None,
        Meta(
            description="With the same seed the text is the same, whatever else runs. The "
            "default is one drawn when the request arrives."
        ),
    ] = None
    max_tokens: Annotated[
        int | None,
        Meta(
            description="The most tokens of output. A number that does not fit in the context "
            "after the prompt is refused. The default is what the context leaves."
        ),
    ] = None
    min_tokens: Annotated[
        int,
        Meta(
            description="The output does not end by an end-of-sequence token or a stop before it "
            "has this many tokens."
        ),
    ] = 0
    stop: Annotated[
        tuple[str, ...],
        Meta(description="The text ends before the first of these strings that appears."),
    ] = ()
    stop_token_ids: Annotated[
        tuple[int, ...],
        Meta(description="The output ends with the first of these tokens that is chosen."),
    ] = ()
    ignore_eos: Annotated[
        bool, Meta(description="Goes on after the model's end-of-sequence token.")
    ] = False
    include_stop_str_in_output: Annotated[
        bool, Meta(description="Keeps the stop string that ended the text at its end.")
    ] = False
    logprobs: Annotated[
        int | None,
        Meta(
            description="Reports the log-probabilities of this many most likely tokens, and of "
            "the chosen one, for each token of output."
        ),
    ] = None
    prompt_logprobs: Annotated[
        int | None,
        Meta(description="Reports the same for each token of the prompt except the first."),
    ] = None
    logit_bias: Annotated[
        dict[int, float] | None,
        Meta(
            description="Is added to the logits of these token ids. -inf is not allowed; -100 "
            "bans in practice."
        ),
    ] = None
    skip_special_tokens: Annotated[
        bool, Meta(description="Leaves special tokens out of the text.")
    ] = True
    allowed_token_ids: Annotated[
        tuple[int, ...] | None,
        Meta(description="Chooses among these tokens alone. The default is all tokens."),
    ] = None
    bad_words: Annotated[
        tuple[str, ...],
        Meta(description="Keeps these strings out of the text, however tokens cut them."),
    ] = ()
    truncate_prompt_tokens: Annotated[
        int | None,
        Meta(
            description="Keeps only so many tokens of the prompt, its last; -1 keeps what leaves "
            "room for the output. Without it, a prompt that is too long is refused."
        ),
    ] = None
    beam_search: BeamSearch | None = None
    """Searches for the likeliest outputs instead of sampling: the best ``n`` of ``width`` beams are
    returned, the best one first, when the search is over."""
    grammar: GrammarSpec | None = None
    """The grammar of the whole output. Tokens that end the sequence and have no text (ends of
    sequence, special ``stop_token_ids``) are allowed exactly where the output is complete. Where
    nothing can follow, the output ends, even before ``min_tokens`` and with ``ignore_eos``. Only
    ``max_tokens``, the context, and stops that are text end it before it is complete."""

    def __post_init__(self) -> None:
        values = astuple(self)
        if (
            _USUAL.issuperset(map(type, values))
            and (self.stop, self.stop_token_ids, self.bad_words) == ((), (), ())
            and self.logit_bias is None
            and self.allowed_token_ids is None
            and None not in values[_LEADING]
            and None not in _others(self)
        ):
            return
        allowed = self.allowed_token_ids
        for name, value in (
            ("stop", plain_tuple(self.stop, str)),
            ("stop_token_ids", plain_tuple(self.stop_token_ids, int)),
            ("bad_words", plain_tuple(self.bad_words, str)),
            ("allowed_token_ids", None if allowed is None else plain_tuple(allowed, int)),
            ("logit_bias", plain_bias(self.logit_bias)),
        ):
            if value is not getattr(self, name):
                force_setattr(self, name, value)
        for name in _SCALARS:
            value = getattr(self, name)
            if value is None and name not in _MAY_BE_NONE:
                force_setattr(self, name, _DEFAULTS[name])
            elif type(value) not in PLAIN_TYPES:
                force_setattr(self, name, plain(value))

    def validate(self, vocab_size: int | None = None) -> None:
        """Raise RequestError naming the first option that is out of range."""
        for name, allowed in RANGES.items():
            value = getattr(self, name)
            if name != "logit_bias" and (value is not None or name not in _MAY_BE_NONE):
                allowed.check(name, value)
        for name in _FLAGS:
            if not isinstance(getattr(self, name), bool):
                raise RequestError(
                    f"{name} must be true or false, not {shown(getattr(self, name))}", name
                )
        if self.max_tokens is not None:
            Range(0, self.max_tokens).check("min_tokens", self.min_tokens)
        for name, what in (
            ("stop", "a text or a list of texts"),
            ("bad_words", "a text or a list of texts"),
            ("stop_token_ids", "token ids"),
        ):
            value = getattr(self, name)
            if not isinstance(value, tuple):
                raise RequestError(f"{name} must be {what}, not {shown(value)}", name)
            if len(value) > MAX_STOPS:
                raise RequestError(f"{name} may hold {MAX_STOPS}, not {len(value)}", name)
        for name, each, all_of in (
            ("stop", "a stop string", "stop strings"),
            ("bad_words", "one of bad_words", "all of bad_words"),
        ):
            texts = getattr(self, name)
            if any(not isinstance(s, str) or not s for s in texts):
                raise RequestError(f"{all_of} must be non-empty text", name)
            if any(len(s) > MAX_STOP_CHARS for s in texts):
                raise RequestError(
                    f"{each} may have {MAX_STOP_CHARS} characters, and one is longer", name
                )
        if not isinstance(self.logit_bias, dict | None):
            raise RequestError(
                f"logit_bias must be a dict of token ids and numbers, not {shown(self.logit_bias)}",
                "logit_bias",
            )
        for token, bias in (self.logit_bias or {}).items():
            RANGES["logit_bias"].check("logit_bias", bias)
            Range(0).check("logit_bias", token)
        for token in self.stop_token_ids:
            Range(0).check("stop_token_ids", token)
        if self.truncate_prompt_tokens == 0:
            raise RequestError(
                "truncate_prompt_tokens must be at least 1, or -1 for what leaves room, not 0",
                "truncate_prompt_tokens",
            )
        self._check_allowed(vocab_size)
        if vocab_size is not None:
            check_token_ids(self.logit_bias or (), vocab_size, "logit_bias")
            check_token_ids(self.stop_token_ids, vocab_size, "stop_token_ids")
        if self.beam_search is not None:
            self._check_beams(self.beam_search)
        if self.grammar is not None and not isinstance(self.grammar, GrammarSpec):
            raise RequestError(
                f"grammar must be a GrammarSpec, not {type(self.grammar).__name__}", "grammar"
            )

    def clone(self) -> SamplingParams:
        """A copy that shares nothing with this one."""
        bias = self.logit_bias
        return replace(self, logit_bias=None if bias is None else dict(bias))

    def to_dict(self) -> dict[str, Any]:
        """Every option by name; ``SamplingParams(**options)`` makes the same of them."""
        return asdict(self.clone())

    @property
    def num_sequences(self) -> int:
        """How many sequences run for the request."""
        return self.n if self.beam_search is None else self.beam_search.width

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0

    @property
    def is_constrained(self) -> bool:
        """Whether there is a :attr:`constraint`."""
        return self.grammar is not None or bool(self.bad_words)

    @property
    def constraint(self) -> GrammarSpec | None:
        """The grammar that restricts the output: :attr:`grammar`, or that of texts without
        :attr:`bad_words`; None if neither is set."""
        return text_without(self.bad_words) if self.bad_words else self.grammar

    def _check_beams(self, search: BeamSearch) -> None:
        """Raise RequestError if the search is not valid, or another option changes logits or ends
        texts."""
        if not isinstance(search, BeamSearch):
            raise RequestError(
                f"beam_search must be a BeamSearch, not {shown(search)}", "beam_search"
            )
        search.validate()
        if self.n > search.width:
            raise RequestError(
                f"n ({self.n}) is more than the beams that there are ({search.width}); lower n or "
                "raise the width",
                "n",
            )
        if self.temperature not in (0.0, 1.0):
            raise RequestError(
                "a beam search draws nothing, so temperature has no effect; leave it out",
                "temperature",
            )
        for name in _NO_BEAMS:
            value = getattr(self, name)
            if value not in (_DEFAULTS[name], None) and (name, value) != ("top_k", -1):
                raise RequestError(f"{name} cannot go with a beam search; leave it out", name)

    def _check_allowed(self, vocab_size: int | None) -> None:
        allowed = self.allowed_token_ids
        if self.bad_words and self.grammar is not None:
            raise RequestError(
                "bad_words cannot go with a grammar; say it in the grammar", "bad_words"
            )
        if allowed is None:
            return
        if not isinstance(allowed, tuple):
            raise RequestError(
                f"allowed_token_ids must be token ids, not {shown(allowed)}", "allowed_token_ids"
            )
        if not allowed:
            raise RequestError(
                "allowed_token_ids is empty, so there would be no token to choose; leave it out to "
                "allow all",
                "allowed_token_ids",
            )
        if self.is_constrained:
            raise RequestError(
                "allowed_token_ids cannot go with a grammar or bad_words", "allowed_token_ids"
            )
        for token in allowed:
            Range(0).check("allowed_token_ids", token)
        if vocab_size is not None:
            check_token_ids(allowed, vocab_size, "allowed_token_ids")


_FLAGS = ("ignore_eos", "include_stop_str_in_output", "skip_special_tokens")
_SCALARS = (*(name for name in RANGES if name != "logit_bias"), *_FLAGS)
_MAY_BE_NONE = frozenset(
    {
        *("repeat_last_n", "seed", "max_tokens", "logprobs", "prompt_logprobs"),
        "truncate_prompt_tokens",
    }
)
_DEFAULTS = {field.name: field.default for field in fields(SamplingParams)}
_FIELDS = SamplingParams.__struct_fields__
_LEADING = slice(min(map(_FIELDS.index, _MAY_BE_NONE)))
"""The first fields, none of which may be None: checking a slice is faster than checking each."""
_others = attrgetter(*(n for n in _SCALARS if n not in _MAY_BE_NONE and n not in _FIELDS[_LEADING]))
_NO_BEAMS = (
    *("top_k", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty"),
    "repeat_last_n",
    *("stop", "logit_bias", "allowed_token_ids", "bad_words", "grammar"),
)
"""Options that would change which continuations are the likeliest, or end their texts."""
_USUAL = PLAIN_TYPES | {tuple, GrammarSpec, BeamSearch}
"""Types of values that ``__post_init__`` leaves as they are."""
