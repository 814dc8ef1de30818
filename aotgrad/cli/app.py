"""The ``aotgrad`` command: one parser, one function per subcommand; an ``AotgradError`` becomes one line and exit code 1."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from aotgrad._version import __version__
from aotgrad_runtime.cache import ObjectCache, default_folder
from aotgrad_runtime.errors import AotgradError

from . import bench, build, info, inspect, ir_tools

__all__ = ["main"]

INTERRUPTED, USAGE = 130, 2


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line ``argv`` (default: the process's own) and gives the exit code.

    >>> main(["cache", "--folder"]) in (0, 1)
    ...
    True
    """
    parser = _parser()
    given = sys.argv[1:] if argv is None else list(argv)
    if not given:
        parser.print_help()
        return USAGE
    arguments, rest = parser.parse_known_args(given)
    if rest and hasattr(arguments, "inputs") and not any(a.startswith("--") for a in rest):  # argparse takes no positional arguments after an option
        arguments.inputs += rest
    elif rest:
        arguments.parser.error(f"unrecognized arguments: {' '.join(rest)}")
    try:
        return int(arguments.run(arguments) or 0)
    except AotgradError as error:
        print(f"aotgrad: error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("aotgrad: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # the reader of a pipe has left, as in `aotgrad info | head -1`
        sys.stderr.close()
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="aotgrad", description="Python functions to native code, gradients and shared libraries.")
    parser.add_argument("--version", action="version", version=f"aotgrad {__version__}")
    sub = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    p = sub.add_parser("demo", help="train a digit classifier and fit a curve on real data, then ship the gradient as a shared library")
    p.add_argument("--out", metavar="DIR", help="keep the library, the header, the C program and the picture here (default: a temporary folder)")
    p.add_argument("--epochs", type=int, default=40, help="passes over the training images (default: 40)")
    p.set_defaults(run=_demo)

    p = sub.add_parser("bench", help="measure against other systems and write the report")
    p.add_argument("workloads", nargs="*", metavar="WORKLOAD", help="which (default: all)")
    p.add_argument("--quick", action="store_true", help="few rounds and small sizes: a check that everything runs, not a measurement")
    p.add_argument("--list", action="store_true", help="list the workloads")
    p.add_argument("--out", metavar="DIR", help="where results.jsonl and RESULTS.md go (default: the benchmarks folder, with --quick a temporary one)")
    p.set_defaults(run=lambda a: bench.run(a.workloads, quick=a.quick, listing=a.list, out=a.out))

    p = sub.add_parser("info", help="versions, target, call path and cache of this installation")
    p.set_defaults(run=lambda a: print(info.report()))

    p = sub.add_parser("inspect", help="what a built library offers")
    p.add_argument("library", metavar="LIB")
    p.set_defaults(run=lambda a: print(inspect.report(a.library)))

    build.add_parser(sub)
    _ir_parsers(sub)

    p = sub.add_parser("cache", help="show or empty the cache of compiled code")
    p.add_argument("--clear", action="store_true", help="remove every entry")
    p.add_argument("--folder", action="store_true", help="print the folder only")
    p.set_defaults(run=_cache)
    for p in sub.choices.values():
        p.set_defaults(parser=p)  # who says how it is used, where an argument is wrong
    return parser


def _ir_parsers(sub: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    p = sub.add_parser("opt", help="run passes on IR text")
    p.add_argument("file", metavar="FILE.mlir", help="- for standard input")
    p.add_argument("--passes", default="", help='a pipeline, such as "cse,dce" (default: none: check and print)')
    p.set_defaults(run=lambda a: sys.stdout.write(ir_tools.opt(a.file, a.passes)) and 0)

    p = sub.add_parser("run", help="run a function of IR text in the interpreter")
    p.add_argument("file", metavar="FILE.mlir")
    p.add_argument("inputs", nargs="*", metavar="INPUT", help='a .npy file or numbers, such as "[[1, 2], [3, 4]]"')
    p.add_argument("--function", metavar="NAME", help="which function, where the file has several")
    p.set_defaults(run=_run)


def _demo(a: argparse.Namespace) -> Any:
    # Loaded here alone: its functions are decorated with ag.compile, and no other command should pay for that.
    return importlib.import_module("aotgrad.demo.main").run_demo(out=a.out, epochs=a.epochs)


def _run(a: argparse.Namespace) -> None:
    for out in ir_tools.run(a.file, a.inputs, a.function):
        print(np.asarray(out))


def _cache(a: argparse.Namespace) -> int:
    folder = default_folder()
    if a.folder:
        print(folder or "")
        return 0 if folder else 1
    cache = ObjectCache(folder)
    if cache.folder is None:
        print(f"no cache: {cache.off}")
        return 0
    files = [p for p in Path(cache.folder).iterdir() if p.suffix == ".so" and p.is_file()]
    size = sum(p.stat().st_size for p in files)
    if a.clear:
        for p in files:
            p.unlink(missing_ok=True)
        print(f"{cache.folder}: {len(files)} entries ({size / 1e6:.1f} MB) removed")
    else:
        print(f"{cache.folder}: {len(files)} entries, {size / 1e6:.1f} MB")
    return 0
