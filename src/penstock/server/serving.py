"""The objects that every generation request needs."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.parsing.styles import Styles
from penstock.sandbox.grammar_check import GrammarCheck
from penstock.server.callers import Caller
from penstock.server.engine import Engine


@dataclass(frozen=True)
class Serving:
    engine: Engine
    styles: Styles
    grammars: GrammarCheck
    caller: Caller
    """The caller that sent the request."""
