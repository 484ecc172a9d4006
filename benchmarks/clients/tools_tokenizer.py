"""The demo model's tokenizer with a chat template that shows tools, as Hermes models have it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from penstock import demo_model_path

TEMPLATE = (
    "{{- bos_token }}{% for tool in tools or [] %}# {{ tool | tojson }}\n{% endfor %}"
    "{% for m in messages %}# {{ m.content | replace('\\n', '\\n# ') }}\n"
    "{% for call in m.tool_calls or [] %}"
    '<tool_call>{"name": "{{ call.function.name }}", "arguments": '
    "{{ call.function.arguments | tojson }}}</tool_call>\n"
    "{% endfor %}{% endfor %}"
)


def tools_tokenizer(folder: Path) -> Path:
    """Write it to ``folder``, and return that."""
    folder.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(demo_model_path() / name, folder)
    file = folder / "tokenizer_config.json"
    config = json.loads(file.read_text())
    file.write_text(json.dumps({**config, "chat_template": TEMPLATE}))
    return folder
