"""The prompt of ``POST /infill``."""

from __future__ import annotations

from penstock.server.fill import Gap
from penstock.server.llama.protocol import InfillRequest
from penstock.server.serving import Serving


async def infill_tokens(request: InfillRequest, serving: Serving, gap: Gap) -> list[int]:
    """Return the tokens of the prompt. Raises ApiError or RequestError."""
    engine = serving.engine
    extra = [
        (f"{each.filename}\n" if gap.file is not None else "") + f"{each.text}\n"
        for each in request.input_extra
    ]
    texts = [request.input_prefix, request.input_suffix, request.prompt, *extra]
    names = ["input_prefix", "input_suffix", "prompt"]
    names += [f"input_extra[{i}].text" for i in range(len(extra))]
    prefix, suffix, begun, *files = await engine.inputs.encode(
        texts,
        params=names,
        add_special_tokens=False,
        parse_special=False,
        tenant=serving.caller.name,
    )
    before = list(engine.tokenizer.settings.prefix_ids)
    for file in files:
        before += file if gap.file is None else [gap.file, *file]
    return gap.prompt(prefix, suffix, begun, before)
