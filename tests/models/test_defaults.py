"""What families assume where a configuration is silent is what transformers does."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
from support.families import FAMILIES, PUBLISHED, edited

from penstock.errors import ModelError
from penstock.models.registry import read_spec
from penstock.models.spec import ModelSpec

transformers = pytest.importorskip("transformers", reason="knows the defaults")
StrictDataclassError = pytest.importorskip("huggingface_hub.errors").StrictDataclassError

NOT_OF_THE_CLASS = ("architectures", "model_type", "transformers_version", "auto_map")
"""Fields that are not arguments of the configuration's class."""


def _read(config: dict[str, Any]) -> ModelSpec:
    """The model, but for its tokens: what ends a text is no part of what is computed."""
    return replace(read_spec(config), bos_token_id=None, eos_token_ids=())


def _completed(family: str, config: dict[str, Any]) -> dict[str, Any]:
    """The configuration as transformers writes it again, with all that it had not said."""
    given = {name: value for name, value in config.items() if name not in NOT_OF_THE_CLASS}
    given = deepcopy(given)  # the class writes into what it is given
    made = getattr(transformers, FAMILIES[family].config)(**given).to_dict()
    kept = {name: config[name] for name in ("architectures", "model_type") if name in config}
    tokens = {name: None for name in ("bos_token_id", "eos_token_id") if name not in config}
    return {**made, **kept, **tokens}


REFUSED = {"llama4_text"}
"""Families whose published configuration transformers refuses, whose types it checks by now."""
ACCEPTED = [family for family in PUBLISHED if family not in REFUSED]


@pytest.mark.parametrize("family", sorted(REFUSED))
def test_what_transformers_refuses(family: str) -> None:
    with pytest.raises(StrictDataclassError):
        _completed(family, edited(family))


@pytest.mark.parametrize("family", ACCEPTED)
def test_published_configurations_mean_what_transformers_makes_of_them(family: str) -> None:
    config = edited(family)
    assert _read(_completed(family, config)) == _read(config)


@pytest.mark.thinned(3)
@pytest.mark.parametrize("family", ACCEPTED)
def test_fields_that_are_missing(family: str) -> None:
    """Each is refused, or what transformers takes it for."""
    for name in PUBLISHED[family]:
        if name in NOT_OF_THE_CLASS:
            continue
        config = edited(family, **{name: ...})
        try:
            found = _read(config)
        except ModelError:
            continue
        assert _read(_completed(family, config)) == found, name
