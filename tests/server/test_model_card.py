"""What the server says that its model was made for."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.demo_model import demo_model_path, draft_model_path, is_demo_model
from penstock.engine.ipc.wire import ModelFacts
from penstock.length_limits import LengthLimits
from penstock.server.model_card import made_for


@pytest.mark.parametrize(
    ("is_demo", "has_template", "expected"),
    [
        (False, True, "chat"),
        (False, False, "completion"),
        (True, True, "completion"),
        (True, False, "completion"),
    ],
)
def test_what_it_was_made_for(is_demo: bool, has_template: bool, expected: str) -> None:
    facts = ModelFacts(
        served_model_name="m",
        tokenizer_path="t",
        lengths=LengthLimits(8),
        vocab_size=8,
        is_demo=is_demo,
    )
    assert made_for(facts, has_template) == expected


def test_the_demo_model_by_another_path(tmp_path: Path) -> None:
    link = tmp_path / "model"
    link.symlink_to(demo_model_path())
    assert is_demo_model(link)
    assert is_demo_model(str(demo_model_path()))
    assert not is_demo_model(draft_model_path())
