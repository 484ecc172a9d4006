"""Each style's calls are read from the whole text, and from one character at a time."""

from __future__ import annotations

import pytest
from support.parsed_answers import ARGUMENTS, ONE, STYLES, TOOLS, TWO, WEATHER, F, parse

from penstock.parsing.answer_parser import AnswerParser
from penstock.parsing.style import Start


@pytest.mark.parametrize("eager", [False, True])
@pytest.mark.parametrize(
    ("style", "text", "content", "calls"),
    [
        ("hermes", f"<tool_call>\n{WEATHER}\n</tool_call>", "", ONE),
        ("hermes", f"<tool_call>{WEATHER}", "", ONE),
        (
            "hermes",
            f"See.\n\n<tool_call>\n{WEATHER}\n</tool_call>\n<tool_call>\n{F}\n</tool_call>\n",
            "See.",
            TWO,
        ),
        ("hermes", f"<tool_call>{WEATHER}</tool_call>\nDone. ", "Done. ", ONE),
        ("llama3", WEATHER.replace("arguments", "parameters"), "", ONE),
        ("llama3", f"<|python_tag|>{WEATHER}; {F}", "", TWO),
        ("llama3", f" {WEATHER}\n{F}", "", TWO),
        ("mistral", f"[TOOL_CALLS][{WEATHER}, {F}]", "", TWO),
        ("mistral", f"[TOOL_CALLS] [{WEATHER}]", "", ONE),
        ("mistral", f"Yes.[TOOL_CALLS]get_weather{ARGUMENTS}[TOOL_CALLS]f[ARGS]{{}}", "Yes.", TWO),
        ("mistral", f"[TOOL_CALLS]get_weather[CALL_ID]a1b2c3d4e[ARGS]{ARGUMENTS}", "", ONE),
        ("generic", f"Yes.\n<tool_call>\n{WEATHER}\n</tool_call>\n<tool_call>{F}", "Yes.", TWO),
        (
            "deepseek-v3.1",
            f"Yes.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{ARGUMENTS}"
            "<｜tool▁call▁end｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{}<｜tool▁call▁end｜>"
            "<｜tool▁calls▁end｜>",
            "Yes.",
            TWO,
        ),
        ("deepseek-v3.1", f"<｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{ARGUMENTS}", "", ONE),
        (
            "deepseek-v3",
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n"
            f"{ARGUMENTS}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n"
            "```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>\nDone.",
            "Done.",
            TWO,
        ),
        (
            "kimi",
            "I look.<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0"
            f"<|tool_call_argument_begin|>{ARGUMENTS}<|tool_call_end|><|tool_call_begin|>"
            "functions.f:1<|tool_call_argument_begin|>{}<|tool_call_end|>"
            "<|tool_calls_section_end|>",
            "I look.",
            TWO,
        ),
        (
            "qwen3-coder",
            "Yes.\n<tool_call>\n<function=get_weather>\n<parameter=city>\nBrno {\n</parameter>\n"
            "<parameter=days>\n[1, -2.5e3, null]\n</parameter>\n</function>\n</tool_call>\n"
            "<tool_call>\n<function=f>\n</function>\n</tool_call>",
            "Yes.",
            TWO,
        ),
        (
            "qwen3-coder",
            "<tool_call><function=get_weather><parameter=city>Brno {</parameter><parameter=days>"
            "[1, -2.5e3, null]</parameter></function>",
            "",
            ONE,
        ),
        (
            "glm",
            "\n<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Brno {</arg_value>\n"
            "<arg_key>days</arg_key><arg_value>[1, -2.5e3, null]</arg_value>\n</tool_call>"
            "<tool_call>f</tool_call>",
            "",
            TWO,
        ),
        (
            "minimax",
            'Yes.<minimax:tool_call>\n<invoke name="get_weather">\n<parameter name="city">Brno {'
            '</parameter>\n<parameter name="days">[1, -2.5e3, null]</parameter>\n</invoke>\n'
            '<invoke name="f">\n</invoke>\n</minimax:tool_call>\n',
            "Yes.",
            TWO,
        ),
        *(
            (
                style,
                f'Yes.\n\n<｜DSML｜{section}>\n<｜DSML｜invoke name="get_weather">\n'
                '<｜DSML｜parameter name="city" string="true">Brno {</｜DSML｜parameter>\n'
                '<｜DSML｜parameter name="days" string="false">[1, -2.5e3, null]'
                "</｜DSML｜parameter>\n</｜DSML｜invoke>\n"
                f'<｜DSML｜invoke name="f">\n\n</｜DSML｜invoke>\n</｜DSML｜{section}>',
                "Yes.",
                TWO,
            )
            for style, section in (
                ("deepseek-v3.2", "function_calls"),
                ("deepseek-v4", "tool_calls"),
            )
        ),
        (
            "command-r",
            'Action: ```json\n[\n    {\n        "tool_name": "get_weather",\n        "parameters": '
            f'{ARGUMENTS}\n    }},\n    {{"tool_name": "f", "parameters": {{}}}}\n]\n```',
            "",
            TWO,
        ),
        (
            "command-r",
            'I look.\nAction: ```json\n[{"tool_name": "get_weather", "parameters": '
            f"{ARGUMENTS}}}]```",
            "I look.",
            ONE,
        ),
        (
            "pythonic",
            "[get_weather(city='Brno {', days=[1, -2.5e3, None,],), f()]",
            "",
            TWO,
        ),
        ("pythonic", ' [ get_weather( city = "Brno {", days=[1, -2.5e3, null] ) ]', "", ONE),
        ("phi4", f"<|tool_call|>[{WEATHER}, {F}]<|/tool_call|>", "", TWO),
        ("phi4", f"<|tool_call|>{WEATHER}<|/tool_call|><|tool_call|>{F}<|/tool_call|>", "", TWO),
        ("granite", f"<|tool_call|>[{WEATHER}, {F}]", "", TWO),
        ("json", f"\n[{WEATHER},\n{F}]", "", TWO),
        (
            "gemma",
            '<|tool_call>call:get_weather{city:<|"|>Brno {<|"|>,days:[1,-2.5e3,null]}<tool_call|>'
            "<|tool_call>call:f{}<tool_call|>",
            "",
            TWO,
        ),
        (
            "functiongemma",
            "I look. <start_function_call>call:get_weather{city:<escape>Brno {<escape>, days : "
            "[1, -2.5e3, None]}<end_function_call>",
            "I look.",
            ONE,
        ),
        # A text without its quotes, and a list that is left open to the last comma.
        (
            "functiongemma",
            "<start_function_call>call:get_weather{<escape>city<escape>:Brno {,days:[1,-2.5e3,null,"
            "],}",
            "",
            ONE,
        ),
        ("llama4", f"<|python_start|>{WEATHER}<|python_end|>", "", ONE),
        ("llama4", WEATHER.replace("arguments", "parameters"), "", ONE),
        (
            "llama4-pythonic",
            "<|python_start|>[get_weather(city='Brno {', days=[1, -2.5e3, None]), f()]"
            "<|python_end|>",
            "",
            TWO,
        ),
        ("llama4-pythonic", '[get_weather(city="Brno {", days=[1, -2.5e3, null])]', "", ONE),
        (
            "cohere",
            '<|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": "get_weather", '
            f'"parameters": {ARGUMENTS}}},\n    {{"tool_call_id": "1", "tool_name": "f", '
            '"parameters": {}}\n]<|END_ACTION|>',
            "",
            TWO,
        ),
        (
            "apertus",
            f'<|tools_prefix|>[{{"get_weather": {ARGUMENTS}}}, {{"f": {{}}}}]<|tools_suffix|>',
            "",
            TWO,
        ),
        ("nemotron", f"<TOOLCALL>[{WEATHER}, {F}]</TOOLCALL>", "", TWO),
        ("hunyuan", f"\n<tool_calls>[{WEATHER},{F}]</tool_calls>", "", TWO),
        (
            "seed",
            "I look.\n<seed:tool_call>\n<function=get_weather>\n<parameter=city>Brno {"
            "</parameter>\n<parameter=days>[1, -2.5e3, null]</parameter>\n</function>\n"
            "</seed:tool_call>",
            "I look.",
            ONE,
        ),
        (
            "step3",
            "I look.<｜tool_calls_begin｜>\n<｜tool_call_begin｜>function<｜tool_sep｜>"
            '<steptml:invoke name="get_weather"><steptml:parameter name="city">Brno {'
            '</steptml:parameter><steptml:parameter name="days">[1, -2.5e3, null]'
            "</steptml:parameter></steptml:invoke>"
            "<｜tool_call_end｜>\n<｜tool_calls_end｜>",
            "I look.",
            ONE,
        ),
        (
            "lfm2",
            "<|tool_call_start|>[get_weather(city='Brno {', days=[1, -2.5e3, None]), f()]"
            "<|tool_call_end|>I look.",
            "I look.",
            TWO,
        ),
        ("json", WEATHER, "", ONE),
    ],
)
def test_calls(
    style: str, text: str, content: str, calls: list[tuple[str, str]], eager: bool
) -> None:
    assert parse([text], style, eager=eager) == ("", content, calls)
    assert parse(list(text), style, eager=eager) == ("", content, calls)
    assert parse([text], style, eager=eager, single=True)[2] == calls[:1]


def test_arguments_come_while_they_are_written() -> None:
    parser = AnswerParser(None, Start.BEGINNING, STYLES["hermes"], TOOLS, eager=True)
    seen = ""
    for i, char in enumerate(text := f"<tool_call>{WEATHER}</tool_call>"):
        seen += "".join(call.arguments for call in parser.push(char).calls)
        if parser.num_calls:
            start = text.index(ARGUMENTS)
            assert seen == text[start : min(i + 1, start + len(ARGUMENTS))]
    assert seen == ARGUMENTS
