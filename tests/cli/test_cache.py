"""``penstock cache``: prefixes are computed, here or by a server, and found by whoever serves."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.needs import require_native
from support.served import Served, serving
from support.stored_blocks import chain, key, of_kind, place_of_kind

from penstock.api import LLM
from penstock.backends.checksum import crc32c
from penstock.cli.cache_places import folder_and_limit
from penstock.cli.main import main
from penstock.kvstore.blocks import NewBlock
from penstock.kvstore.holdings import Holdings
from penstock.kvstore.pinned_prefix import pin
from penstock.sampling.params import SamplingParams

TEXT = "def area(width, height):\n    return width * height\n\n\n" * 12
MESSAGES = [
    {"role": "system", "content": "You answer in one word. " * 20},
    {"role": "user", "content": "What is the capital of France?"},
]
KEY = "the-admin-key"
SMALL = ["--threads", "1", "--no-artifact", "--kv-cache-bytes", "16000000"]
SHORT = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True)


def said(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> str:
    """What ``penstock cache WORDS`` prints."""
    assert main(["cache", *words]) == code, capsys.readouterr().err
    printed = capsys.readouterr()
    return printed.out if code == 0 else printed.err


def sound_chain() -> list[NewBlock]:
    """A prefix of five blocks, with the checksums that the engine gives them."""
    return [each._replace(checksum=crc32c(each.data)) for each in chain(0, 5)]


def listed(capsys: pytest.CaptureFixture[str], *words: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in said(capsys, "list", *words, "--json").splitlines()]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache") / "kv"


@pytest.fixture(scope="module")
def served(folder: Path) -> Iterator[Served]:
    require_native()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PENSTOCK_ADMIN_KEY", KEY)
        with serving("--kv-disk", f"{folder}:50MB", "--served-model-name", "demo", *SMALL) as one:
            yield one


@pytest.fixture
def key_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_ADMIN_KEY", KEY)


def posted(url: str, body: dict[str, Any]) -> dict[str, Any]:
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {KEY}"}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=60) as answer:
        found: dict[str, Any] = json.load(answer)
        return found


@pytest.mark.slow
@pytest.mark.usefixtures("key_set")
def test_a_server_computes_and_keeps(
    served: Served, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "text").write_text(TEXT)
    (tmp_path / "messages.json").write_text(json.dumps(MESSAGES))
    url = served.url.removesuffix("/v1")
    assert "are pinned" in said(
        capsys, "add", f"{tmp_path}/text", "--url", url, "--label", "a text"
    )
    assert "were pinned before" in said(
        capsys, "add", f"{tmp_path}/text", "--url", url, "--label", "b"
    )
    assert "are pinned" in said(
        capsys, "add", f"{tmp_path}/messages.json", "demo", "--url", url, "--label", "talk"
    )
    pinned = listed(capsys, url, "--pinned")
    assert {each["label"] for each in pinned} == {"a text", "talk"}
    assert all(each["whole"] for each in pinned)
    assert pinned == listed(capsys, str(folder), "--pinned")
    assert "a text" in said(capsys, "list", url)
    # What is pinned is there when all else was forgotten, within the engine's next look.
    posted(f"{url}/admin/cache/clear", {})
    time.sleep(2.5)
    chat = posted(
        f"{url}/v1/chat/completions", {"model": "demo", "messages": MESSAGES, "max_tokens": 1}
    )
    tokens = next(each["tokens"] for each in pinned if each["label"] == "talk")
    assert chat["usage"]["prompt_tokens_details"] == {
        "cached_tokens": tokens,
        "disk_tokens": tokens,
    }
    # Removed, it is found in memory alone, and after another clear not at all.
    assert "are removed" in said(capsys, "rm", url, "talk")
    posted(f"{url}/admin/cache/clear", {})
    time.sleep(2.5)
    chat = posted(
        f"{url}/v1/chat/completions", {"model": "demo", "messages": MESSAGES, "max_tokens": 1}
    )
    assert not chat["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert {each["label"] for each in listed(capsys, url, "--pinned")} == {"a text"}
    assert "is called 'words'" in said(capsys, "rename", url, "a text", "words")
    assert {each["label"] for each in listed(capsys, url, "--pinned")} == {"words"}
    assert "is called 'a text'" in said(capsys, "rename", url, "a text", "words", code=1)


@pytest.mark.slow
def test_a_server_keeps_what_it_is_asked_to(served: Served) -> None:
    """The field is heeded, and so is the word of a dialect, which is not named as ignored then."""
    url = served.url.removesuffix("/v1")
    for fields in ({"cache_keep_s": 60}, {"prompt_cache_retention": "24h"}):
        body = {"model": "demo", "prompt": TEXT, "max_tokens": 1, **fields}
        request = urllib.request.Request(
            f"{url}/v1/completions",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            assert "x-penstock-ignored" not in answer.headers


@pytest.mark.slow
@pytest.mark.usefixtures("key_set")
def test_a_server_refuses_by_name(
    served: Served, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    url = served.url.removesuffix("/v1")
    (tmp_path / "short").write_text("Hi")
    (tmp_path / "empty").write_text("")
    (tmp_path / "bad.json").write_text("[{]")
    (tmp_path / "other.json").write_text('{"a": 1}')
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    for name, why in (
        ("short", "shorter than a block"),
        ("empty", "is empty"),
        ("bad.json", "is no JSON"),
        ("other.json", "has no messages"),
        ("binary", "neither a text"),
        ("nothing", "No such file"),
    ):
        assert why in said(capsys, "add", f"{tmp_path}/{name}", "--url", url, code=1)
    assert "does not exist here" in said(
        capsys, "add", f"{tmp_path}/short", "another", "--url", url, code=1
    )
    assert "control characters" in said(
        capsys, "add", f"{tmp_path}/short", "--url", url, "--label", "a\nb", code=1
    )
    assert "with --kv-disk" in said(
        capsys, "add", f"{tmp_path}/short", "--url", url, "--threads", "1", code=2
    )
    assert "is called 'nobody'" in said(capsys, "rm", url, "nobody", code=1)
    monkeypatch.delenv("PENSTOCK_ADMIN_KEY")
    assert "status 401" in said(capsys, "list", url, code=1)


@pytest.mark.slow
def test_a_prefix_moves_to_another_machine(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    require_native()
    (tmp_path / "text").write_text(TEXT)
    one, other = tmp_path / "one", tmp_path / "other"
    options = ["--kv-disk", f"{one}:50MB", "--label", "text", *SMALL]
    assert "are pinned" in said(capsys, "add", f"{tmp_path}/text", *options)
    (prefix,) = listed(capsys, str(one))
    path = str(tmp_path / "file")
    said(capsys, "export", str(one), "text", path)
    assert "no engine has used" in said(capsys, "import", f"{other}:50MB", path, code=1)
    said(capsys, "import", f"{other}:50MB", path, "--unseen", "--label", "from there")
    (moved,) = listed(capsys, str(other))
    assert moved == {**prefix, "label": "from there", "used_at": moved["used_at"]}
    made: dict[str, Any] = {"threads": 1, "artifact": False, "kv_cache_bytes": 16_000_000}
    with LLM(**made) as llm:
        (expected,) = llm.generate([TEXT], SHORT)
    with LLM(kv_disk=f"{other}:50MB", **made) as llm:
        (output,) = llm.generate([TEXT], SHORT)
    assert output.outputs[0].token_ids == expected.outputs[0].token_ids
    assert output.num_restored_tokens == prefix["tokens"]


def test_folders_are_named_as_kv_disk_has_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = of_kind(tmp_path / "a:5")
    store.write(chain(0, 5))
    store.close()
    for name in ("a:5", "a:5:10GB"):
        assert [each["id"] for each in listed(capsys, f"{tmp_path}/{name}")] == [key(4).hex()]
    assert "there is no folder" in said(capsys, "list", f"{tmp_path}/b", code=1)
    assert said(capsys, "rm", f"{tmp_path}/a:5", key(4).hex()[:9]).startswith(key(4).hex()[:12])
    assert said(capsys, "list", f"{tmp_path}/a:5") == "no prefix is kept there\n"


@pytest.mark.slow
def test_who_is_killed_while_pinning_leaves_whole_prefixes(tmp_path: Path) -> None:
    """And the next one cleans up."""
    store = of_kind(tmp_path / "kv", 40_000_000)
    for first in range(0, 3000, 100):
        store.write(chain(first, 60))
    store.close()
    code = (
        "import sys; from pathlib import Path; from zlib import crc32; sys.path[:0] = sys.argv[3:];"
        "from support.stored_blocks import ABOUT, key, place_of_kind;"
        "from penstock.kvstore.holdings import Holdings;"
        "from penstock.kvstore.pinned_prefix import pin;"
        "root, first = Path(sys.argv[1]), int(sys.argv[2]);"
        "folder = place_of_kind(root, 40_000_000); held = Holdings(folder.path);"
        "print('begun', flush=True);"
        "[pin(folder, held, [key(n) for n in range(f, f + 60)], str(f), crc32)"
        " for f in range(first, first + 1000, 100)]"
    )
    from penstock.kvstore.prefixes import prefixes

    for number in range(6):
        command = [sys.executable, "-c", code, f"{tmp_path}/kv", str(number % 3 * 1000), *sys.path]
        process = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert process.stdout is not None
        assert process.stdout.readline() == b"begun\n"
        time.sleep(0.002 * 3**number)
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        assert all(each.whole for each in prefixes(tmp_path / "kv") if each.pinned)
        store = of_kind(tmp_path / "kv", 40_000_000)
        store.check_integrity()
        store.close()
        assert not list((tmp_path / "kv").rglob(".new-*"))
        assert sum(os.stat(each).st_size for each in tmp_path.rglob("*.kvseg")) <= 40_000_000


def test_files_that_are_no_conversation_are_refused_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A model is not loaded for them."""
    here = ["--kv-disk", f"{tmp_path / 'kv'}:50MB"]
    for text, why in (
        ("[" * 200_000, "is no JSON: it is nested more than 100 levels deep"),
        ('{"messages": [], "tools": 5}', "'tools' of .* must be a list"),
        ('{"messages": [], "chat_template_kwargs": []}', "must be an object"),
        ('{"messages": [], "n": 2}', "'n' of .* needs a server"),
    ):
        (tmp_path / "its.json").write_text(text)
        assert re.search(why, said(capsys, "add", f"{tmp_path}/its.json", *here, code=1))
    assert not (tmp_path / "kv").exists()
    (tmp_path / "text").write_text("Hi")
    template = ["--chat-template", str(tmp_path / "text")]
    assert "--chat-template: it is for computing" in said(
        capsys, "add", f"{tmp_path}/text", *template, code=2
    )


@pytest.mark.slow
def test_a_template_makes_a_prompt_of_messages(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    require_native()
    (tmp_path / "its.json").write_text(json.dumps(MESSAGES))
    (tmp_path / "twice").write_text(
        "{% for m in messages %}{{ m.content + m.content }}{% endfor %}"
    )
    here = ["--kv-disk", f"{tmp_path / 'kv'}:50MB", *SMALL]
    tokens = []
    for more in ([], ["--chat-template", str(tmp_path / "twice")]):
        said(capsys, "add", f"{tmp_path}/its.json", *here, *more)
        tokens.append(max(each["tokens"] for each in listed(capsys, str(tmp_path / "kv"))))
    assert tokens[1] > 1.5 * tokens[0]


def test_sizes_of_folders_do_not_shrink_by_a_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = of_kind(tmp_path / "kv", 1 << 20)
    store.write(sound_chain())
    store.close()
    path, folder = str(tmp_path / "file"), tmp_path / "kv"
    said(capsys, "export", str(folder), key(4).hex(), path)
    said(capsys, "import", f"{folder}:100KB", path)
    assert folder_and_limit(str(folder)) == (folder, 1 << 20)
    assert [each["pinned"] for each in listed(capsys, str(folder))] == [True]
    assert folder_and_limit(f"{folder}:5GB") == (folder, 5 * 10**9)
    assert "is none: write it as 100GB" in said(
        capsys, "import", f"{tmp_path}/new:1XB", path, code=2
    )
    assert "no engine has used" in said(capsys, "import", f"{tmp_path}/new", path, code=2)
    assert "folder is empty" in said(capsys, "list", "", code=2)
    assert "cannot be reached" in said(capsys, "list", "HTTP://127.0.0.1:9", code=1)


def test_a_label_is_given_and_taken_away(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = str(tmp_path / "kv")
    store = of_kind(Path(root))
    store.write(sound_chain())
    store.close()
    folder = place_of_kind(Path(root))
    pin(folder, Holdings(folder.path), [key(n) for n in range(5)], "one", crc32c)
    folder.close()
    assert "is called 'two words'" in said(capsys, "rename", root, "one", "two words")
    assert [each["label"] for each in listed(capsys, root)] == ["two words"]
    assert "has no label" in said(capsys, "rename", root, key(4).hex()[:6], "")
    assert [each["label"] for each in listed(capsys, root)] == [""]
    assert "is called 'one'" in said(capsys, "rename", root, "one", "two", code=1)
    assert "control characters" in said(capsys, "rename", root, key(4).hex(), "a\tb", code=1)
    assert "there is no folder" in said(capsys, "rename", f"{root}/other", "one", "two", code=1)
    for words in (["list"], ["rm", "one"], ["rename", "one", "two"]):
        for option in ("--model", "--api-key-env"):
            why = f"{option}: it is for a server"
            assert why in said(capsys, words[0], root, *words[1:], option, "x", code=2)


def test_names_are_shown_on_a_terminal_without_their_characters(tmp_path: Path) -> None:
    """As escapes, by each command that shows one."""
    root, file = tmp_path / "kv", tmp_path / "file"
    store = of_kind(root)
    store.write(sound_chain())
    store.close()
    folder = place_of_kind(root)
    pin(folder, Holdings(folder.path), [key(n) for n in range(5)], "größe", crc32c)
    folder.close()
    other = tmp_path / "other"
    of_kind(other).close()

    def printed(*words: object) -> str:
        command = [sys.executable, "-m", "penstock", "cache", *map(str, words)]
        environment = {**os.environ, "PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii"}
        run = subprocess.run(command, env=environment, capture_output=True, check=True)
        return run.stdout.decode("ascii")

    assert r"gr\xf6\xdfe" in printed("list", root)
    assert json.loads(printed("list", root, "--json"))["label"] == "größe"
    assert "160 tokens" in printed("export", root, key(4).hex(), file)
    assert "are pinned" in printed("import", other, file)
    assert r"gr\xf6\xdfe: 160 tokens" in printed("rm", other, key(4).hex()[:8])


def test_a_server_without_models_computes_no_prefix(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.cli.cache_add.asked", lambda *_: {"data": []})
    text = tmp_path / "text.txt"
    text.write_text(TEXT)
    assert "the server has no model" in said(capsys, "add", str(text), code=1)
