"""``penstock``: find the command, run it, turn errors into one line and an exit code.

Exit codes: 0 done, 1 the work failed, 2 the command line or configuration cannot be honoured,
130 interrupted, 141 the reader of our output went away. A command's module, and with it
everything heavy, is imported only when that command runs.
"""

from __future__ import annotations

import errno
import importlib
import os
import sys
from collections.abc import Callable, Sequence
from typing import NamedTuple

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141

_UNWRITTEN = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""What writing fails with where there is no room. Errors of files have their names; only those of
standard output have none."""


class Command(NamedTuple):
    """``penstock WORDS``. The module has ``add_arguments(parser)`` and ``run(args) -> int``, and
    perhaps ``RARE``, the options that ``--help`` leaves out."""

    words: tuple[str, ...]
    module: str
    summary: str


COMMANDS = (
    Command(("chat",), "chat", "talk to a model in the terminal"),
    Command(("generate",), "generate", "complete prompts on the command line"),
    Command(("serve",), "serve", "serve a model over the OpenAI API"),
    Command(("pull",), "pull", "download a model of the hub"),
    Command(("list",), "list_models", "show the models that were downloaded"),
    Command(("rm",), "remove", "delete models that were downloaded"),
    Command(("ps",), "ps", "show the models that a server has loaded"),
    Command(("cache", "add"), "cache_add", "compute a prefix, and keep it on disk for good"),
    Command(("cache", "list"), "cache_list", "show the prefixes that are kept on disk"),
    Command(("cache", "rm"), "cache_remove", "remove prefixes from disk"),
    Command(("cache", "rename"), "cache_rename", "give a pinned prefix another label"),
    Command(("cache", "export"), "cache_export", "write a prefix to a file, for another machine"),
    Command(("cache", "import"), "cache_import", "pin a prefix of such a file"),
    Command(("route",), "route", "route requests to several servers, by their caches and loads"),
    Command(("deploy",), "deploy", "run a fleet of servers on Ray, which scales and replaces them"),
    Command(("stage",), "stage", "run a part of a model's layers for an engine elsewhere"),
    Command(("convert",), "convert", "write a model to a GGUF file, quantized or not"),
    Command(("quantize",), "quantize", "quantize a checkpoint, for this engine and others"),
    Command(("build",), "build", "pack a model's weights ahead, for fast starts"),
    Command(("explain",), "explain", "show what a model runs as on this machine, and why"),
    Command(("size",), "size", "say what a model needs to serve a load, and what that costs"),
    Command(("observe",), "observe", "show the workload that a server sees, and export it"),
    Command(("simulate",), "simulate", "play a trace against modelled servers, without the model"),
    Command(("calibrate",), "calibrate", "measure a model and its server here, to simulate them"),
    Command(("tune",), "tune", "find options for a model, this machine and a load"),
    Command(("train-heads",), "train_heads", "train Medusa or EAGLE heads for a model"),
    Command(("eval", "perplexity"), "eval_perplexity", "measure how well a model predicts a text"),
    Command(("eval", "kl"), "eval_kl", "compare a model's predictions with those of a base"),
    Command(
        ("eval", "agreement"),
        "eval_agreement",
        "count for how long a model writes the same as a base",
    ),
    Command(("bench", "latency"), "bench_latency", "time the steps of one fixed batch"),
    Command(("bench", "serve"), "bench_serve", "load a server and time its answers"),
    Command(("bench", "compare"), "bench_compare", "what differs between two load tests"),
    Command(("bench", "report"), "bench_report", "plots and one HTML page of load tests"),
    Command(("bench", "spec"), "bench_spec", "time speculation against plain decoding"),
    Command(("bench", "throughput"), "bench_throughput", "time many requests offered at once"),
    Command(
        ("bench", "replay", "azure"),
        "bench_replay_azure",
        "replay a request trace with in-flight and with static batching",
    ),
    Command(
        ("bench", "replay", "mooncake"),
        "bench_replay_mooncake",
        "prefix-cache hit rate of a trace by cache size",
    ),
    Command(("completion",), "completion", "print a script that completes commands in a shell"),
)

_GROUPS: dict[tuple[str, ...], str] = {
    (): "Serve large language models on this machine.",
    ("bench",): "Measure how fast models are: engines, servers, and the machine beside them.",
    ("bench", "replay"): "Replay recorded traces of requests.",
    ("cache",): "Prefixes that --kv-disk keeps: which there are, and those that stay.",
    ("eval",): "Measure how well models predict.",
}
"""What the commands have in common that begin with these words."""

_ELSEWHERE = {
    "help": "see 'penstock --help', or 'penstock COMMAND --help'",
    "run": "'penstock chat MODEL' talks to a model, 'penstock generate MODEL' completes a prompt",
}
"""Commands of other programs for models, and what does the same."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    return outcome(lambda: _dispatch(words), debugging("--debug" in words))


def debugging(asked: bool) -> bool:
    """Whether errors are to be raised with their traceback."""
    return asked or os.environ.get("PENSTOCK_DEBUG", "") not in ("", "0")


def outcome(work: Callable[[], int], debug: bool) -> int:
    """The exit code of a command that does ``work``; its error is printed as one line."""
    try:
        code = _finished(work)
        if sys.stdout is not None:  # as it is where a shell has closed it
            sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        drop_output()
        return EXIT_BROKEN_PIPE
    except Exception as error:
        full = isinstance(error, OSError) and error.filename is None and error.errno in _UNWRITTEN
        if debug and not full:
            raise
        if full:
            drop_output()
        message, code = _describe(error)
        _say_error(message)
        return code


def _say_error(message: str) -> None:
    from penstock.terminal import harmless

    # A server's words may be part of it.
    print(harmless(f"penstock: error: {message}", sys.stderr), file=sys.stderr)


def _finished(work: Callable[[], int]) -> int:
    try:
        return work()
    except SystemExit as stop:  # argparse after --help
        return stop.code if isinstance(stop.code, int) else 0


def drop_output() -> None:
    """Throw away what was not written: the interpreter flushes stdout once more at exit, and would
    complain."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _dispatch(words: list[str]) -> int:
    if words[:1] in (["--version"], ["-V"]):
        from penstock.version import __version__

        print(f"penstock {__version__}")
        return 0
    path: tuple[str, ...] = ()
    for word in words:
        if word.startswith("-") or not any(c.words[: len(path)] == path for c in COMMANDS):
            break
        command = next((c for c in COMMANDS if c.words == (*path, word)), None)
        if command is not None:
            return _run(command, words[len(command.words) :])
        if not any(c.words[: len(path) + 1] == (*path, word) for c in COMMANDS):
            break
        path = (*path, word)
    rest = words[len(path) :]
    if rest and rest[0] in ("-h", "--help"):
        print(_usage(path))
        return 0
    if not rest:
        print(_usage(path), file=sys.stderr)
        return EXIT_USAGE
    from penstock.cli.parser import UsageError, suggestion

    known = {c.words[len(path)] for c in COMMANDS if c.words[: len(path)] == path}
    kind = "option" if rest[0].startswith("-") else "command"
    prog = " ".join(("penstock", *path))
    hint = (
        (_ELSEWHERE.get(rest[0]) if not path else None)
        or suggestion(rest[0], sorted(known))
        or f"see '{prog} --help'"
    )
    raise UsageError(f"unknown {kind} {rest[0]!r} of '{prog}'; {hint}")


def _run(command: Command, argv: list[str]) -> int:
    from penstock.collector import uncollected

    with uncollected():
        from penstock.cli.parser import Parser

        module = importlib.import_module(f"penstock.cli.{command.module}")
    name = "penstock " + " ".join(command.words)
    parser = Parser(name, module.__doc__ or command.summary, getattr(module, "RARE", ()))
    module.add_arguments(parser)
    code: int = module.run(parser.parse(argv))
    return code


def _usage(path: tuple[str, ...]) -> str:
    commands = [c for c in COMMANDS if c.words[: len(path)] == path]
    width = max(len(" ".join(c.words)) for c in commands)
    lines = [
        f"usage: {' '.join(('penstock', *path))} COMMAND [OPTION ...]",
        "",
        _GROUPS[path],
        "",
        "commands:",
        *(f"  {' '.join(c.words):<{width}}  {c.summary}" for c in commands),
        "",
        "'penstock COMMAND --help' lists a command's options; 'penstock -V' shows the version.",
    ]
    return "\n".join(lines)


def _describe(error: Exception) -> tuple[str, int]:
    """One line for ``error`` and the exit code."""
    from penstock.errors import ConfigError, PenstockError

    line = " ".join(str(error).split())
    if isinstance(error, PenstockError):
        return line, EXIT_USAGE if isinstance(error, ConfigError) else EXIT_FAILED
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}", EXIT_FAILED
    if isinstance(error, OSError) and error.errno in _UNWRITTEN:
        return f"standard output cannot be written: {error.strerror}", EXIT_FAILED
    if isinstance(error, MemoryError):
        return (
            "out of memory; a smaller --kv-cache-bytes needs less",
            EXIT_FAILED,
        )
    kind = type(error).__name__
    return f"internal error, {kind}: {line} (run with --debug for the traceback)", EXIT_FAILED


if __name__ == "__main__":
    sys.exit(main())
