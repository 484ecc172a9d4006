"""What a request says its output must be, in the notation that llguidance reads."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from penstock.errors import RequestError
from penstock.grammar.schema_keywords import misspelt_keyword
from penstock.grammar.spec import GrammarSpec, Kind

MAX_CHARS = 131072
"""Maximum number of characters in the text of a grammar."""
MAX_DEPTH = 64
"""Maximum nesting of objects and arrays in a JSON schema; llguidance recurses."""
MAX_CHOICES = 4096
_MAX_REASON = 400  # characters of llguidance's message

# Without this llguidance tokenizes what a grammar forces itself and allows that one tokenization
# alone, asking Python for it. The mask would not be all tokens that can be continued, and took
# four times as long (demo model, objects of three properties).
_OPTIONS = '%llguidance {"no_forcing": true}\n'

# Between the parts of JSON: nothing, a space, or a new line and its indentation. llguidance's own
# default is any amount, of which small models never come to an end.
_SPACE = r"[ ]|\n([ ]{0,32}|\t{0,8})"
_SPACING = msgspec.json.encode({"whitespace_pattern": _SPACE}).decode()

_ANY_OBJECT = '{"type": "object"}'

_NAMES: dict[Kind, str] = {
    "json_object": "JSON schema",
    "json_schema": "JSON schema",
    "regex": "regular expression",
    "lark": "grammar",
    "gbnf": "grammar",
    "choice": "list of choices",
}


def lark_of(spec: GrammarSpec, param: str) -> str:
    """The grammar in Lark's notation, with llguidance's extensions.

    Raises RequestError, naming the field ``param``, for what llguidance need not be asked about.
    """
    text = spec.text
    name = _NAMES.get(spec.kind)
    if name is None:
        raise RequestError(f"there is no kind of grammar {spec.kind!r}", param)
    if len(text) > MAX_CHARS:
        raise RequestError(
            f"the {name} has {len(text)} characters, and may have {MAX_CHARS}; simplify it", param
        )
    if "\0" in text:
        raise RequestError(f"the {name} holds a null character", param)
    try:
        text.encode()
    except UnicodeEncodeError:
        raise RequestError(f"the {name} holds a lone surrogate; send valid UTF-8", param) from None
    match spec.kind:
        case "json_object":
            return f"{_OPTIONS}start: %json {_schema(_ANY_OBJECT, param)}"
        case "json_schema":
            return f"{_OPTIONS}start: %json {_schema(text, param)}"
        case "regex":
            if not text:
                raise RequestError("the regular expression is empty; name what it is", param)
            if (len(text) - len(text.rstrip("\\"))) % 2:
                raise RequestError(
                    "the regular expression ends with a backslash that escapes nothing; leave it "
                    "out, or write two",
                    param,
                )
            from llguidance import LLMatcher  # only now: front ends need the rest of this module

            wrapped = msgspec.json.decode(LLMatcher.grammar_from_regex(text))
            return _OPTIONS + str(wrapped["grammars"][0]["lark_grammar"])
        case "choice":
            return f"{_OPTIONS}start: {_alternatives(text, param)}"
        case "gbnf":
            return _OPTIONS + _of_gbnf(text, param)
        case "lark":
            if not text.strip():
                raise RequestError("the grammar is empty; it must have a rule named start", param)
            if _RULE_TEMPERATURE.search(text):
                raise RequestError(
                    "the grammar gives a rule a temperature of its own, which is not supported; "
                    "send one temperature for the request",
                    param,
                )
            return text if text.lstrip().startswith("%llguidance") else _OPTIONS + text


def _of_gbnf(text: str, param: str) -> str:
    """A grammar in llama.cpp's notation, in Lark's. Its first rule is named ``root``."""
    from llguidance.gbnf_to_lark import gbnf_to_lark  # only now, as above

    try:
        # llguidance's own options are in the first line.
        return gbnf_to_lark(text).partition("\n")[2]
    except RecursionError:
        raise RequestError("the grammar is nested too deeply; simplify it", param) from None
    except Exception as error:  # for most faults it is this very class
        raise RequestError(f"the grammar is not GBNF: {readable(str(error))}", param) from None


_RULE_TEMPERATURE = re.compile(r"^[ \t]*\w+[ \t]*\[[^\]\n]*\btemperature\b", re.MULTILINE)


def refusal(spec: GrammarSpec, message: str, param: str) -> RequestError:
    return RequestError(f"the {_NAMES[spec.kind]} cannot be used: {readable(message)}", param)


def readable(message: str) -> str:
    """llguidance's message without its places in a text that the user has not written."""
    first, _, rest = message.partition("\n")
    reason = re.search(r"^error: (.*)$", rest, re.MULTILINE)  # of a regular expression
    if reason is not None:
        return reason[1][:_MAX_REASON]
    while (shorter := _PLACES.sub("", first)) != first:
        first = shorter
    return first.strip()[:_MAX_REASON] or "llguidance gives no reason"


_PLACES = re.compile(r"^(at )?\d+\(\d+\): |^failed to compile JSON schema: ")


def _schema(text: str, param: str) -> str:
    try:
        schema = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise RequestError(f"the JSON schema is not JSON: {error}", param) from None
    if schema is True:
        schema, text = {}, "{}"
    if not isinstance(schema, dict):
        raise RequestError(
            f"a JSON schema is an object (or true), not {type(schema).__name__}", param
        )
    _check_nesting(schema, param)
    misspelt = misspelt_keyword(schema)
    if misspelt is not None:
        raise RequestError(
            f"the JSON schema has {misspelt[0]!r}, which is no keyword; did you mean "
            f"{misspelt[1]!r}?",
            param,
        )
    return _spaced(schema, text)


def _spaced(schema: dict[str, Any], text: str) -> str:
    """The text of a schema that says how its parts may be set apart."""
    if "x-guidance" in schema:
        return text.strip()
    rest = text.strip()[1:].lstrip()
    return f'{{"x-guidance": {_SPACING}{"" if rest.startswith("}") else ", "}{rest}'


def _check_nesting(schema: Any, param: str) -> None:
    """Refuse what is too deep, and references to other documents; without recursion."""
    level: list[Any] = [schema]
    for _ in range(MAX_DEPTH):
        below: list[Any] = []
        for each in level:
            if isinstance(each, list):
                below += [value for value in each if isinstance(value, (dict, list))]
            else:
                below += [value for value in each.values() if isinstance(value, (dict, list))]
                reference = each.get("$ref")
                if isinstance(reference, str) and not reference.startswith("#"):
                    raise RequestError(
                        f"the JSON schema refers to another document ({reference[:100]!r}), which "
                        "is never fetched; put the definition into $defs and refer to it by "
                        "#/$defs/NAME",
                        param,
                    )
        if not below:
            return
        level = below
    raise RequestError(f"the JSON schema is nested more than {MAX_DEPTH} deep; simplify it", param)


def _alternatives(text: str, param: str) -> str:
    try:
        choices = msgspec.json.decode(text, type=list[str])
    except msgspec.DecodeError as error:
        raise RequestError(f"the choices are no list of strings: {error}", param) from None
    if not choices or not all(choices):
        raise RequestError("there must be choices, and none may be empty", param)
    if len(choices) > MAX_CHOICES:
        raise RequestError(f"there are {len(choices)} choices, and may be {MAX_CHOICES}", param)
    return " | ".join(msgspec.json.encode(choice).decode() for choice in choices)
