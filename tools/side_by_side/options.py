"""The command line. Standard library only."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence

from .attention.cells import FORMATS, GRIDS, LAYERS, Cell, Choice, cells_of, find_fault
from .index.cells import INDEX_GRIDS, IndexCell, index_cells_of
from .ops.cells import KINDS, OPS_GRIDS, OpCell, op_cells_of

DESCRIPTION = """Sparse attention, the index chain or the ops around them of this library beside a peer's kernels, in
one process on one GPU, on the same inputs. docs/performance/side_by_side.md says what is measured and how."""

DEVICES = ("cuda", "cpu")


def numbers(least: int) -> Callable[[str], tuple[int, ...]]:
    """A type of options: numbers separated by commas. @raises argparse.ArgumentTypeError: one is no number or too
    small"""

    def read(text: str) -> tuple[int, ...]:
        found = []
        for word in text.split(","):
            if not word.isdecimal() or int(word) < least:
                raise argparse.ArgumentTypeError(f"got {word!r}, expected whole numbers from {least} on")
            found.append(int(word))
        return tuple(dict.fromkeys(found))

    return read


def words(known: Sequence[str]) -> Callable[[str], tuple[str, ...]]:
    """A type of options: some of `known`, separated by commas. @raises argparse.ArgumentTypeError: another word"""

    def read(text: str) -> tuple[str, ...]:
        for word in text.split(","):
            if word not in known:
                raise argparse.ArgumentTypeError(f"got {word!r}, expected some of {', '.join(known)}")
        return tuple(dict.fromkeys(text.split(",")))

    return read


def grids(text: str) -> tuple[str, ...]:
    """A type of options: some grids; "all" are those of attention. @raises argparse.ArgumentTypeError: another word"""
    return tuple(GRIDS) if text == "all" else words((*GRIDS, *INDEX_GRIDS, *OPS_GRIDS))(text)


def _at_least_one(text: str) -> int:
    (number,) = numbers(1)(text)[:1]
    return number


def _add_run(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    run = commands.add_parser("run", help="measure; prints tables and bars", description=DESCRIPTION)
    run.add_argument(
        "--lib",
        metavar="FILE",
        help="libsparsemla.so, or the module of a wheel (default: that of the installed package sparsemla)",
    )
    run.add_argument(
        "--peer",
        metavar="PATH",
        help="the peer's .so, for index grids and ops the folder of the peer's; without it only this library is timed",
    )
    run.add_argument(
        "--adapter",
        metavar="FILE",
        help="a Python file whose load(path) returns a Peer, IndexPeer or OpPeer (default: vLLM's kernels)",
    )
    run.add_argument(
        "--grid",
        type=grids,
        default=("decode",),
        metavar="GRIDS",
        help=f"some of {','.join(GRIDS)}, or all of these (default: decode); "
        f"or some of {','.join(INDEX_GRIDS)}; or {','.join(OPS_GRIDS)}",
    )
    group = run.add_argument_group("cells, instead of a grid's own")
    group.add_argument("--heads", type=numbers(1), default=(), metavar="COUNTS")
    group.add_argument(
        "--layers",
        type=words((*LAYERS, *KINDS)),
        default=(),
        metavar="NAMES",
        help=f"{','.join(LAYERS)}; of ops {','.join(KINDS)}",
    )
    group.add_argument("--batches", type=numbers(1), default=(), metavar="COUNTS", help="requests of a decode step")
    group.add_argument("--keys", type=numbers(128), default=(), metavar="COUNTS", help="of a prefill's query")
    group.add_argument(
        "--pools",
        type=numbers(1),
        default=(),
        metavar="COUNTS",
        help="entries of a prefill's or an index grid's request",
    )
    group.add_argument(
        "--tokens", type=numbers(1), default=(), metavar="COUNTS", help="queries of a prefill, tokens of an op"
    )
    group.add_argument(
        "--queries", type=numbers(2), default=(), metavar="COUNTS", help="of a request, in grids queries and index"
    )
    group.add_argument("--rows", type=words(FORMATS), default=(), metavar="NAMES", help="formats of grid rows")
    group = run.add_argument_group("how")
    group.add_argument("--impl", default="", metavar="NAME", help="implementation (default: the library's choice)")
    group.add_argument("--impl2", default=None, metavar="NAME", help="a second one beside it")
    group.add_argument("--deterministic", action="store_true", help="results that do not depend on the batch")
    group.add_argument("--runs", type=_at_least_one, default=40, metavar="N", help="samples a cell (default: 40)")
    group.add_argument("--sets", type=_at_least_one, default=3, metavar="N", help="sets of inputs (default: 3)")
    group.add_argument("--limit", type=_at_least_one, metavar="SECONDS", help="begin no cell after that time")
    group.add_argument("--seed", type=int, default=1, help="of the inputs (default: 1)")
    group.add_argument(
        "--device", choices=DEVICES, default="cuda", help="cpu tries the tool out: its times mean little"
    )
    group.add_argument("--note", default="", metavar="TEXT", help="said in the results, such as the library's commit")
    group.add_argument("--json", metavar="FILE", help="write the results there, after every cell")


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line; `given` without the program's name. Exits with 2 where it is wrong."""
    parser = argparse.ArgumentParser(prog="python3 tools/side_by_side", description=DESCRIPTION)
    commands = parser.add_subparsers(dest="command", required=True)
    _add_run(commands)

    table = commands.add_parser("table", help="tables and bars of files that `run --json` wrote")
    table.add_argument("files", nargs="+", metavar="FILE")
    table.add_argument("--markdown", action="store_true", help="as tables of a page")

    keep = commands.add_parser("keep", help="make data/side_by_side/*.csv and the pages from such files")
    keep.add_argument("files", nargs="+", metavar="FILE")

    commands.add_parser("write", help="rewrite the tables and the picture of the pages from data/side_by_side")
    commands.add_parser("check", help="exit with 1 and name what of the pages is out of date")

    args = parser.parse_args(given)
    if args.command == "run":
        if args.impl2 is not None and args.impl2 == args.impl:
            parser.error(f"--impl2: got {args.impl2!r} as in --impl, expected another implementation")
        if args.adapter and not args.peer:
            parser.error("--adapter: got one without --peer, expected the peer's .so too")
        if asks_index(args):
            if not set(args.grid) <= set(INDEX_GRIDS):
                parser.error(f"--grid: got {','.join(args.grid)}, expected attention or the index chain, not both")
            if args.impl2 is not None:
                parser.error("--impl2: got one with an index grid, which times two ways to run the ops anyway")
        elif asks_ops(args):
            if not set(args.grid) <= set(OPS_GRIDS):
                parser.error(f"--grid: got {','.join(args.grid)}, expected ops alone or without it")
            if args.impl2 is not None:
                parser.error("--impl2: got one with the grid ops, expected --impl alone")
        known = KINDS if asks_ops(args) else LAYERS
        if not set(args.layers) <= set(known):
            parser.error(f"--layers: got {','.join(args.layers)}, expected some of {', '.join(known)}")
        for cell in chosen_cells(args):
            fault = "" if isinstance(cell, (IndexCell, OpCell)) else find_fault(cell)
            if fault:
                parser.error(f"--{fault}")
    return args


def choice_of(args: argparse.Namespace) -> Choice:
    """What the options of `run` want of the grids."""
    return Choice(args.heads, args.layers, args.batches, args.keys, args.pools, args.tokens, args.queries, args.rows)


def asks_index(args: argparse.Namespace) -> bool:
    """Whether `run` measures the index chain."""
    return not set(args.grid).isdisjoint(INDEX_GRIDS)


def asks_ops(args: argparse.Namespace) -> bool:
    """Whether `run` measures the ops around attention."""
    return not set(args.grid).isdisjoint(OPS_GRIDS)


def chosen_cells(args: argparse.Namespace) -> list[Cell] | list[IndexCell] | list[OpCell]:
    """The cells that `run` measures."""
    if asks_index(args):
        return index_cells_of(args.grid, choice_of(args))
    return op_cells_of(args.grid, choice_of(args)) if asks_ops(args) else cells_of(args.grid, choice_of(args))
