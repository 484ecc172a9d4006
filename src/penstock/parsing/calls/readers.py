"""The reader of each form of calls."""

from __future__ import annotations

from penstock.parsing.calls.call_reader import CallReader, Tools
from penstock.parsing.calls.json_call import JsonCall
from penstock.parsing.calls.named_call import NamedCall
from penstock.parsing.calls.python_call import PythonCall
from penstock.parsing.calls.tagged_call import TaggedCall
from penstock.parsing.calls.value_call import ValueCall
from penstock.parsing.forms import (
    CallForm,
    JsonForm,
    KeyForm,
    NamedForm,
    PythonForm,
    TagForm,
    ValueForm,
)
from penstock.parsing.style import ToolStyle


def reader_of(style: ToolStyle, first: str, in_list: bool, tools: Tools) -> CallReader | None:
    """What reads a call that begins with the character ``first``; None if none can.

    Calls as JSON are read in all styles: models that have seen much of it fall back to it.
    """
    if first == "{":
        return JsonCall(style.json_form, tools)
    form: CallForm = style.named or style.form
    match form:
        case JsonForm() | KeyForm():
            return None
        case PythonForm():
            return PythonCall(tools) if in_list else None
        case NamedForm():
            return None if in_list else NamedCall(form, tools)
        case TagForm():
            return TaggedCall(form, tools)
        case ValueForm():
            return ValueCall(form, tools)
        case _:
            return None
