"""Several processes at one folder, and processes that die at work."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.artifact_engines import prompt, start

from penstock import demo_model_path
from penstock.artifact.store import ArtifactStore
from penstock.backends.registry import backend
from penstock.config import EngineConfig
from penstock.engine.loader import plan_engine
from penstock.interface.executor import Limits


def build(model: Path, root: Path, *options: str, **popen: Any) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "penstock", "build", str(model), "--load-format", "dummy"]
    command += ["--artifact-dir", str(root), "--threads", "1", *options]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, **popen)


def finish(process: subprocess.Popen[str]) -> str:
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    return out


@pytest.mark.slow
def test_builders_of_one_artifact_at_once(configure: Any, tmp_path: Path) -> None:
    """All succeed, one artifact is there, and it is right."""
    model, root = configure(hidden_size=512, intermediate_size=2048), tmp_path / "engines"
    builders = [build(model, root) for _ in range(4)]
    out = [finish(builder) for builder in builders]
    assert sum("wrote " in text for text in out) >= 1
    assert all(any(w in text for w in ("wrote ", "written ", "restored ")) for text in out), out
    (entry,) = ArtifactStore(root).entries()
    assert os.listdir(root) == [entry.name]
    restored = start(model, root)
    assert restored.restored
    assert restored.logits == start(model, None, "never", artifact=False).logits


DIE = """
import os, signal, sys
from penstock.artifact import store
from penstock.cli.main import main
real = store.{function}
def die(*args):
    {before}
    os.kill(os.getpid(), signal.SIGKILL)
store.{function} = die
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.slow
@pytest.mark.thinned(3)
@pytest.mark.parametrize(
    ("function", "before"),
    [
        ("write_weights", "(args[0] / 'weights.bin').write_bytes(b'half')"),
        ("write_manifest", "pass"),
        ("sync_folder", "real(*args)"),
    ],
    ids=["in the weights", "before the manifest", "before the rename"],
)
def test_a_builder_that_is_killed(
    configure: Any, tmp_path: Path, function: str, before: str
) -> None:
    model, root = configure(), tmp_path / "engines"
    code = DIE.format(function=function, before=before)
    options = ["build", str(model), "--load-format", "dummy", "--artifact-dir", str(root)]
    done = subprocess.run([sys.executable, "-c", code, *options], capture_output=True, timeout=120)
    assert done.returncode == -signal.SIGKILL, done.stderr
    left = sorted(os.listdir(root))
    assert [name.rpartition(".")[2] for name in left] == ["lock", "partial"]
    assert ArtifactStore(root).entries() == []
    again = start(model, root)
    assert again.phases[-1] == "keep artifact"
    (entry,) = ArtifactStore(root).entries()
    assert os.listdir(root) == [entry.name]
    assert start(model, root).logits == again.logits


@pytest.mark.slow
def test_a_killed_replacement_leaves_no_damage(configure: Any, tmp_path: Path) -> None:
    """Killed between taking a damaged artifact away and putting the new one in its place."""
    model, root = configure(), tmp_path / "engines"
    good = start(model, root)
    (name,) = os.listdir(root)
    with (root / name / "weights.bin").open("r+b") as file:
        file.write(b"damage")
    before = "if not (args[0].suffix == '.discarded' and args[0].exists()): return real(*args)"
    code = DIE.format(function="remove_tree", before=before)
    options = ["build", str(model), "--load-format", "dummy", "--artifact-dir", str(root)]
    done = subprocess.run([sys.executable, "-c", code, *options], capture_output=True, timeout=120)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert sorted(n.rpartition(".")[2] for n in os.listdir(root)) == [
        "discarded",
        "lock",
        "partial",
    ]
    assert start(model, root).logits == good.logits
    assert os.listdir(root) == [name]
    assert start(model, root).restored


@pytest.mark.slow
def test_a_builder_waits_for_one_that_is_killed(configure: Any, tmp_path: Path) -> None:
    """The lock goes to the next when its owner dies, not before."""
    model, root = configure(), tmp_path / "engines"
    start(model, root)
    (name,) = os.listdir(root)
    ArtifactStore(root).remove(name)
    code = (
        "import sys, time; from pathlib import Path; from penstock.artifact.lock import locked\n"
        "with locked(Path(sys.argv[1]), wait=False): print('held', flush=True); time.sleep(120)"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", code, str(root / f"{name}.lock")],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    builder = build(model, root, env={**os.environ, "PYTHONUNBUFFERED": "1"})
    assert builder.stdout is not None
    said = builder.stdout.readline()
    assert said == "another process is writing this artifact: waiting for it\n"
    with pytest.raises(subprocess.TimeoutExpired):
        builder.wait(0.5)
    assert ArtifactStore(root).entries() == []
    holder.kill()
    holder.wait()
    assert finish(builder).startswith("wrote ")
    assert os.listdir(root) == [name]


def test_a_reader_goes_on_while_its_artifact_is_removed(configure: Any, tmp_path: Path) -> None:
    model, root = configure(), tmp_path / "engines"
    good = start(model, root)
    store = ArtifactStore(root)
    (entry,) = store.entries()
    assert entry.manifest is not None
    artifact = store.find(entry.manifest.key)
    assert artifact is not None
    store.remove(entry.name)
    engine_plan = plan_engine(EngineConfig(model=str(model), load_format="dummy"))
    executor = backend("cpu").bind(engine_plan.plan, artifact, Limits(8, 64, 64, 4, 1))
    assert executor.run(prompt([3, 1, 4, 1, 5, 9, 2, 6])).logits.tobytes() == good.logits
    executor.close()
    artifact.close()


ROOMY = """
import os

def statvfs(path, found=os.statvfs):
    fields = list(found(path))
    fields[3] = fields[4] = fields[2]
    return os.statvfs_result(fields)

os.statvfs = statvfs
"""
"""What makes all of a disk free for a process and for those that it starts."""


def serve(root: Path) -> list[str]:
    """What ``penstock serve`` prints for the demo model until it is ready, then told to stop. The
    disk that it sees is empty: else a full one would keep it from writing an artifact."""
    startup = root.parent / "startup"
    startup.mkdir(exist_ok=True)
    (startup / "sitecustomize.py").write_text(ROOMY)
    path = os.pathsep.join(filter(None, [str(startup), os.environ.get("PYTHONPATH")]))
    command = [sys.executable, "-m", "penstock", "serve", "--port", "0", "--threads", "1"]
    command += ["--artifact-dir", str(root)]
    environment = {**os.environ, "PYTHONPATH": path}
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    assert server.stdout is not None
    lines = [server.stdout.readline()]
    while lines[-1] and not lines[-1].startswith("ready in "):
        lines.append(server.stdout.readline())
    server.send_signal(signal.SIGTERM)
    assert server.wait(120) == 0
    server.stdout.close()
    return lines


@pytest.mark.slow
def test_a_server_says_what_it_started_from(tmp_path: Path) -> None:
    root = tmp_path / "engines"
    assert not any(str(root) in line for line in serve(root))
    assert not root.exists()
    start(demo_model_path(), root, load_format="auto")
    (folder,) = root.glob("*-*")
    *lines, ready = serve(root)
    restored = re.compile(rf"  restored [\d,.]+ (GB|bytes) from {folder}\n")
    assert any(map(restored.fullmatch, lines))
    assert ", restore weights " in ready
    assert "pack weights" not in ready
    os.truncate(folder / "weights.bin", 1000)
    *lines, ready = serve(root)
    assert any("weights.bin has 1,000 bytes of" in line for line in lines)
    assert any(line.startswith("  wrote ") for line in lines)
    assert ", pack weights " in ready
    assert ", keep artifact " in ready
