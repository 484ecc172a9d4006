"""Which modules of a model a configuration means, by the names that its checkpoint has for them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from penstock.models.reader import ConfigReader


@dataclass(frozen=True)
class Modules:
    """A set of modules. A module is named as its tensors are, without ``.weight``."""

    names: frozenset[str] = frozenset()
    patterns: tuple[re.Pattern[str], ...] = ()
    """Regular expressions, one of which is found somewhere in the names of further modules."""
    every: bool = False

    def __contains__(self, module: str) -> bool:
        return (
            self.every
            or module in self.names
            or any(pattern.search(module) for pattern in self.patterns)
        )

    def within(self, others: Modules) -> bool:
        """Whether these are some of the names of ``others``, and none else."""
        return not self.every and not self.patterns and self.names <= others.names


EVERY = Modules(every=True)


def parts(entries: Iterable[str]) -> Modules:
    """The modules of a list of those that are left as they are: an entry is a name, or the name of
    what a module is in, in full or without what stands before it; ``*`` stands for any characters.

    Tools compare such entries in several ways, which agree on names whose words are whole: ``gate``
    means ``mlp.gate`` and not ``mlp.gate_proj``.
    """
    each = [".*".join(map(re.escape, entry.split("*"))) for entry in entries]
    if not each:
        return Modules()
    # One expression: published lists have hundreds of entries.
    return Modules(patterns=(re.compile(rf"(?:^|\.)(?:{'|'.join(each)})(?:\.|$)"),))


def beginning(config: ConfigReader, field: str, expression: str) -> re.Pattern[str]:
    """The expression of names that begin with what the regular ``expression`` of ``field`` matches.

    Raises ModelError where it is none.
    """
    try:
        return re.compile(rf"\A(?:{expression})")
    except (re.error, RecursionError, OverflowError) as e:
        raise config.error(
            field, f"has {expression!r}, which is no regular expression ({e}); correct it"
        ) from None
