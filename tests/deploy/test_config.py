"""What files of ``penstock deploy`` say, and what is wrong in them."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.needs import REPOSITORY

from penstock.cli.main import main
from penstock.deploy.config import DeployConfig
from penstock.deploy.tables import Autoscaling, Replicas, Routing
from penstock.deploy.words import SetElsewhereError, serve_words
from penstock.errors import ConfigError

WHOLE = """
name = "my-chat"
model = "models/llama"
revision = "2"
[serve]
max-model-len = 8192
kv_cache_bytes = "2GiB"
enable-prefix-caching = false
ignore-config-field = ["a", "b"]
[replicas]
min = 1
max = 4
cpus = 6
memory = "1.5Gi"
[autoscaling]
slo = ["ttft:500ms", "tpot:50"]
up-after = 5
[routing]
port = 8080
policy = "threshold"
"""


def test_the_page_has_files_that_are_taken_and_names_every_key() -> None:
    page = (REPOSITORY / "docs/deploy.md").read_text()
    blocks = re.findall(r"^```toml\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 2
    for block in blocks:
        DeployConfig.of(tomllib.loads(block))
    tables = {"replicas": Replicas, "autoscaling": Autoscaling, "routing": Routing}
    rows = [line.split("|")[1] for line in page.splitlines() if line.startswith("| `")]
    named = set()
    for row in rows:
        # "`table.one`, `two`": both are of the table.
        keys = re.findall(r"`([a-z_.*]+)`", row)
        table = keys[0].rpartition(".")[0] if keys else ""
        named |= {key if "." in key or not table else f"{table}.{key}" for key in keys}
    for table, struct in tables.items():
        assert {f"{table}.{key}" for key in struct.__struct_fields__} <= named


def test_a_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "fleet.toml"
    path.write_text(WHOLE)
    config = DeployConfig.read(path)
    assert config.words == [
        "models/llama",
        "--max-model-len=8192",
        "--kv-cache-bytes=2GiB",
        "--no-enable-prefix-caching",
        "--ignore-config-field=a",
        "--ignore-config-field=b",
        "--threads=6",
        "--slo=ttft:500ms",
        "--slo=tpot:50",
    ]
    assert (config.replicas.most, config.replicas.scales, config.cpus) == (4, True, 6)
    assert config.replicas.memory_bytes == 3 << 29
    assert config.routing.policy == "threshold"


def test_what_ray_is_given_is_read_as_the_same(tmp_path: Path) -> None:
    path = tmp_path / "fleet.toml"
    path.write_text(WHOLE)
    config = DeployConfig.read(path)
    as_json = msgspec.json.decode(msgspec.json.encode(config.tables))
    assert DeployConfig.of(as_json) == config
    assert DeployConfig().tables == {}
    assert DeployConfig.of({}) == DeployConfig()


@given(
    least=st.integers(1, 9),
    more=st.integers(0, 9),
    sequences=st.floats(0.5, 100),
    policy=st.sampled_from(["cost", "round-robin"]),
    options=st.dictionaries(st.sampled_from(["threads", "max_num_seqs"]), st.integers(1, 99)),
)
def test_tables_say_what_they_were_made_of(
    least: int, more: int, sequences: float, policy: str, options: dict[str, Any]
) -> None:
    said = {
        "serve": options,
        "replicas": {"min": least, "max": least + more, "cpus": 2},
        "autoscaling": {"sequences": sequences},
        "routing": {"policy": policy},
    }
    config = DeployConfig.of(said)
    assert DeployConfig.of(config.tables) == config


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[replicas]\nmix = 3", "replicas.mix: there is no such key; there are min, max"),
        ("nme = 3", "nme: there is no such key; there are name, model"),
        ('[replicas]\nmin = "3"', "replicas.min: expected a whole number, got a text"),
        ("replicas = 3", "replicas: expected a table, got a whole number"),
        ("[replicas]\nmin = -1", "replicas.min: expected a whole number >= 0"),
        ("[replicas]\nmin = 3\nmax = 2\ncpus = 1", "replicas.max: 2 is less than"),
        ("[replicas]\nmax = 2", "replicas.cpus: say how many CPUs"),
        ('[replicas]\nmemory = "8GB"', "replicas.memory: '8GB' is no size, such as '8Gi'"),
        ('[autoscaling]\nslo = ["ttft"]', "autoscaling.slo: ttft: write MEASURE:TIME"),
        ('[autoscaling]\nslo = ["ttst:1s"]', "autoscaling.slo: a server knows ttft, tpot"),
        ('[autoscaling]\nslo = "x"', "autoscaling.slo: expected a list, got a text"),
        ('[routing]\npolicy = "best"', "routing.policy: 'best' is none; there are cost"),
        ("[routing]\nport = 99999", "routing.port: expected a whole number <= 65535"),
        ('[routing]\ntls-cert = "a"', "HTTPS needs both"),
        ("[serve]\nport = 3", "serve.port: use routing.port"),
        ("[serve]\nadmin-key-file = 'a'", "serve.admin-key-file: each server has"),
        ("[serve]\nthreads = {a = 1}", "serve.threads: write a text, a number"),
        ('name = "Chat"', "name: 'Chat' must be lower-case"),
        ('name = "1chat"', "of which the first is a letter"),
        ('model = ""', "model: '' is no model; name a folder"),
        ('model = "--help"', "model: '--help' is no model"),
        ("[replicas]\nmemory = '1000Ti'", "replicas.memory: '1000Ti' is more than Ray can count"),
        ("[replicas]\ncpus = inf", "replicas.cpus: inf is no finite number"),
        ("[autoscaling]\nwindow = nan", "autoscaling.window: nan is no finite number"),
        ('[serve]\ndtype = ["a\\u0000"]', "serve.dtype: 'a\\x00' has a null character"),
        (f'[replicas]\nmemory = "{"9" * 400}Ti"', "is no size, such as '8Gi'"),
        ("[serve", "is no TOML file"),
    ],
)
def test_what_is_wrong_names_the_file_the_key_and_the_fix(
    text: str, told: str, tmp_path: Path
) -> None:
    path = tmp_path / "fleet.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        DeployConfig.read(path)
    assert str(caught.value).startswith(str(path))
    assert told in str(caught.value)


def test_options_that_no_server_has_are_found_before_anything_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "fleet.toml"
    for text, told in (
        ("thread = 3", "serve.thread: unknown option --thread; did you mean --threads?"),
        ('max-model-len = "many"', "serve.max-model-len: argument --max-model-len: not a number"),
        ('dtype = "f3"', "serve.dtype: argument --dtype: invalid choice"),
    ):
        path.write_text(f"[serve]\n{text}\n")
        assert main(["deploy", str(path)]) == 2
        error = capsys.readouterr().err
        assert error.startswith(f"penstock: error: {path}: {told}"), error


def test_words_of_options() -> None:
    assert serve_words(None, {"a_b": True, "c": False, "d": 1.5, "e": "-x"}) == [
        *("--a-b", "--no-c", "--d=1.5", "--e=-x"),
    ]
    with pytest.raises(SetElsewhereError, match=r"routing\.host"):
        serve_words("m", {"host": "0.0.0.0"})


def test_more_replicas_at_most_do_not_change_what_a_replica_is_given() -> None:
    few = DeployConfig.of({"replicas": {"cpus": 1}})
    many = DeployConfig.of({"replicas": {"cpus": 1, "max": 9}, "routing": {"port": 1}})
    assert few.words == many.words == ["--threads=1"]
