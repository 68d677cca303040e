"""The part of ``isthmus plan`` for graphs in context binaries: what they share, and what they need in all.

Such a set is a decoder: graphs for the prompt and for single tokens, for several context lengths, with equal weights
and one cache. No two of them run at once, so that one buffer can serve the inputs and outputs of all.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from isthmus.domains import ContextSizes, GraphNeeds
from isthmus.errors import counted, invalid_argument
from isthmus.graph.caches import GraphCache, caches_of
from isthmus.prepare.sharing import UnsharedConstants
from isthmus.qnn import SystemContext
from isthmus.report.page.contexts import graph_sections
from isthmus.report.rows import align, cell_text
from isthmus.tools.context_files import ContextFile, files_of
from isthmus.tools.inspect import unshared_lines
from isthmus.tools.messages import print_report
from isthmus.tools.report_options import write_page

# Options about a model that is yet to be planned, or about one graph.
_REFUSED = (
    "backend", "bound", "compare", "config", "direct_mode", "embed", "graph", "scratch_limit", "set", "shape", "slower",
    "svg", "table", "target", "tcm",
)  # fmt: skip
_KEYS = ("name", "constants", "shared", "op_data", "scratch", "io", "cache", "context_length")
_TITLES = ("graph", "constants", "shared", "op data", "scratch", "I/O", "of it cache", "tokens")


def main(options: argparse.Namespace) -> int:
    """Run the command."""
    paths = [options.model, *options.others]
    files = files_of(paths)
    given = [name for name in _REFUSED if getattr(options, name) not in (None, [], False)]
    given += ["threads"] if options.threads != 1 else []
    if given:
        option = f"--{given[0].replace('_', '-')}"
        rule = "has no meaning for several graphs of context binaries, whose plans are fixed"
        raise invalid_argument(option, rule)
    report = {"models": list(map(str, paths)), **describe(files)}
    if options.html is not None:
        title = ", ".join(path.name for path in paths)
        write_page(options.html, title, graph_sections(report), _heading(report), [report])
    print_report(options, report, lines(report))
    return 0


def describe(files: Sequence[ContextFile]) -> dict[str, Any]:
    """Return the memory of all graphs of some context binaries as plain data, in bytes.

    - `contexts`: each with its graphs by themselves. `shared` are the constants that graphs of a context share;
      `unshared` says which large ones they do not share, and why.
    - `caches`: those of each context length and size of elements.
    - `in_all`: what they need `together` if no two run at once, and each `alone`, as if they shared nothing.
    """
    caches = caches_of([graph for file in files for graph in file.graphs])
    waiting = iter(caches)
    contexts = [
        {
            "name": file.sizes.name, "bytes": file.sizes.file_bytes, "from": file.origin,
            "graphs": [_graph(needs, next(waiting)) for needs in file.sizes.graphs],
            "unshared": [asdict(each) for each in _unshared_constants(file)],
        }
        for file in files
    ]  # fmt: skip
    in_all = _in_all([each.sizes for each in files], caches)
    return {"contexts": contexts, "caches": _by_length(caches), "in_all": in_all}


def _graph(needs: GraphNeeds, caches: Sequence[GraphCache]) -> dict[str, Any]:
    return {
        "name": needs.name, "constants": needs.constants, "shared": needs.shared_weights, "op_data": needs.op_data,
        "scratch": needs.spill_fill, "io": needs.io, "cache": sum(each.nbytes for each in caches),
        "context_length": _context_length(caches),
    }  # fmt: skip


def _unshared_constants(file: ContextFile) -> tuple[UnsharedConstants, ...]:
    """Return which constants graphs do not share; what other tools made does not say."""
    return () if file.path is None else SystemContext().get_unshared_constants(file.path)


def _in_all(contexts: Sequence[ContextSizes], caches: Sequence[Sequence[GraphCache]]) -> list[dict[str, Any]]:
    """Return what all graphs need together and each alone; `caches` has those of each graph."""
    graphs = [graph for context in contexts for graph in context.graphs]
    held = [sum(each.nbytes for each in found) for found in caches]
    # The caches of all layers are kept, with room for the longest context; all else is one graph's at a time.
    rest = max((graph.io - nbytes for graph, nbytes in zip(graphs, held, strict=True)), default=0)
    kept = _largest(each for found in caches for each in found)
    constants, shared = sum(each.constants for each in graphs), sum(each.shared_weights for each in graphs)
    op_data = sum(each.op_data for each in graphs)
    sizes = {
        "constants": (constants + sum(each.shared_weights for each in contexts), constants + shared),
        "op data": (op_data, op_data),
        "scratch": (sum(each.spill_fill for each in contexts), sum(each.spill_fill for each in graphs)),
        "I/O": (kept + rest, sum(each.io for each in graphs)),
    }
    together, alone = map(sum, zip(*sizes.values(), strict=True))
    sizes["in all"] = (together, alone)
    return [
        {"what": what, "together": together, "alone": alone, "saved": alone - together}
        for what, (together, alone) in sizes.items()
    ]


def _by_length(caches: Sequence[Sequence[GraphCache]]) -> list[dict[str, Any]]:
    """Return the bytes of the caches of each context length and size of elements, the shortest first."""
    kinds: dict[tuple[int, int], list[GraphCache]] = {}
    for found in caches:
        for each in found:
            kinds.setdefault((_context_length(found) or 0, each.bits), []).append(each)
    return [
        {"context_length": length or None, "bits": bits, "bytes": _largest(kinds[length, bits])}
        for length, bits in sorted(kinds)
    ]


def _context_length(caches: Sequence[GraphCache]) -> int | None:
    """Return the most tokens that a cache of a graph holds: layers with a sliding window may hold fewer."""
    return max((each.tokens for each in caches if each.tokens is not None), default=None)


def _largest(caches: Iterable[GraphCache]) -> int:
    """Return the bytes of all caches by name, each as large as the graph with most of it has it."""
    sizes: dict[str, int] = {}
    for each in caches:
        sizes[each.name] = max(sizes.get(each.name, 0), each.nbytes)
    return sum(sizes.values())


# -- text --------------------------------------------------------------------------------------------------------------


def lines(report: Mapping[str, Any]) -> Iterator[str]:
    """Yield the description as text."""
    yield f"{_heading(report)}, in bytes"
    for context in report["contexts"]:
        yield f"{context['name']}: {context['bytes']:,} in the file, {context['from']}"
        yield from _table(_TITLES, [tuple(each[key] for key in _KEYS) for each in context["graphs"]])
        yield from unshared_lines(context["unshared"])
    if report["caches"]:
        yield "caches, each with room for all tokens:"
        titles = ("tokens", "bits", "bytes")
        yield from _table(titles, [(each["context_length"], each["bits"], each["bytes"]) for each in report["caches"]])
    yield "in all, if no two graphs run at once:"
    rows = [tuple(each[key] for key in ("what", "together", "alone", "saved")) for each in report["in_all"]]
    yield from _table(("", "together", "each alone", "saved"), rows)


def _heading(report: Mapping[str, Any]) -> str:
    count = sum(len(each["graphs"]) for each in report["contexts"])
    return f"{counted(count, 'graph')} in {counted(len(report['contexts']), 'context')}"


def _table(titles: Sequence[str], rows: Sequence[Sequence[str | int | None]]) -> Iterator[str]:
    """Yield a table: texts in the first column, numbers in the others."""
    cells = [titles, *(list(map(cell_text, row)) for row in rows)]
    yield from (f"  {line}" for line in align(cells, [column > 0 for column in range(len(titles))]))
