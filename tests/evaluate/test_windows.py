"""How a text is cut into windows."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import ConfigError
from penstock.evaluate.windows import WINDOW_METHODS, WindowMethod, cut

TEXT = [0, *range(10, 29)]  # BOS, and nineteen tokens


def test_the_second_half_of_each_window_counts_but_its_first() -> None:
    windows = cut(TEXT, 8, "llama.cpp", bos=0)
    assert [list(w.token_ids) for w in windows] == [
        [0, *range(10, 17)],
        [0, *range(18, 25)],  # BOS is in the place of token 17
    ]
    assert [list(w.targets) for w in windows] == [[14, 15, 16], [22, 23, 24]]


def test_a_model_without_bos_reads_every_token() -> None:
    windows = cut(TEXT[1:], 8, "llama.cpp", bos=None)
    assert [list(w.token_ids) for w in windows] == [[*range(10, 18)], [*range(18, 26)]]


def test_every_token_counts_but_the_first_and_bos_stands_once() -> None:
    windows = cut(TEXT, 10, "gptq", bos=0)
    assert [list(w.token_ids) for w in windows] == [[0, *range(10, 19)], [*range(19, 29)]]
    assert [list(w.targets) for w in windows] == [[*range(10, 19)], [*range(20, 29)]]


@given(
    count=st.integers(0, 200),
    size=st.integers(1, 50),
    method=st.sampled_from(WINDOW_METHODS),
    bos=st.sampled_from([None, 1000]),
)
def test_windows_are_whole_and_in_order(
    count: int, size: int, method: WindowMethod, bos: int | None
) -> None:
    tokens = list(range(count))
    if count < size or size < (2 if method == "gptq" else 3):
        with pytest.raises(ConfigError, match=r"--window|take at least"):
            cut(tokens, size, method, bos)
        return
    windows = cut(tokens, size, method, bos)
    assert len(windows) == count // size
    for number, window in enumerate(windows):
        place = tokens[number * size : (number + 1) * size]
        assert list(window.token_ids[1:]) == place[1:]
        assert 1 <= len(window.targets) == size - window.first
        assert list(window.targets) == place[window.first :]


@pytest.mark.parametrize(("method", "size"), [("gptq", 1), ("llama.cpp", 2)])
def test_a_window_in_which_nothing_counts(method: WindowMethod, size: int) -> None:
    with pytest.raises(ConfigError, match=f"has none that counts; take at least {size + 1}"):
        cut(TEXT, size, method, None)
