"""A chat template is of chats: who sends prompts need not have one that works."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from penstock import LLM, SamplingParams, demo_model_path
from penstock.errors import TokenizerError


def test_a_broken_template_is_refused_by_chats_alone(tmp_path: Path) -> None:
    model = shutil.copytree(demo_model_path(), tmp_path / "model")
    (model / "chat_template.jinja").write_text("{% if %}")
    one = SamplingParams(temperature=0, max_tokens=1)
    with LLM(str(model), threads=1, kv_cache_bytes=1 << 24) as llm:
        (output,) = llm.generate("def", one)
        assert output.outputs[0].text
        with pytest.raises(TokenizerError, match="template"):
            llm.chat([{"role": "user", "content": "Hello"}], one)
