"""Engines whose blocks are not handed over yet say so before they read any weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.families import edited
from support.handed import LLAMA, apart, config, folder_of
from support.needs import needs_native

from penstock.engine.cached_blocks import check_exchange
from penstock.engine.loader import plan_engine
from penstock.errors import ConfigError
from penstock.handover_config import DecodeRole, PrefillRole, Role
from penstock.peers.address import Address

pytestmark = needs_native
HERE = Address("127.0.0.1", 1)
ROLES: list[Role] = [PrefillRole(listen=Address("127.0.0.1", 0)), DecodeRole(prefill=(HERE,))]
MAMBA: dict[str, Any] = edited("mamba2", num_hidden_layers=2, time_step_limit=[0.0, 1e9])


@pytest.mark.parametrize("role", ROLES, ids=["prefill", "decode"])
@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        (MAMBA, {}, "Mamba2ForCausalLM has layers that keep a state .* not copied yet"),
        (LLAMA, {"enable_prefix_caching": False}, "leave prefix caching on"),
        (LLAMA, {"tensor_parallel": 2, "threads": 2}, "several ranks .* tensor_parallel 1"),
        (LLAMA, {"pipeline_parallel": 2, "threads": 2}, "several stages .* pipeline_parallel 1"),
    ],
    ids=["states", "no prefixes", "ranks", "stages"],
)
def test_what_is_not_handed_over_yet(
    role: Role, model: dict[str, Any], options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    asked = config(folder_of(tmp_path, model), kv_cache_bytes=None, **options)
    with pytest.raises(ConfigError, match=message):
        apart(asked, role)


def test_gpus_are_refused_by_name(tmp_path: Path) -> None:
    plan = plan_engine(config(folder_of(tmp_path, LLAMA))).plan
    with pytest.raises(ConfigError, match=r"the cuda backend.* choose --backend cpu"):
        check_exchange(plan, "cuda", 1, 1, True, "--role decode")


@pytest.mark.parametrize(
    "role",
    [
        PrefillRole(listen=Address("0.0.0.0", 0)),
        DecodeRole(prefill=(Address("10.0.0.1", 81),)),
        DecodeRole(prefill=()),
    ],
)
def test_roles_are_checked_by_engines_too(role: Role, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"secret|needs a prefill engine"):
        apart(config(folder_of(tmp_path, LLAMA)), role)
