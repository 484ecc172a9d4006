"""The cache of grammars against a list that is searched."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.grammar.cache import GrammarCache
from penstock.grammar.spec import GrammarSpec

KEYS = st.builds(
    GrammarSpec,
    kind=st.sampled_from(["regex", "lark"]),
    text=st.integers(0, 9).map(lambda length: "x" * length),
)


@given(
    calls=st.lists(st.tuples(st.sampled_from(["put", "get", "drop"]), KEYS), max_size=60),
    max_entries=st.integers(1, 6),
    max_chars=st.integers(9, 30),
)
def test_it_is_the_list_of_the_last_used(
    calls: list[tuple[str, GrammarSpec]], max_entries: int, max_chars: int
) -> None:
    cache: GrammarCache[int] = GrammarCache(max_entries, max_chars)
    model: list[tuple[GrammarSpec, int]] = []  # the last used last
    for number, (call, spec) in enumerate(calls):
        found = next((value for key, value in model if key == spec), None)
        rest = [entry for entry in model if entry[0] != spec]
        if call == "drop":
            cache.drop(spec)
            model = rest
        elif call == "put":
            cache.put(spec, number)
            model = [*rest, (spec, number)]
            while len(model) > max_entries or sum(len(k.text) for k, _ in model) > max_chars:
                model.pop(0)
        else:
            assert cache.get(spec) == found
            model = rest if found is None else [*rest, (spec, found)]
        assert len(cache) == len(model)
        assert cache.num_chars == sum(len(key.text) for key, _ in model)
    for spec, value in model:
        assert cache.get(spec) == value
