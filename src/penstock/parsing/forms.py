"""How one call is written: what there is to say of it is data, and each form has a reader
(:mod:`penstock.parsing.calls`) and rules of a grammar (:mod:`penstock.parsing.grammars`)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class JsonForm:
    """``{"name": "NAME", "arguments": {...}}``"""

    name_key: str = "name"
    arguments_key: str = "arguments"
    """That of forced calls; both usual keys are read."""
    number_key: str = ""
    """Key before the name, of the call's number as a text; other keys are read over."""


@dataclass(frozen=True)
class KeyForm:
    """``{"NAME": {...}}``"""


@dataclass(frozen=True)
class NamedForm:
    """``NAME{...}``, with marks and text around the parts. Space between them may be missing."""

    before_name: tuple[str, ...] = ()
    after_name: tuple[str, ...] = ()
    after_arguments: str = ""
    numbered: bool = False
    """Whether the name has its number in the conversation, as in ``NAME:3``."""
    optional_after: tuple[str, ...] = ()
    """Patterns of what may be between the name and ``after_name``, which itself may be missing
    then."""


@dataclass(frozen=True)
class PythonForm:
    """``NAME(city="Brno")``, in a list."""


@dataclass(frozen=True)
class TagForm:
    """Arguments are tagged one by one, each in a text of its own. The fields are what stands around
    the parts, in the order in which it is written. Line breaks are written and may be missing where
    calls are read."""

    after_name: str
    before_key: str
    after_key: str
    after_value: str
    end: str
    before_name: str = ""
    before_value: str = ""
    before: tuple[str, ...] = ()
    """Marks before ``before_name``."""
    kinds: tuple[str, str] | None = None
    """What comes behind ``after_key`` for a text, and for any other value, where that is said."""
    token: str = ""
    """What is one token in each of the tags."""

    def behind_key(self, text: bool) -> str:
        """What is between a key and its value, which is a text or not."""
        kind = "" if self.kinds is None else self.kinds[0 if text else 1]
        return f"{self.after_key}{kind}"


@dataclass(frozen=True)
class ValueForm:
    """``call:NAME{city:<q>Brno<q>,days:[1,2]}``: keys are bare, texts between two of ``quote``, and
    all else is JSON's."""

    quote: str
    before_name: str = "call:"


@dataclass(frozen=True)
class ChannelForm:
    """A whole answer in messages, each of which has a header: its author, whom it is to, and the
    channel that it is for. The prompt has ended with the author of the first."""

    start: str
    channel: str
    message: str
    constrain: str
    end: str
    """Mark that ends a message; other messages may follow."""
    call: str
    """Mark that ends a call."""
    finish: str
    """Mark that ends the last message."""
    author: str
    reasoning: str
    calls: str
    answer: str
    """The names of the channels. That of calls without a receiver is for the user, too."""
    namespace: str
    """What is before the name of a function, where calls are to it."""


CallForm = JsonForm | KeyForm | NamedForm | PythonForm | TagForm | ValueForm | ChannelForm

FUNCTION_TAGS = TagForm(
    before_name="<function=",
    after_name=">\n",
    before_key="<parameter=",
    after_key=">\n",
    after_value="\n</parameter>\n",
    end="</function>",
)
"""Those of Qwen3-Coder, Step 3.5 and Nemotron 3."""

SEED_TAGS = TagForm(
    before_name="<function=",
    after_name=">\n",
    before_key="<parameter=",
    after_key=">",
    after_value="</parameter>\n",
    end="</function>",
)
"""Seed-OSS's."""

ARGUMENT_TAGS = TagForm(
    after_name="\n",
    before_key="<arg_key>",
    after_key="</arg_key>\n",
    before_value="<arg_value>",
    after_value="</arg_value>\n",
    end="</tool_call>",
)
"""GLM 4.5's."""

INVOKE_TAGS = TagForm(
    after_name='">\n',
    before_key='<parameter name="',
    after_key='">',
    after_value="</parameter>\n",
    end="</invoke>",
)
"""MiniMax M2's."""

STEP_TAGS = TagForm(
    before=("function", "<｜tool_sep｜>"),
    before_name='<steptml:invoke name="',
    after_name='">',
    before_key='<steptml:parameter name="',
    after_key='">',
    after_value="</steptml:parameter>",
    end="</steptml:invoke>",
)
"""Step 3's."""

DSML_TAGS = TagForm(
    after_name='">\n',
    before_key='<｜DSML｜parameter name="',
    after_key='" string="',
    kinds=('true">', 'false">'),
    after_value="</｜DSML｜parameter>\n",
    end="</｜DSML｜invoke>",
    token="｜DSML｜",
)
"""DeepSeek V3.2's and V4's."""

HARMONY = ChannelForm(
    start="<|start|>",
    channel="<|channel|>",
    message="<|message|>",
    constrain="<|constrain|>",
    end="<|end|>",
    call="<|call|>",
    finish="<|return|>",
    author="assistant",
    reasoning="analysis",
    calls="commentary",
    answer="final",
    namespace="functions.",
)
"""gpt-oss's."""
