"""Reading a body by the table of fields: what is taken out of it, and what is refused."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import Any

import msgspec

from penstock.server.errors import ApiError
from penstock.server.openai.fields import EVERY_NAME, Rule
from penstock.server.openai.places import Place

_LIKE = 0.7
"""How much a name must look like another to be taken for a slip of it (difflib's ratio)."""
_NAME_CHARS = 64


@dataclass(frozen=True)
class Advice:
    """A value that was taken out of a body, and does not change the answer."""

    rule: Rule
    value: object


def take_out(body: dict[str, Any], place: Place) -> list[Advice]:
    """Take out of ``body``, in place, what the table says; what was advice is returned.

    Nulls go everywhere: they mean that a field is not given. Names that are unknown stay, for the
    structs' decoder to refuse. Raises ApiError naming a field that cannot be used.
    """
    advice: list[Advice] = []
    _walk(body, place, "", advice)
    return advice


def _walk(given: dict[str, Any], place: Place, at: str, advice: list[Advice]) -> None:
    for name, value in list(given.items()):
        if value is None:
            del given[name]
            continue
        rule = place.rules.get(name)
        if rule is not None and _judge(given, name, rule, place, at, advice):
            continue
        inner = place.inner.get(name)
        if inner is not None:
            _enter(value, inner, f"{at}{name}", advice)
            if place.strict and name not in place.names:
                del given[name]  # an object of the table alone
        elif place.strict and name not in place.names:
            rest = place.rules.get(EVERY_NAME)
            if rest is not None:
                advice.append(Advice(rest, value))
                del given[name]
            elif not place.structs:
                raise unknown(f"{at}{name}", place)


def _enter(value: object, place: Place, at: str, advice: list[Advice]) -> None:
    """Look into an object or the objects of a list; what else it is, the decoder complains of."""
    if isinstance(value, dict):
        _walk(value, place, f"{at}.", advice)
    elif place.strict and not place.structs:
        raise ApiError(400, f"{at}: expected object", param=at, code="invalid_type")
    elif isinstance(value, list):
        for i, each in enumerate(value):
            if isinstance(each, dict):
                _walk(each, place, f"{at}[{i}].", advice)


def _judge(
    given: dict[str, Any], name: str, rule: Rule, place: Place, at: str, advice: list[Advice]
) -> bool:
    """Whether the field is done with."""
    value = given[name]
    if rule.alias:
        if rule.roles and given.get("role") not in rule.roles:
            why = f"{at}{name} belongs to {' and '.join(rule.roles)} messages only"
            raise ApiError(400, why, param=f"{at}{name}")
        if given.get(rule.alias, value) != value:
            why = f"{at}{name} and {at}{rule.alias} disagree; send one of them"
            raise ApiError(400, why, param=f"{at}{name}")
        given[rule.alias] = given.pop(name)
        return True
    if rule.of_elements:
        if isinstance(value, list):
            effects = [rule.effect(each) for each in value]
            advice += [
                Advice(rule, each)
                for each, effect in zip(value, effects, strict=True)
                if effect == "advice"
            ]
            given[name] = [
                each
                for each, effect in zip(value, effects, strict=True)
                if effect == "refused"  # by the table: the struct takes them, or refuses them
            ]
        return False
    effect = rule.effect(value)
    if effect == "refused":
        if name in place.names:
            return False
        raise _refused(f"{at}{name}", value, rule)
    if effect == "advice":
        advice.append(Advice(rule, value))
    del given[name]
    return True


def unknown(field: str, place: Place) -> ApiError:
    """The complaint of a field, by its whole name, that stands at ``place`` and is not known."""
    name = field.rpartition(".")[2]
    names = sorted(place.names | place.rules.keys() | place.inner.keys())
    like = difflib.get_close_matches(name[:_NAME_CHARS], names, 1, _LIKE)
    fix = f"did you mean {like[0]!r}?" if like else "leave it out, no field is ignored silently"
    return ApiError(400, f"unknown field {field!r}; {fix}", param=field, code="unknown_parameter")


def _refused(at: str, value: object, rule: Rule) -> ApiError:
    told = msgspec.json.encode(value).decode()
    told = told if len(told) <= _NAME_CHARS else f"{told[:_NAME_CHARS]}..."
    allowed = ", ".join(str(values) for values in (rule.nothing, rule.advice) if values)
    taken = f" (taken: {allowed})" if allowed else ""
    why, fix = rule.why.replace("`", "'"), rule.fix.replace("`", "'")
    return ApiError(
        400,
        f"{at!r} is not supported as {told}: {why}; {fix}{taken}",
        param=at,
        code="unsupported_parameter",
    )
