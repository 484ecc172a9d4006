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


@pytest.mark.parametrize("last", ["user", "assistant"])
def test_names_of_special_tokens_in_messages_are_text(last: str) -> None:
    """What is quoted cannot end a turn, as over HTTP."""
    with LLM(threads=1, kv_cache_bytes=1 << 24) as llm:
        tokenizer = llm.tokenizer
        name = tokenizer.token_text(min(tokenizer.special_ids))
        messages = [{"role": "user", "content": "x"}, {"role": last, "content": f"a {name} b"}]
        asked = messages[-1:] if last == "user" else messages
        continued = {"add_generation_prompt": False, "continue_final_message": True}
        (output,) = llm.chat(
            asked,
            SamplingParams(temperature=0, max_tokens=1),
            **(continued if last == "assistant" else {}),
        )
        plain = llm.chat(
            [*asked[:-1], {"role": last, "content": "a  b"}],
            SamplingParams(temperature=0, max_tokens=1),
            **(continued if last == "assistant" else {}),
        )[0]
        special = set(tokenizer.special_ids)
        marks = [token for token in output.prompt_token_ids if token in special]
        assert marks == [token for token in plain.prompt_token_ids if token in special]
        assert name in tokenizer.decode(output.prompt_token_ids, skip_special_tokens=True)
