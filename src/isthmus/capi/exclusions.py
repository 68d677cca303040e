"""Validation of what clients combine: features that exclude each other, and graphs that may not execute at once.

Which features a backend's own configs turn on, and which of them exclude each other, its `CFacet` says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from isthmus.backends.seam.driver import DescriptorType
from isthmus.backends.seam.facets import CFacet, Feature
from isthmus.cabi.client import listed, pointer, read
from isthmus.cabi.objects import (
    ContextConfig,
    ContextOption,
    DeviceConfig,
    DeviceOption,
    GraphConfig,
    GraphOption,
    MemDescriptor,
)
from isthmus.cabi.types import Tensor
from isthmus.capi.values import stated_dims

if TYPE_CHECKING:
    from isthmus.capi.validation import Object, Validation

Features = dict[str, int]
"""What is turned on, with a value."""
MAX_DESCRIPTORS = 1 << 12
"""How many descriptors of memory are looked at."""
# QNN_PRIORITY_DEFAULT.
_DEFAULT_PRIORITY = 100
# What executions use: all of them, and those beside which there is no other.
_EXECUTION, _SOLE_EXECUTION = "execution", "sole execution"
# QNN's own options of contexts, each with what it turns on and where that is said.
_FLAGS = {
    ContextOption.PERSISTENT_BINARY: (Feature.PERSISTENT, lambda config: config.isPersistentBinary),
    ContextOption.ENABLE_GRAPHS: (Feature.ENABLED, lambda config: pointer(config, "enableGraphs")),
    ContextOption.DEFER_GRAPH_INIT: (Feature.DEFERRED, lambda config: config.isGraphInitDeferred),
    ContextOption.GRAPH_RETENTION_ORDER: (Feature.RETENTION, lambda config: pointer(config, "graphRetentionOrder")),
}


def of_context(facet: CFacet, configs: Iterable[ContextConfig]) -> Features:
    """Return what configs of a context turn on."""
    features: Features = {}
    has_limit = 0
    for config in configs:
        if config.option in _FLAGS:
            feature, value = _FLAGS[ContextOption(config.option)]
            features |= {feature: 1} if value(config) else {}
        elif config.option == ContextOption.PRIORITY:
            features[Feature.PRIORITY] = config.priority
        elif config.option == ContextOption.MEMORY_LIMIT_HINT:
            has_limit = config.memoryLimitHint
        elif config.option == ContextOption.CUSTOM:
            features |= _custom(facet, "context", config.customConfig)
    if has_limit and Feature.PERSISTENT in features:
        features[Feature.SWITCHING] = 1
    return dict(facet.combine(features))


def _custom(facet: CFacet, kind: str, value: int | None) -> Mapping[str, int]:
    """Return what a value of a backend's own turns on."""
    return facet.features(kind, value or 0) if facet.features is not None else {}


def check(seen: Validation, values: tuple[int, ...]) -> None:
    """Check what the call in progress combines, and remember it for the object that the call creates."""
    rule = _RULES.get(seen.current.name)
    if rule is not None:
        rule(seen, values)


def report(seen: Validation, features: Mapping[str, int], new: Mapping[str, int] | None = None) -> None:
    """Report features that exclude each other; with `new`, only pairs with one of those."""
    for one, other in seen.facet().exclusions:
        if one in features and other in features and (new is None or one in new or other in new):
            seen.mistake(f"{word(one)} and {word(other)} exclude each other")


def word(feature: str) -> str:
    """Return the name of a feature in messages."""
    return feature.value if isinstance(feature, Feature) else feature


# -- contexts ----------------------------------------------------------------------------------------------------------


def _creation_rule(*features: Feature) -> Callable[[Validation, tuple[int, ...]], None]:
    """Return a rule for calls that create a context with these features; the configs are their third argument."""

    def rule(seen: Validation, values: tuple[int, ...]) -> None:
        own = of_context(seen.facet(), listed(values[2], ContextConfig))
        own |= dict.fromkeys(features, 1)
        device = seen.objects.get(("device", values[1]))
        seen.current.features = (device.features if device is not None else {}) | own
        seen.current.device = values[1]
        _check_retention(seen, own)
        report(seen, own | _other_priority(seen, own))

    return rule


def _check_retention(seen: Validation, features: Features) -> None:
    if Feature.RETENTION in features and Feature.SWITCHING not in features and Feature.COMPOSED not in features:
        seen.mistake(f"{Feature.RETENTION.value} has no effect without {Feature.SWITCHING.value}")


def _other_priority(seen: Validation, features: Features) -> Features:
    """Return that a new context has another priority than the first one of its group, if it has."""
    mine = features.get(Feature.PRIORITY, _DEFAULT_PRIORITY)
    for group, other in seen.facet().exclusions:
        founder = seen.objects.get(("context", features.get(group, 0))) if other == Feature.OTHER_PRIORITY else None
        if founder is not None and founder.features.get(Feature.PRIORITY, _DEFAULT_PRIORITY) != mine:
            return {Feature.OTHER_PRIORITY: 1}
    return {}


def _of_list(seen: Validation, configs: int) -> Features:
    return of_context(seen.facet(), listed(configs, ContextConfig)) | {Feature.LIST: 1}


def _list(seen: Validation, values: tuple[int, ...]) -> None:
    """Check the configs of a list of binaries."""
    report(seen, _of_list(seen, values[3]))


def check_entry(seen: Validation, of_list: int, of_entry: int, has_callbacks: bool) -> None:
    """Check the configs of an entry of a list with those of the list; both are addresses."""
    own = of_context(seen.facet(), listed(of_entry, ContextConfig))
    own |= {Feature.CALLBACKS: 1} if has_callbacks else {}
    report(seen, _of_list(seen, of_list) | own, own)


def adopt(seen: Validation, configs: int) -> None:
    """Remember what holds for contexts that the client learns of by a callback: what all lists have in common."""
    # Which list a context is of, the calls do not show.
    features = {name: seen.current.number if name in seen.facet().alone else value
             for name, value in _of_list(seen, configs).items()}  # fmt: skip
    seen.adopted = features if seen.adopted is None else dict(seen.adopted.items() & features.items())


def _set_config(seen: Validation, values: tuple[int, ...]) -> None:
    context = seen.objects.get(("context", values[0]))
    if context is None:
        return
    new = of_context(seen.facet(), listed(values[1], ContextConfig))
    changed = {Feature.OTHER_PRIORITY: 1} if Feature.PRIORITY in new else {}
    report(seen, context.features | new | changed, new | changed)
    seen.current.features = new


def _set_graph_config(seen: Validation, values: tuple[int, ...]) -> None:
    """Check a later priority of a graph with what its context has."""
    graph = seen.objects.get(("graph", values[0]))
    context = None if graph is None else seen.objects.get(("context", graph.owner))
    if context is not None and any(each.option == GraphOption.PRIORITY for each in listed(values[1], GraphConfig)):
        report(seen, context.features | {Feature.OTHER_PRIORITY: 1}, {Feature.OTHER_PRIORITY: 1})


def _device(seen: Validation, values: tuple[int, ...]) -> None:
    """Note what configs of a device say."""
    for config in listed(values[1], DeviceConfig):
        if config.option == DeviceOption.CUSTOM:
            seen.current.features |= _custom(seen.facet(), "device", config.customConfig)


def _profile(seen: Validation, values: tuple[int, ...]) -> None:
    seen.current.features = dict(_custom(seen.facet(), "profile", values[1]))


# -- graphs ------------------------------------------------------------------------------------------------------------


def _graph_create(seen: Validation, values: tuple[int, ...]) -> None:
    """Check the configs of a graph with those of its context and of the context's other graphs."""
    facet, context = seen.facet(), seen.objects.get(("context", values[0]))
    own: Features = {}
    for config in listed(values[2], GraphConfig):
        if config.option == GraphOption.CUSTOM:
            own |= _custom(facet, "graph", config.customConfig)
    shown = dict(own)
    if context is None:
        report(seen, own)
        return
    device = seen.objects.get(("device", context.device))
    seen.current.features = own = (device.features if device is not None else {}) | own
    report(seen, context.features | shown, shown)
    others = [each.features for each in seen.living("graph", context.handle)]
    for feature, needed, default in facet.alike:
        theirs = [each.get(needed, default) for each in others[:1]]
        mine = own.get(needed, default)
        # 0 leaves the value to the library.
        if feature in context.features and theirs and 0 not in (mine, *theirs) and theirs[0] != mine:
            seen.mistake(f"{feature} needs graphs of one {needed}: {theirs[0]} and {mine}")
    for features, limit in facet.limits:
        if any(each in own for each in features):
            count = sum(each in graph for graph in (*others, own) for each in features)
            if count > limit:
                seen.mistake(f"graphs of a context have {' or '.join(features)} {limit} times at most, and not {count}")


def _finalize(seen: Validation, values: tuple[int, ...]) -> None:
    """Check a graph with the profile and the signal of its finalization."""
    graph = seen.objects.get(("graph", values[0]))
    if graph is not None:
        new = _of_profile(seen, values[1]) | ({Feature.SIGNAL: 1} if values[2] else {})
        report(seen, graph.features | new, new)


def _of_profile(seen: Validation, handle: int) -> Features:
    profile = seen.objects.get(("profile", handle))
    return profile.features if profile is not None else {}


# -- executions --------------------------------------------------------------------------------------------------------


def _execute(seen: Validation, values: tuple[int, ...]) -> None:
    """Check that no other graph executes that shares something with this one, and what the execution combines."""
    graph = seen.objects.get(("graph", values[0]))
    if graph is None:
        return
    context = seen.objects.get(("context", graph.owner))
    features = graph.features if context is None else context.features
    new = _of_profile(seen, values[5]) | _batch(seen, graph, features, values)
    report(seen, graph.features | features | new, new)
    if seen.current.name != "graphExecute":
        # The context's queue orders asynchronous ones.
        return
    _check_sole(seen, graph)
    handle = graph.owner or graph.handle
    places = [(str(name), features[name] or handle) for name in seen.facet().alone if name in features]
    places += [(Feature.SWITCHING.value, handle)] if Feature.SWITCHING in features else []
    for place in places:
        seen.check_unused(*place)
        seen.use(*place)


def _check_sole(seen: Validation, graph: Object) -> None:
    """Check that nothing executes beside a graph that must be alone."""
    own = [each for each in seen.facet().sole if each in graph.features]
    for other in seen.users(_EXECUTION if own else _SOLE_EXECUTION, 0):
        seen.mistake(f"{' and '.join(own or seen.facet().sole)}: no other graph executes beside such a one, and "
                     f"{other.label} is an execution")  # fmt: skip
    for kind in (_EXECUTION, *[_SOLE_EXECUTION] * bool(own)):
        seen.use(kind, 0)


def _batch(seen: Validation, graph: Object, features: Features, values: tuple[int, ...]) -> Features:
    """Return that an execution has a multiple of a graph's batch, if it has and that matters."""
    # The batch of a graph from a list is not known: the smallest one so far is taken for it.
    if not any(Feature.BATCH in pair and (pair[0] in features or pair[1] in features)
               for pair in seen.facet().exclusions):  # fmt: skip
        return {}
    for index in range(min(values[2], MAX_DESCRIPTORS)):
        fields = read(values[1], Tensor, index).v1
        batch = next(iter(stated_dims(fields) or ()), 0)
        least = graph.batches.setdefault(fields.id, batch)
        graph.batches[fields.id] = min(least, batch)
        if 0 < least < batch:
            return {Feature.BATCH: 1}
    return {}


# -- memory ------------------------------------------------------------------------------------------------------------


def of_memory(seen: Validation, descriptor: Any) -> Mapping[str, int]:
    """Return what a descriptor of memory turns on in its context."""
    is_custom = descriptor.memType == DescriptorType.CUSTOM
    return _custom(seen.facet(), "memory", descriptor.customInfo) if is_custom else {}


def note(seen: Validation, kind: str, handle: int) -> None:
    """Add what a call that has succeeded turns on to an object."""
    entry = seen.objects.get((kind, handle))
    if entry is not None:
        entry.features |= seen.current.features


def _mem_register(seen: Validation, values: tuple[int, ...]) -> None:
    """Check buffers of the client's: their context is deferred and not finalized yet."""
    context = seen.objects.get(("context", values[0]))
    if context is None:
        return
    own: Features = {}
    for index in range(min(values[2], MAX_DESCRIPTORS)):
        own |= of_memory(seen, read(values[1], MemDescriptor, index))
    report(seen, own | context.features, own)
    if own and Feature.DEFERRED not in context.features:
        seen.mistake(f"{Feature.BUFFERS.value} are registered between the creation of a deferred context and its end "
                     "by contextFinalize")  # fmt: skip
    for each in seen.living("context"):
        for name in seen.facet().single if each is not context else ():
            if name in own and each.features.get(name) == own[name]:
                seen.mistake(f"{name} serves one context, and this one is that of {each.what}")
    seen.current.features = own


# The rules by the names of functions in QNN's table.
_RULES: dict[str, Callable[[Any, tuple[int, ...]], None]] = {
    "contextCreate": _creation_rule(Feature.COMPOSED),
    "contextCreateFromBinary": _creation_rule(Feature.SINGLE),
    "contextCreateFromBinaryWithSignal": _creation_rule(Feature.SINGLE),
    "contextCreateFromBinaryWithCallback": _creation_rule(Feature.SINGLE, Feature.CALLBACKS),
    "contextCreateFromBinaryListAsync": _list,
    "contextSetConfig": _set_config,
    "deviceCreate": _device,
    "deviceSetConfig": _device,
    "graphCreate": _graph_create,
    "graphSetConfig": _set_graph_config,
    "graphFinalize": _finalize,
    "graphExecute": _execute,
    "graphExecuteAsync": _execute,
    "memRegister": _mem_register,
    "profileCreate": _profile,
}
