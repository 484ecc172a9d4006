"""Catalogues of files and folders, and what is said of those that cannot be used."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.errors import ConfigError
from penstock.repository.catalogue import Catalogue
from penstock.repository.reading import read_catalogue, seconds


def size(text: str) -> int:
    if not text.endswith("MB"):
        raise ConfigError(f"not a size: {text!r}")
    return int(text[:-2]) * 10**6


def read(tmp_path: Path, text: str) -> Catalogue:
    path = tmp_path / "models.toml"
    path.write_text(text)
    return read_catalogue(path, {"threads": 2, "kv_cache_bytes": 7}, size)


def test_a_file(tmp_path: Path) -> None:
    (tmp_path / "tiny").mkdir()
    found = read(
        tmp_path,
        """
        memory = "900MB"
        default = "small"

        [[models]]
        name = "tiny"
        model = "tiny"
        aliases = ["small"]
        memory = 5
        load = "start"
        keep_alive = "5m"
        options = { kv_cache_bytes = "64MB", max_model_len = 128 }

        [[models]]
        name = "chat"
        versions = { 9 = "owner/nine", 10 = "owner/ten:Q4_0", draft = "owner/draft" }
        """,
    )
    assert (found.memory_bytes, found.usual) == (900 * 10**6, found.entries[0])
    tiny, nine, ten, draft = found
    assert (tiny.name, tiny.memory_bytes, tiny.at_start, tiny.keep_alive_s) == (
        "tiny",
        5,
        True,
        300,
    )
    config = tiny.config
    assert (config.model, config.threads) == (str(tmp_path / "tiny"), 2)
    assert (config.kv_cache_bytes, config.max_model_len) == (64 * 10**6, 128)
    assert (nine.name, nine.config.model, nine.config.kv_cache_bytes) == ("chat:9", "owner/nine", 7)
    assert (ten.model, ten.version, ten.names) == ("chat", "10", ("chat:10", "chat"))
    assert (found.find("chat"), found.find("small:latest")) == (ten, tiny)
    assert found.version("chat", "draft") is draft
    assert found.version("tiny", "1") is tiny
    assert found.version("tiny", "2") is None
    assert found.find("nobody") is None


def test_adapters_are_names_of_their_model(tmp_path: Path) -> None:
    (tmp_path / "sql").mkdir()
    found = read(
        tmp_path,
        """
        [[models]]
        name = "tiny"
        model = "owner/tiny"
        adapters = { sql = "sql", notes = "/elsewhere/notes" }
        """,
    )
    (tiny,) = found
    assert tiny.adapters == {"sql": str(tmp_path / "sql"), "notes": "/elsewhere/notes"}
    assert tiny.config.lora_modules == (f"sql={tmp_path / 'sql'}", "notes=/elsewhere/notes")
    assert (found.adapted("notes"), found.adapted("tiny")) == (tiny, None)
    assert found.find("sql") is None


def test_a_folder(tmp_path: Path) -> None:
    for name in ("one", "many/2", "many/10", "notes", ".hidden"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("one", "many/2", "many/10", ".hidden"):
        (tmp_path / name / "config.json").touch()
    (tmp_path / "small.Q4_0.gguf").touch()
    found = read_catalogue(tmp_path, {}, size)
    assert [entry.names for entry in found] == [
        ("many:2",),
        ("many:10", "many"),
        ("one",),
        ("small.Q4_0",),
    ]
    assert found.usual is None
    assert found.entries[3].config.model == str(tmp_path / "small.Q4_0.gguf")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("models = []", "has no models"),
        ("[[models]]\nname = 'a'\n", "needs either model .* or versions"),
        ("[[models]]\nname = 'a'\nmodel = 'm'\nversions = {1 = 'm'}", "needs either"),
        ("[[models]]\nname = 'a'\nmodel = ''", "needs either"),
        ("[[models]]\nname = 'a'\nversions = {1 = ''}", "needs either"),
        ("[[models]]\nname = ' '\nmodel = 'm'", "cannot be a name"),
        ("[[models]]\nname = 'a'\nmodell = 'm'", "unknown field `modell` - at `.*models"),
        ("[[models]]\nname = 'a'\nmodel = 'm'\nmemory = '2 apples'", "memory of 'a': not a size"),
        ("[[models]]\nname = 'a'\nmodel = 'm'\nkeep_alive = 'soon'", "keep_alive: not a time"),
        ("[[models]]\nname = 'a'\nmodel = 'm'\nkeep_alive = nan", "keep_alive: not a time: nan"),
        ("[[models]]\nname = 'a'\nmodel = 'm'\noptions = {thread = 1}", "no option 'thread'"),
        ("[[models]]\nname = 'a'\nmodel = 'm'\noptions = {dtype = 'f1'}", "'f1'"),
        ("[[models]]\nname = 'a'\nversions = {1 = 'm'}\ndefault_version = '2'", "none of its ver"),
        ("[[models]]\nname = 'a'\nversions = {'x/y' = 'm'}", "cannot be the name of a version"),
        ("default = 'b'\n[[models]]\nname = 'a'\nmodel = 'm'", "default model 'b' is none of a"),
        ("memory = 0\n[[models]]\nname = 'a'\nmodel = 'm'", "memory must be more than 0"),
        ("[[models]", "is no TOML"),
        ("", "has no models; write"),
        (
            "[[models]]\nname = 'a'\nmodel = 'm'\noptions = {lora_modules = ['s=p']}",
            "write adapters = { NAME = PATH }",
        ),
        ("[[models]]\nname = 'a'\nversions = {1 = 'm'}\nadapters = {s = 'p'}", "an entry of its"),
        ("[[models]]\nname = 'a'\nmodel = 'm'\nadapters = {'s=1' = 'p'}", "name of an adapter"),
        ("[[models]]\nname = 'a'\nmodel = 'm'\nadapters = {a = 'p'}", "the name 'a' is used twice"),
        (
            "default = 's'\n[[models]]\nname = 'a'\nmodel = 'm'\nadapters = {s = 'p'}",
            "default model 's' is none of a",
        ),
        (
            "[[models]]\nname = 'a'\nmodel = 'm'\n[[models]]\nname = 'b'\nmodel = 'm'\n"
            "aliases = ['a']",
            "the name 'a' is used twice, by 'a' and by 'b'",
        ),
    ],
)
def test_what_cannot_be_used(tmp_path: Path, text: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        read(tmp_path, text)


def test_a_path_that_has_none(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no folder there holds a config\.json"):
        read_catalogue(tmp_path, {}, size)
    with pytest.raises(ConfigError, match="No such file"):
        read_catalogue(tmp_path / "nothing", {}, size)


def test_times() -> None:
    assert [seconds(each, "") for each in ("30s", "1.5h", "7", 2.5, -1, "-1s")] == [
        *(30, 5400, 7, 2.5),
        *(None, None),
    ]
    assert [seconds(each, "") for each in (10**400, "9" * 400 + "s", float("inf"))] == [None] * 3
