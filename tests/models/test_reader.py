"""Fields that a family calls otherwise, and what it assumes where they are absent."""

from __future__ import annotations

import pytest

from penstock.errors import ModelError
from penstock.models.reader import ConfigReader

NAMES = {"hidden_size": "n_embd", "num_hidden_layers": "n_layer"}


def test_a_field_is_read_by_either_name() -> None:
    for fields in ({"n_embd": 8}, {"hidden_size": 8}, {"n_embd": 8, "hidden_size": 8}):
        whole = ConfigReader(fields, "config.json")
        assert whole.adapted(NAMES, {}).integer("hidden_size") == 8
        whole.finish()


def test_null_is_absent_under_either_name() -> None:
    reader = ConfigReader({"n_embd": None, "hidden_size": 8}, "x").adapted(NAMES, {})
    assert (reader.integer("hidden_size"), reader.has("num_hidden_layers")) == (8, False)
    reader = ConfigReader({"n_embd": 8, "hidden_size": None}, "x").adapted(NAMES, {})
    assert reader.integer("hidden_size") == 8


def test_two_values_are_refused() -> None:
    whole = ConfigReader({"n_embd": 8, "hidden_size": 9}, "config.json")
    with pytest.raises(ModelError, match=r"n_embd \(8\) contradicts hidden_size 9"):
        whole.adapted(NAMES, {})


def test_errors_name_what_the_file_says() -> None:
    reader = ConfigReader({"n_embd": "8"}, "config.json").adapted(NAMES, {})
    with pytest.raises(ModelError, match=r"n_embd \('8'\) must be an integer"):
        reader.integer("hidden_size")
    with pytest.raises(ModelError, match=r"n_layer \(absent\) is required"):
        reader.integer("num_hidden_layers")


def test_defaults_are_those_of_the_family() -> None:
    """They come before those of who asks, where a field is absent and not null, and are checked. A
    null gets neither."""
    fields = {"cap": None, "n_layer": 3}
    whole = ConfigReader(fields, "config.json")
    defaults = {"eps": 1e-5, "cap": 30.0, "num_hidden_layers": 7, "flag": True}
    reader = whole.adapted(NAMES, defaults)
    assert reader.number("eps", 0.5, high=1.0) == 1e-5
    assert (reader.has("cap"), reader.optional_number("cap", high=1.0)) == (False, None)
    with pytest.raises(ModelError, match=r"cap \(None\) must not be null; leave it out for 0.5"):
        reader.number("cap", 0.5, high=1.0)
    assert reader.integer("num_hidden_layers", 5) == 3
    assert (reader.boolean("flag", False), reader.has("eps"), reader.contains("flag")) == (
        True,
        True,
        False,
    )
    with pytest.raises(ModelError, match=r"eps \(absent, which means 1e-05\) must be greater"):
        reader.number("eps", high=1e-6)
    whole.finish()


def test_fields_of_neither_name_are_still_refused() -> None:
    whole = ConfigReader({"n_embd": 8, "n_ctx": 4}, "config.json")
    whole.adapted(NAMES, {}).integer("hidden_size")
    with pytest.raises(ModelError, match="n_ctx"):
        whole.finish()
