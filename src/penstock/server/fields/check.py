"""Applying the field table to a body: fields to drop and fields to refuse."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import Any

import msgspec

from penstock.server.errors import ApiError
from penstock.server.fields.places import Place
from penstock.server.fields.rules import EVERY_NAME, Rule

_LIKE = 0.7
"""Similarity (difflib ratio) from which an unknown name is taken for a misspelling of a known
one."""
_NAME_CHARS = 64
MAX_ELEMENTS = 256
"""Longest list whose elements are checked one by one; real lists hold about a dozen words."""
_SCALARS = frozenset({str, int, float, bool})


@dataclass(frozen=True)
class Advice:
    """An advisory value that was removed from a body; ignoring it does not make the answer
    wrong."""

    rule: Rule
    value: object


def take_out(body: dict[str, Any], place: Place) -> list[Advice]:
    """Remove from ``body``, in place, what the field table says; return what was advisory.

    Nulls are removed everywhere: they mean that a field is not given. Unknown names stay, and the
    struct decoder refuses them. Raises ApiError naming a field that cannot be used.
    """
    walk = _Walk()
    walk.visit(body, place, None)
    return list(walk.advice.values())


@dataclass(frozen=True)
class _At:
    """A place in a body, formatted only for error messages."""

    outer: _At | None
    step: str | int

    def __str__(self) -> str:
        if isinstance(self.step, int):
            return f"{self.outer or ''}[{self.step}]"
        return self.step if self.outer is None else f"{self.outer}.{self.step}"


class _Walk:
    """One pass over a body. ``advice`` holds the first value that each rule matched."""

    def __init__(self) -> None:
        self.advice: dict[Rule, Advice] = {}

    def visit(self, given: dict[str, Any], place: Place, at: _At | None) -> None:
        if place.scalars.issuperset(given) and _SCALARS.issuperset(map(type, given.values())):
            return
        for name, value in list(given.items()):
            if value is None:
                del given[name]
                continue
            rule = place.rules.get(name)
            if rule is not None and self._judged(given, name, rule, place, at):
                continue
            inner = place.inner.get(name)
            if inner is not None:
                self._enter(value, inner, _At(at, name))
                if place.strict and name not in place.names:
                    del given[name]  # an object of the table alone
            elif place.strict and name not in place.names:
                rest = place.rules.get(EVERY_NAME)
                if rest is not None:
                    self._advise(rest, value)
                    del given[name]
                elif not place.structs:
                    raise unknown(str(_At(at, name)), place)

    def _enter(self, value: object, place: Place, at: _At) -> None:
        """Check an object, or each object of a list; the decoder refuses values of any other
        type."""
        if isinstance(value, dict):
            self.visit(value, place, at)
        elif place.strict and not place.structs:
            raise ApiError(400, f"{at}: expected object", param=str(at), code="invalid_type")
        elif isinstance(value, list):
            scalars = place.scalars
            for i, each in enumerate(value):
                if not isinstance(each, dict) or (
                    scalars.issuperset(each) and _SCALARS.issuperset(map(type, each.values()))
                ):
                    continue
                self.visit(each, place, _At(at, i))

    def _judged(
        self, given: dict[str, Any], name: str, rule: Rule, place: Place, outer: _At | None
    ) -> bool:
        """Apply ``rule`` to a field; True if that removed or renamed the field."""
        value = given[name]
        at = _At(outer, name)
        if rule.alias:
            if rule.roles and given.get("role") not in rule.roles:
                why = f"{at} belongs to {' and '.join(rule.roles)} messages only"
                raise ApiError(400, why, param=str(at))
            if given.get(rule.alias, value) != value:
                why = f"{at} and {_At(outer, rule.alias)} disagree; send one of them"
                raise ApiError(400, why, param=str(at))
            given[rule.alias] = given.pop(name)
            return True
        if rule.of_elements:
            if isinstance(value, list):
                given[name] = self._elements(value, rule, at)
            return False
        effect = rule.effect(value)
        if effect == "refused":
            if name in place.names:
                return False
            raise _refused(str(at), value, rule)
        if effect == "advice":
            self._advise(rule, value)
        del given[name]
        return True

    def _elements(self, values: list[Any], rule: Rule, at: _At) -> list[Any]:
        """Return the list elements that the struct handles."""
        if len(values) > MAX_ELEMENTS:
            why = f"{at} holds {len(values)} elements; at most {MAX_ELEMENTS} are taken"
            raise ApiError(400, why, param=str(at))
        acted = []
        for i, each in enumerate(values):
            if each in rule.acted:
                acted.append(each)
                continue
            effect = rule.effect(each)
            if effect == "refused":
                raise _refused(str(_At(at, i)), each, rule)
            if effect == "advice":
                self._advise(rule, each)
        return acted

    def _advise(self, rule: Rule, value: object) -> None:
        if rule not in self.advice:
            self.advice[rule] = Advice(rule, value)


def unknown(field: str, place: Place) -> ApiError:
    """Return the error for an unknown field, given its full name and its place."""
    name = field.rpartition(".")[2]
    names = sorted(place.names | place.rules.keys() | place.inner.keys())
    like = difflib.get_close_matches(name[:_NAME_CHARS], names, 1, _LIKE)
    fix = f"did you mean {like[0]!r}?" if like else "leave it out, no field is ignored silently"
    return ApiError(400, f"unknown field {field!r}; {fix}", param=field, code="unknown_parameter")


def _refused(at: str, value: object, rule: Rule) -> ApiError:
    shown = msgspec.json.encode(value).decode()
    shown = shown if len(shown) <= _NAME_CHARS else f"{shown[:_NAME_CHARS]}..."
    allowed = ", ".join(str(values) for values in (rule.nothing, rule.advice, rule.acted) if values)
    taken = f" (taken: {allowed})" if allowed else ""
    why, fix = rule.why.replace("`", "'"), rule.fix.replace("`", "'")
    return ApiError(
        400,
        f"{at!r} is not supported as {shown}: {why}; {fix}{taken}",
        param=at,
        code="unsupported_parameter",
    )
