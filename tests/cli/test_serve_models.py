"""``penstock serve --models``: what its command line takes, and the real engine behind it."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from support.needs import needs_shared, shared
from support.served import Served, serving

from penstock.cli import serve
from penstock.cli.main import main
from penstock.cli.parser import Parser
from penstock.cli.serve_models import _Source

STORIES = "models/stories260k"


@pytest.fixture
def catalogue(tmp_path: Path) -> Path:
    path = tmp_path / "models.toml"
    path.write_text('[[models]]\nname = "a"\nmodel = "own/a"\nmemory = "2MB"\n')
    return path


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["some/model"], "argument MODEL: it does not go with --models"),
        (["--served-model-name", "x"], "argument --served-model-name: it is one model's"),
        (["--revision", "x"], "argument --revision: it is one model's"),
        (["--chat-template", "x"], "argument --chat-template"),
        (["--role", "decode"], "argument --role"),
        (["--models-memory", "1MB"], "takes 2,000,000 bytes of memory, and all together may take"),
        (["--models-memory", "much"], "not a size: 'much'"),
        (["--kv-cache-bytes", "1GB", "--models", "/nowhere"], "--models /nowhere: No such file"),
    ],
)
def test_what_does_not_go_with_it(
    catalogue: Path, words: list[str], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", "--models", str(catalogue), *words]) == 2
    assert why in capsys.readouterr().err


def test_memory_needs_models(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--models-memory", "1GB"]) == 2
    assert "it needs --models" in capsys.readouterr().err


def test_options_hold_for_all(catalogue: Path) -> None:
    parser = Parser("penstock serve", "")
    serve.add_arguments(parser)
    words = ["--models", str(catalogue), "--threads", "2", "--speculative", "ngram"]
    (entry,) = _Source(parser.parse(words), 10**7).read()
    assert (entry.config.model, entry.config.threads) == ("own/a", 2)
    assert entry.config.speculative is not None
    assert entry.memory_bytes == 2_000_000


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    path = tmp_path_factory.mktemp("catalogue") / "models.toml"
    model = shared(STORIES)
    path.write_text(
        f'memory = "250MB"\n[[models]]\nname = "one"\nmodel = "{model}"\n'
        f'[[models]]\nname = "two"\nmodel = "{model}"\noptions = {{ max_model_len = 64 }}\n'
    )
    words = ("--models", str(path), "--backend", "reference", "--kv-cache-bytes", "8MB")
    with serving(*words) as served:
        yield served


@needs_shared(STORIES)
@pytest.mark.slow
def test_two_models_take_turns_in_the_memory_of_one(served: Served) -> None:
    client = served.client()
    texts = [
        client.completions.create(
            model=name, prompt="Once upon a time", temperature=0, max_tokens=20
        )
        .choices[0]
        .text
        for name in ("one", "two", "one")
    ]
    assert texts[0].startswith(", there was a little girl named Lily")
    assert texts == texts[:1] * 3
    lengths = {each.id: getattr(each, "max_model_len", 64) for each in client.models.list().data}
    assert lengths == {"one": 512, "two": 64}
    served.process.send_signal(signal.SIGHUP)  # passed on by the guardian, which goes on
    url = served.url.removesuffix("/v1")
    assert httpx.get(f"{url}/ready").json()["models"]["one"] == "ready"
    ps = subprocess.run(
        [sys.executable, "-m", "penstock", "ps", url], capture_output=True, text=True
    )
    assert ps.stdout.count("loaded") == 1
