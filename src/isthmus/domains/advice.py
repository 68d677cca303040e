"""What would make contexts fit that do not: each remedy is tried by the same search.

What a remedy changes is an assumption where only the compiler or the vendor knows it; `Remedy.premise` says which.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from isthmus.domains.profile import ChipProfile
from isthmus.domains.search import MAX_EXACT, FitVerdict, SearchResult, search
from isthmus.domains.sizes import ContextSizes, GraphNeeds, SpillGroup

PARTS = (3 << 30, 2 << 30, 3 << 29, 1 << 30, 3 << 28, 1 << 29)
"""The limits to which weights are split, from the largest: 3 GB is Qualcomm's advice for a binary."""
SHARED_GROUP = "shared"
"""The name of the group that the advice makes."""


@dataclass(frozen=True)
class Remedy:
    """A change of contexts or of how they are loaded, and what the search says of it.

    - `name`: a word for it: "estimate", "group", "share", "reuse", "switch", "split".
    - `title`: what to do.
    - `how`: the options that do it.
    - `premise`: what is assumed of its effect.
    - `contexts`: the contexts afterwards.
    - `result`: the search with them; None if there is nothing that it could change.
    """

    name: str
    title: str
    how: str
    premise: str
    contexts: tuple[ContextSizes, ...] = ()
    result: SearchResult | None = None
    io_estimation: bool = False

    @property
    def helps(self) -> bool:
        """Whether all contexts can be loaded with it."""
        return self.result is not None and self.result.verdict is FitVerdict.FITS


def _group(contexts: Sequence[ContextSizes]) -> list[ContextSizes]:
    """Let all contexts with spill-fill share one buffer as large as the largest need."""
    members = [each for each in contexts if each.spill_fill]
    if len(members) < 2:
        return [*contexts]
    group = SpillGroup(SHARED_GROUP, max(each.spill_fill for each in members))
    return [replace(each, group=group) if each.spill_fill else each for each in contexts]


def _with_shared_weights(contexts: Sequence[ContextSizes]) -> list[ContextSizes]:
    """Join contexts with the same weights, and let the graphs of each context have their constants in common."""
    joined: dict[str, ContextSizes] = {}
    for each in contexts:
        key = f"={each.same_weights}" if each.same_weights else each.name
        first = joined.get(key)
        graphs = each.graphs or (GraphNeeds(each.name),)
        if first is None:
            joined[key] = replace(each, graphs=graphs)
            continue
        buffers = None if first.buffers is each.buffers is None else (*first.io, *each.io)
        joined[key] = replace(
            first, name=f"{first.name}+{each.name}", graphs=(*first.graphs, *graphs), buffers=buffers,
            file_bytes=max(first.file_bytes, each.file_bytes),
        )  # fmt: skip
    found = []
    for each in joined.values():
        constants = [graph.constants for graph in each.graphs]
        if sum(map(bool, constants)) < 2:
            found.append(each)
            continue
        shared = each.shared_weights + max(constants)
        graphs = tuple(replace(graph, constants=0, shared_weights=shared) for graph in each.graphs)
        found.append(replace(each, graphs=graphs))
    return found


def _reusing_io(contexts: Sequence[ContextSizes]) -> list[ContextSizes]:
    """Register the I/O of one graph of a context at a time."""
    return [replace(each, reused_io=each.buffers is None) for each in contexts]


def _switching(contexts: Sequence[ContextSizes]) -> list[ContextSizes]:
    """Load one graph of a context at a time. Switching excludes groups."""
    return [replace(each, loaded=(), group=None) if len(each.graphs) > 1 else each for each in contexts]


def _split_contexts(contexts: Sequence[ContextSizes], most: int) -> list[ContextSizes]:
    """Split each context whose weights exceed some bytes into equal parts, each with the spill-fill of the whole."""
    found = []
    for each in contexts:
        weights = each.weights + each.shared_weights
        count = -(-weights // most) if weights else 1
        if count < 2:
            found.append(each)
            continue
        op_data, io = -(-each.op_data // count), -(-sum(each.io) // count)
        for number in range(count):
            size = weights // count + (number < weights % count)
            graph = GraphNeeds(each.name, constants=size, op_data=op_data, spill_fill=each.spill_fill, io=io)
            part = replace(each, name=f"{each.name}/{number + 1}", graphs=(graph,), file_bytes=size, buffers=None)
            found.append(replace(part, same_weights=f"{each.same_weights}/{number + 1}" if each.same_weights else ""))
    return found


Change = Callable[[Sequence[ContextSizes]], list[ContextSizes]]
_CHANGES: tuple[tuple[str, str, str, str, Change], ...] = (
    (
        "group", "one spill-fill buffer for all contexts",
        "REGISTER_MULTI_CONTEXTS, or group_id and max_spill_fill_buffer_for_group: the first states the largest need",
        "each domain with a member maps the buffer once; members do not execute at the same time", _group,
    ),
    (
        "share", "one copy of equal weights",
        "WEIGHT_SHARING_ENABLED (weight_sharing_enabled) when the binary is made, with all graphs in one context",
        "all constants of the graphs of a context are equal: this is the best case", _with_shared_weights,
    ),
    (
        "reuse", "the I/O of one graph at a time",
        "REUSED_IO_LIMIT (reused_io_limit_mb) with the I/O of the largest graph; never register more at a time",
        "graphs of a context do not need their I/O at the same time", _reusing_io,
    ),
    (
        "switch", "one loaded graph of each context at a time",
        "PERSISTENT_BINARY and MEMORY_LIMIT_HINT (is_persistent_binary, memory_limit_hint), or fewer ENABLE_GRAPHS",
        "a graph that is not loaded takes no memory, the largest always has room; I/O stays registered", _switching,
    ),
)  # fmt: skip
_ESTIMATE = (
    "room for I/O is looked for together with the context",
    "IO_MEM_ESTIMATION (io_memory_estimation); register the I/O of each context right after it",
    "the estimate contains the sum of a context's I/O",
)


def remedies(contexts: Sequence[ContextSizes], profile: ChipProfile, *, io_estimation: bool = False) -> list[Remedy]:
    """Try what could make contexts fit: each remedy alone, and if none helps, all that change something together.

    >>> from isthmus.domains.profile import profile
    >>> parts = [ContextSizes(f"part-{k}", (GraphNeeds("g", 700 << 20, spill_fill=1 << 30),)) for k in range(6)]
    >>> [each.name for each in remedies(parts, profile("default")) if each.helps]
    ['group']
    """
    found = []
    estimate = Remedy("estimate", *_ESTIMATE, tuple(contexts), None, True)
    if not io_estimation and any(each.io for each in contexts):
        estimate = replace(estimate, result=search(contexts, profile, io_estimation=True))
    found.append(estimate)
    for name, title, how, premise, change in _CHANGES:
        changed = change(contexts)
        has_effect = _charges(changed) != _charges(contexts)
        result = search(changed, profile, io_estimation=io_estimation) if has_effect else None
        found.append(Remedy(name, title, how, premise, tuple(changed), result, io_estimation))
    found.append(_best_split(contexts, profile, io_estimation))
    if not any(each.helps for each in found):
        found += _together(contexts, profile, io_estimation)
    return found


def _charges(contexts: Sequence[ContextSizes]) -> list[tuple[int, SpillGroup | None]]:
    return [(each.charge, each.group) for each in contexts]


def _best_split(contexts: Sequence[ContextSizes], profile: ChipProfile, io_estimation: bool) -> Remedy:
    """Try the largest parts first, as long as there are not too many of them."""
    premise = "parts have equal weights, op data and I/O, each the spill-fill of the whole; no I/O between parts"
    remedy = Remedy(
        "split", "smaller parts of large contexts",
        "split the model, so that each part is a binary of its own", premise, tuple(contexts), None, io_estimation,
    )  # fmt: skip
    for most in PARTS:
        parts = _split_contexts(contexts, most)
        if len(parts) == len(contexts):
            continue
        if len(parts) > MAX_EXACT:
            break
        result = search(parts, profile, io_estimation=io_estimation)
        title = f"parts of at most {most:,} bytes"
        remedy = replace(remedy, title=title, contexts=tuple(parts), result=result)
        if remedy.helps:
            break
    return remedy


def applied(name: str, contexts: Sequence[ContextSizes], most: int = 0) -> list[ContextSizes]:
    """Return contexts with a remedy; `most` are the bytes of the largest part of a split.

    "estimate" changes no context: it is an option of loading.

    >>> [each.name for each in applied("split", [ContextSizes("llm", file_bytes=3000)], 2000)]
    ['llm/1', 'llm/2']
    """
    if name == "split":
        return _split_contexts(contexts, most)
    return next((each[4](contexts) for each in _CHANGES if each[0] == name), [*contexts])


def _together(contexts: Sequence[ContextSizes], profile: ChipProfile, io_estimation: bool) -> list[Remedy]:
    """Try all changes together, except switching, which excludes groups; leave out those that are not needed."""
    # What is shared is the boldest premise, so it is the first that is left out.
    changes = {each[0]: each for each in _CHANGES}
    chosen = [name for name in ("share", "group", "reuse") if _charges(applied(name, contexts)) != _charges(contexts)]
    if not io_estimation and any(each.io for each in contexts):
        chosen.append("estimate")

    def attempt(names: Sequence[str]) -> Remedy:
        changed, parts = list(contexts), [changes[name] for name in names if name in changes]
        for name in names:
            changed = applied(name, changed)
        estimate = io_estimation or "estimate" in names
        texts = [each[1:4] for each in parts] + [_ESTIMATE] * ("estimate" in names)
        result = search(changed, profile, io_estimation=estimate)
        title, how, premise = (
            joint.join(each[index] for each in texts) for index, joint in enumerate((" and ", "; ", "; "))
        )
        return Remedy("+".join(names), title, how, premise, tuple(changed), result, estimate)

    if len(chosen) < 2 or not (best := attempt(chosen)).helps:
        return []
    for name in ("share", "estimate", "reuse", "group"):
        fewer = [each for each in chosen if each != name]
        smaller = attempt(fewer)
        if smaller.helps:
            chosen, best = fewer, smaller
    return [best]
