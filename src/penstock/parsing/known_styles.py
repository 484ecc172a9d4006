"""The styles that are known, in the order in which they are looked for."""

from __future__ import annotations

from penstock.parsing.forms import (
    ARGUMENT_TAGS,
    DSML_TAGS,
    FUNCTION_TAGS,
    HARMONY,
    INVOKE_TAGS,
    SEED_TAGS,
    STEP_TAGS,
    JsonForm,
    KeyForm,
    NamedForm,
    PythonForm,
    ValueForm,
)
from penstock.parsing.style import ReasoningStyle, ToolStyle

GENERIC = ToolStyle(
    "generic", (), "<tool_call>", "</tool_call>", around="\n", between="\n", described=True
)
"""The style for chat templates that show no tools."""

TOOL_STYLES = (
    ToolStyle("harmony", ("<|start|>", "<|channel|>", "<|message|>"), "", form=HARMONY),
    ToolStyle("hermes", ("<tool_call>",), "<tool_call>", "</tool_call>",
              unlike=("<function=", "<arg_key>"), around="\n", between="\n"),
    ToolStyle("qwen3-coder", ("<tool_call>", "<function="), "<tool_call>", "</tool_call>",
              FUNCTION_TAGS, around="\n", between="\n"),
    ToolStyle("seed", ("<seed:tool_call>", "<function="), "<seed:tool_call>", "</seed:tool_call>",
              SEED_TAGS, around="\n", between="\n"),
    ToolStyle("glm", ("<tool_call>", "<arg_key>"), "<tool_call>", form=ARGUMENT_TAGS,
              between="\n"),
    ToolStyle("minimax", ("<minimax:tool_call>", "<invoke name="), '<invoke name="',
              form=INVOKE_TAGS, around="\n", between="\n",
              section=("<minimax:tool_call>", "</minimax:tool_call>")),
    ToolStyle("step3", ("<steptml:invoke", "<｜tool_call_begin｜>"), "<｜tool_call_begin｜>",
              "<｜tool_call_end｜>", STEP_TAGS,
              section=("<｜tool_calls_begin｜>", "<｜tool_calls_end｜>")),
    ToolStyle("gemma", ("<|tool_call>",), "<|tool_call>", "<tool_call|>", ValueForm('<|"|>'),
              stop="<|tool_response>", results_named=True),
    ToolStyle("functiongemma", ("<start_function_call>",), "<start_function_call>",
              "<end_function_call>", ValueForm("<escape>"), stop="<start_function_response>",
              results_named=True),
    ToolStyle("mistral", ("[TOOL_CALLS]",), "[TOOL_CALLS]", lists=True, ids="short",
              named=NamedForm(after_name=("[ARGS]",),
                              optional_after=(r"\[CALL_ID\][A-Za-z0-9]{0,64}",)),
              between=", "),
    ToolStyle("llama4", ("<|header_start|>", '"parameters"'), "<|python_start|>",
              "<|python_end|>", JsonForm(arguments_key="parameters"), unlike=("func_name1(",),
              bare=True, separators=";", between="; "),
    ToolStyle("llama4-pythonic", ("<|header_start|>", "func_name1("), "<|python_start|>",
              "<|python_end|>", PythonForm(), lists=True, bare=True, between=", "),
    ToolStyle("llama3", ("ipython", '"parameters"'), "<|python_tag|>", bare=True, separators=";",
              form=JsonForm(arguments_key="parameters"), between="; "),
    ToolStyle("deepseek-v3.1", ("<｜tool▁call▁begin｜>",), "<｜tool▁call▁begin｜>",
              "<｜tool▁call▁end｜>", NamedForm(after_name=("<｜tool▁sep｜>",)),
              unlike=("```json",), section=("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>")),
    ToolStyle("deepseek-v3", ("<｜tool▁call▁begin｜>", "```json"), "<｜tool▁call▁begin｜>",
              "<｜tool▁call▁end｜>",
              NamedForm(("function", "<｜tool▁sep｜>"), ("\n```json\n",), "\n```"), between="\n",
              section=("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>")),
    ToolStyle("deepseek-v3.2", ("｜DSML｜", "function_calls>"), '<｜DSML｜invoke name="',
              form=DSML_TAGS, around="\n", between="\n",
              section=("<｜DSML｜function_calls>", "</｜DSML｜function_calls>")),
    ToolStyle("deepseek-v4", ("｜DSML｜", "tool_calls>"), '<｜DSML｜invoke name="',
              form=DSML_TAGS, around="\n", between="\n",
              section=("<｜DSML｜tool_calls>", "</｜DSML｜tool_calls>")),
    ToolStyle("kimi", ("tool_declare", "<|im_middle|>"), "<|tool_call_begin|>",
              "<|tool_call_end|>", ids="numbered",
              form=NamedForm(("functions.",), ("<|tool_call_argument_begin|>",), numbered=True),
              section=("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>")),
    ToolStyle("cohere", ("<|START_ACTION|>", "tool_name"), "<|START_ACTION|>", "<|END_ACTION|>",
              JsonForm("tool_name", "parameters", number_key="tool_call_id"), lists=True,
              around="\n    ", between=",\n    "),
    ToolStyle("command-r", ("followed by a json-formatted list of actions",),
              "Action: ```json\n", "```", JsonForm("tool_name", "parameters"), lists=True,
              around="\n    ", between=",\n    "),
    ToolStyle("apertus", ("<|tools_prefix|>",), "<|tools_prefix|>", "<|tools_suffix|>", KeyForm(),
              lists=True, between=", ", arguments_as_text=True),
    ToolStyle("nemotron", ("<TOOLCALL>",), "<TOOLCALL>", "</TOOLCALL>", lists=True, between=", "),
    ToolStyle("hunyuan", ("<tool_calls>",), "<tool_calls>", "</tool_calls>", lists=True,
              between=", "),
    ToolStyle("lfm2", ("tool_call_start",), "<|tool_call_start|>", "<|tool_call_end|>",
              PythonForm(), lists=True, between=", "),
    ToolStyle("lfm2", ("List of tools: ",), "<|tool_call_start|>", "<|tool_call_end|>",
              PythonForm(), lists=True, between=", ", tokens=("<|tool_call_start|>",)),
    ToolStyle("phi4", ("<|tool_call|>", "<|/tool_call|>"), "<|tool_call|>",
              "<|/tool_call|>", lists=True, between=", "),
    ToolStyle("granite", ("<|tool_call|>",), "<|tool_call|>", unlike=("<|/tool_call|>",),
              lists=True, between=", "),
    ToolStyle("pythonic", ("[func_name1(",), "", form=PythonForm(), lists=True, bare=True,
              between=", "),
    ToolStyle("json", (), "", lists=True, bare=True, between=", "),
    GENERIC,
)  # fmt: skip
"""Known styles in the order of detection; ``json`` is never detected, only chosen by option."""

CHANNELS = ReasoningStyle("harmony", "<|channel|>analysis<|message|>", "<|end|>", form=HARMONY)
"""gpt-oss's."""

REASONING_STYLES = (
    CHANNELS,
    ReasoningStyle("hunyuan", "<think>", "</think>", ("<answer>", "</answer>")),
    ReasoningStyle("ernie", "<think>", "</think>", ("<response>", "</response>")),
    ReasoningStyle("think", "<think>", "</think>"),
    ReasoningStyle("mistral", "[THINK]", "[/THINK]"),
    ReasoningStyle("gemma", "<|channel>thought", "<channel|>"),
    ReasoningStyle("cohere", "<|START_THINKING|>", "<|END_THINKING|>",
                   ("<|START_RESPONSE|>", "<|END_RESPONSE|>")),
    ReasoningStyle("seed", "<seed:think>", "</seed:think>",
                   also_opened="<seed:cot_budget_reflect>"),
    ReasoningStyle("apertus", "<|inner_prefix|>", "<|inner_suffix|>"),
)  # fmt: skip
"""Known styles in the order of detection."""
