"""What ``/set`` can set: a sampling parameter, or a variable of the model's chat template."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from difflib import get_close_matches

from penstock.chat.conversation import Conversation
from penstock.chat.parameters import ChatParameters
from penstock.errors import RequestError
from penstock.json_text import encoded

PARAMETERS = ChatParameters.__struct_fields__
_VARIABLE = re.compile(r"[A-Za-z_]\w*", re.ASCII)


def with_setting(
    conversation: Conversation, name: str, text: str, chat_template_kwargs: Sequence[str] | None
) -> Conversation:
    """``conversation`` with one setting as a person wrote it; ``default`` unsets it.

    ``chat_template_kwargs`` are the variables that the template reads; where they are None, any
    name that is not nearly a parameter's is one. Raises RequestError for a name that is neither,
    with those that are near, and for a value that is not allowed.
    """
    parameter = name.replace("-", "_")
    if parameter in PARAMETERS:
        changed = conversation.parameters.with_text(parameter, text)
        return conversation.with_parameters(changed)
    variable = name if name in (chat_template_kwargs or ()) else parameter
    set_before = variable in conversation.chat_template_kwargs
    if not _is_variable(variable, chat_template_kwargs) and not (set_before and text == "default"):
        raise RequestError(_unknown(name, chat_template_kwargs), name)
    return conversation.with_chat_template_kwarg(variable, text)


def shown_variables(conversation: Conversation, chat_template_kwargs: Sequence[str] | None) -> str:
    """The template's variables, as one line says them."""
    given = conversation.chat_template_kwargs
    unread = unread_options(conversation, chat_template_kwargs)
    said = [f"{name} {encoded(value)}" for name, value in given.items()]
    if chat_template_kwargs is None:
        said.append("the server does not say what else it reads")
    else:
        said += [f"it does not read {', '.join(unread)}"] if unread else []
        unset = [name for name in chat_template_kwargs if name not in given]
        said += [f"unset: {', '.join(unset)}"] if unset else []
    return "; ".join(said) or "reads no variables of its own"


def unread_options(
    conversation: Conversation, chat_template_kwargs: Sequence[str] | None
) -> list[str]:
    """The variables that are set, and that the template is known not to read."""
    if chat_template_kwargs is None:
        return []
    return [name for name in conversation.chat_template_kwargs if name not in chat_template_kwargs]


def _is_variable(name: str, chat_template_kwargs: Sequence[str] | None) -> bool:
    if chat_template_kwargs is not None:
        return name in chat_template_kwargs
    return _VARIABLE.fullmatch(name) is not None and not _near(name, PARAMETERS)


def _unknown(name: str, chat_template_kwargs: Sequence[str] | None) -> str:
    near = _near(name, [*PARAMETERS, *(chat_template_kwargs or ())])
    hint = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(PARAMETERS)}"
    if chat_template_kwargs is None:
        return f"there is no parameter {name!r}; {hint}"
    if not near and chat_template_kwargs:
        hint += f", and of the template {', '.join(chat_template_kwargs)}"
    return f"neither a parameter nor a variable of the chat template is named {name!r}; {hint}"


def _near(name: str, names: Iterable[str]) -> list[str]:
    return get_close_matches(name.replace("-", "_"), list(names), n=2, cutoff=0.7)
