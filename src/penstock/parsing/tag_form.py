"""Calls whose arguments are tagged one by one, each in a text of its own."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TagForm:
    """What stands around the parts of a call, in the order in which it is written. Line breaks are
    written and may be missing where calls are read."""

    after_name: str
    before_key: str
    after_key: str
    after_value: str
    end: str
    before_name: str = ""
    before_value: str = ""


FUNCTION_TAGS = TagForm(
    before_name="\n<function=",
    after_name=">\n",
    before_key="<parameter=",
    after_key=">\n",
    after_value="\n</parameter>\n",
    end="</function>",
)
"""Qwen3-Coder's."""

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
