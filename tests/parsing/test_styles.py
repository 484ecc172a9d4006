"""The styles of tool calls and of reasoning are recognized by a model's chat template."""

from __future__ import annotations

import pytest
from support.parsed_answers import STYLES

from penstock.errors import ConfigError
from penstock.parsing.styles import Styles


def test_styles_are_found_by_the_chat_template() -> None:
    def found(text: str) -> tuple[str | None, str | None]:
        styles = Styles.choose("auto", "auto", {"default": text})
        tools, reasoning = styles.tools, styles.reasoning
        return (
            None if tools is None else tools.name,
            None if reasoning is None else reasoning.name,
        )

    assert found("{{ messages }}") == ("generic", None)
    assert found("{{ messages }}{{ tools }}") == (None, None)
    assert found("{% if tools %}<tool_call>{% endif %}</think>") == ("hermes", "think")
    assert found("{% if tools %}<tool_call><function=name>{% endif %}") == ("qwen3-coder", None)
    assert found("{% if tools %}<tool_call><arg_key></think>{% endif %}") == ("glm", "think")
    assert found("{{ tools }}[func_name1(param=value)]") == ("pythonic", None)
    assert found("{{ tools }}<minimax:tool_call><invoke name=") == ("minimax", None)
    v31 = "{{ tools }}<｜tool▁call▁begin｜>"
    assert found(v31) == ("deepseek-v3.1", None)
    assert found(v31 + "```json</think>") == ("deepseek-v3", "think")
    dsml = "{{ tools }}{% set token = '｜DSML｜' %}"
    assert found(dsml + "<{{ token }}function_calls></think>") == ("deepseek-v3.2", "think")
    assert found(dsml + "{{ message.tool_calls }}<{{ token }}tool_calls>")[0] == "deepseek-v4"
    asked = "{{ tools }}Write 'Action:' followed by a json-formatted list of actions that"
    assert found(asked) == ("command-r", None)
    assert found("<|im_system|>tool_declare<|im_middle|>{{ tools }}") == ("kimi", None)
    assert found("{{ tools }}<|tool_call|>{{ call }}<|/tool_call|>") == ("phi4", None)
    assert found("{{ tools }}<|tool_call|>{{ calls }}") == ("granite", None)
    assert found(v31.replace("tools", "messages")) == ("generic", None)
    assert found("{{ tools }}<|start|><|channel|>analysis<|message|>") == ("harmony", "harmony")
    assert found("{{ tools }}'<|tool_call>call:' <|channel>thought<channel|>") == ("gemma", "gemma")
    assert found("{{ tools }}<start_function_call>call:") == ("functiongemma", None)
    assert found('{{ tools }}<|header_start|>ipython"parameters": ') == ("llama4", None)
    assert found("{{ tools }}<|header_start|>[func_name1(a=b)]") == ("llama4-pythonic", None)
    assert found("{{ tools }}<|START_ACTION|>tool_name<|END_THINKING|><|START_RESPONSE|>") == (
        "cohere",
        "cohere",
    )
    assert found("{{ tools }}<seed:tool_call><function=</seed:think>") == ("seed", "seed")
    assert found("{{ tools }}<TOOLCALL></think>") == ("nemotron", "think")
    assert found("{{ tools }}<tool_calls></think><answer>") == ("hunyuan", "hunyuan")
    assert found("{{ tools }}<tool_call></think><response>") == ("hermes", "ernie")
    assert found("{{ tools }}<|tools_prefix|><|inner_suffix|>") == ("apertus", "apertus")
    assert found("{{ tools }}<steptml:invoke<｜tool_call_begin｜>") == ("step3", None)
    assert found("{{ tools }}<|tool_call_start|>") == ("lfm2", None)
    listed = {"default": "List of tools: {{ tools }}"}
    assert Styles.choose("auto", "auto", listed).tools is None
    in_vocabulary = Styles.choose("auto", "auto", listed, {"<|tool_call_start|>"}.__contains__)
    assert in_vocabulary.tools is not None
    assert in_vocabulary.tools.name == "lfm2"
    assert found("tools[AVAILABLE_TOOLS][TOOL_CALLS][THINK][/THINK]") == ("mistral", "mistral")
    assert found('tools {"name": , "parameters": } ipython') == ("llama3", None)
    chosen = Styles.choose("json", "none", {"default": "<tool_call></think>"})
    assert chosen.tools is STYLES["json"]
    assert chosen.reasoning is None
    assert str(chosen) == "tool calls: json, reasoning: none"
    with pytest.raises(ConfigError, match="--tool-call-parser 'x'"):
        Styles.choose("x", "auto", {})
