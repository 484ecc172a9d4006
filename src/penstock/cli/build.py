"""Pack a model's weights ahead of time, so that the first start is as fast as the second.

  penstock build path/to/checkpoint --quantization int4
  penstock build --list
  penstock build --remove llama-3.2-1b-int4-g64-amx-25d40e076b3f

Writes an engine artifact: the weights as this machine's kernels read them. A later command with
the same model and options restores them instead of reading, rounding and packing the checkpoint.
An artifact that is there already is verified, and written again if it is damaged. With
--max-input-len and --max-output-len it is built for such requests: later commands that name no
length refuse longer ones, and reserve memory for these alone.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from penstock.cli.options import RARE_ENGINE, add_engine_arguments, engine_config, option_name
from penstock.cli.parser import UsageError
from penstock.config import EngineConfig
from penstock.errors import ConfigError

RARE = RARE_ENGINE


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_engine_arguments(parser, skip={"artifact"})
    group = parser.add_argument_group("kept artifacts").add_mutually_exclusive_group()
    group.add_argument("--list", action="store_true", help="show what is kept, and build nothing")
    group.add_argument(
        "--remove",
        metavar="KEY",
        help="remove the artifact of this name, or of the digest that its name ends in, or all",
    )


def run(args: argparse.Namespace) -> int:
    if args.list or args.remove is not None:
        option = "--list" if args.list else "--remove"
        if args.model:
            raise UsageError(f"argument {option}: takes no model; leave {args.model!r} out")
        given = [name for name in EngineConfig.__struct_fields__ if hasattr(args, name)]
        for name in given:
            if name not in ("model", "artifact_dir"):
                raise UsageError(f"argument {option}: takes no {option_name(name)}; leave it out")
        root = _root(args)
        return _list(root) if args.list else _remove(root, args.remove)
    from penstock.backends.registry import backend
    from penstock.engine.ipc.startup import Ledger, describe, process_started_at
    from penstock.engine.loader import load, plan_engine

    config = engine_config(args)
    if config.backend != "auto" and not backend(config.backend).keeps_weights:
        raise UsageError(
            f"argument --backend: the {config.backend} backend packs no weights to keep"
        )
    ledger = Ledger(process_started_at())
    ledger.mark("python")
    engine_plan = plan_engine(config, as_built=False)
    if not backend(engine_plan.config.backend).keeps_weights:
        raise ConfigError(
            f"auto chooses the {engine_plan.config.backend} backend here, which packs no weights "
            "to keep; build for the CPU with --backend cpu"
        )
    ledger.mark("config")
    executor = load(engine_plan, ledger.mark, _say, keeping="always")
    executor.close()
    total = sum(phase.seconds for phase in ledger.phases)
    print(describe(ledger.phases, total))
    return 0


def _say(level: int, text: str) -> None:
    print(text, flush=True)


def _root(args: argparse.Namespace) -> Path:
    from penstock.artifact.root import default_root

    config = engine_config(args)
    if config.artifact_dir == "":
        raise UsageError("argument --artifact-dir: is empty; name a folder")
    root = Path(config.artifact_dir).expanduser() if config.artifact_dir else default_root()
    if root is None:
        raise UsageError("there is no home folder; name a folder with --artifact-dir")
    return root


def _list(root: Path) -> int:
    from penstock.artifact.files import size
    from penstock.artifact.store import ArtifactStore
    from penstock.artifact.tuned import decode_tunings
    from penstock.errors import ArtifactError

    entries = ArtifactStore(root).entries()
    for entry in entries:
        print(f"{entry.name}  {size(entry.bytes)}")
        manifest = entry.manifest
        if manifest is None:
            print(f"  {entry.problem}")
            continue
        key = manifest.key
        scheme = key.dtype if key.linear == "none" else f"{key.linear}, head {key.head}"
        print(f"  {manifest.model_path}")
        print(f"  {scheme}; {key.isa}, layout {key.layout}, penstock {key.penstock};", end=" ")
        print(f"written {manifest.created}")
        if manifest.lengths is not None:
            print(f"  built for {manifest.lengths}")
        try:
            tunings = decode_tunings(manifest.tuned)
        except ArtifactError as error:
            print(f"  {error}")
            continue
        for tuning in tunings:
            print(f"  tuned {tuning.summary()}")
            for line in tuning.details():
                print(f"    {line}")
    total = sum(entry.bytes for entry in entries)
    plural = "" if len(entries) == 1 else "s"
    print(f"{len(entries)} engine artifact{plural}, {size(total)}, in {root}")
    return 0


def _remove(root: Path, name: str) -> int:
    from penstock.artifact.files import size
    from penstock.artifact.store import ArtifactStore

    store = ArtifactStore(root)
    store.remove_leftovers()
    names = [entry.name for entry in store.entries()] if name == "all" else [name]
    for each in names:
        entry = store.remove(each)
        print(f"removed {entry.name}, {size(entry.bytes)}")
    if not names:
        print(f"there are no engine artifacts in {root}")
    return 0
