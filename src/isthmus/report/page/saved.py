"""Reports that were saved before, as a page or as a command's JSON: read and checked, since they may be edited."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from isthmus.errors import QnnError, invalid_argument
from isthmus.report.page import BEGIN, END, FORMAT, Viewer, to_data

# Returns a value if it is as it must be, and raises TypeError, ValueError or LookupError otherwise.
_Check = Callable[[Any], Any]


def _integer(value: Any) -> int:
    if type(value) is not int or abs(value) >= 1 << 53:
        raise TypeError
    return value


def _number(value: Any) -> float:
    if type(value) not in (int, float) or not abs(value) < 1e18:
        raise TypeError
    number: float = value
    return number


def _text(value: Any) -> str:
    if type(value) is not str:
        raise TypeError
    return value


def _record(**checks: _Check) -> _Check:
    """Make a check for an object that has all of these keys; others are dropped."""
    return lambda value: {name: check(value[name]) for name, check in checks.items()}


def _record_with(needed: Mapping[str, _Check], optional: Mapping[str, _Check]) -> _Check:
    """Make a check for an object that has all of the first keys and may have the others."""
    return lambda value: _record(**needed, **{name: check for name, check in optional.items() if name in value})(value)


def _each(check: _Check) -> _Check:
    """Make a check for a list."""

    def check_each(value: Any) -> list[Any]:
        if type(value) is not list:
            raise TypeError
        return [check(each) for each in value]

    return check_each


def _optional(check: _Check) -> _Check:
    """Make a check for a value that may be null."""
    return lambda value: None if value is None else check(value)


# More steps than any model has; a map draws each of them.
_MAX_STEPS = 1 << 20
_LINKS: Mapping[str, _Check] = {
    **dict.fromkeys(("after", "reads", "writes"), _each(_integer)),
    **dict.fromkeys(("inputs", "outputs"), _each(_text)),
}
_PLACE = {"name": _text, "bytes": _integer, "offset": _integer}
_SIZES = ("scratch_bytes", "state_bytes", "io_bytes", "constant_bytes")
# What a report must have to be compared.
_NEEDED: Mapping[str, _Check] = {"model": _text, **dict.fromkeys(_SIZES, _integer)}
# What else a comparison uses, if a report has it.
_KNOWN: Mapping[str, _Check] = {
    **dict.fromkeys(("backend", "status"), _text),
    **dict.fromkeys(("threads", "steps", "lower_bound", "greedy_bytes", "backend_copied_bytes"), _integer),
    "target": _optional(_text),
    "latency_ms": _record(p50=_number, p99=_number),
    "operations": _each(_record(name=_text, us=_number)),
    "order": _each(_record_with({"op": _text, "name": _text}, _LINKS)),
    "regions": _each(_record(tiles=_integer, first=_integer, last=_integer)),
    "peak": _optional(_record(step=_integer, op=_text, name=_text, live_bytes=_integer, live=_each(_record(**_PLACE)))),
    "tensors": _each(_record(**_PLACE, first=_integer, last=_integer)),
}


def saved_report(text: str, what: str) -> dict[str, Any]:
    """Return the report of a page that was written before, or of the JSON that a command printed.

    Only what a comparison uses is returned. `what` names the file in the error that is raised if it is neither, or
    damaged.
    """

    def refuse(rule: str) -> QnnError:
        return invalid_argument(what, rule)

    report = _parse(text)
    if isinstance(report, dict) and report.get("format") == FORMAT:
        try:
            report = report["reports"][0]
        except (LookupError, TypeError):
            report = None
    if not isinstance(report, dict):
        raise refuse("it is neither a page of --html nor the output of --json")
    if not _NEEDED.keys() <= report.keys():
        raise refuse("it has no plan of memory")
    try:
        found: dict[str, Any] = _record_with(_NEEDED, _KNOWN)(report)
        steps = max(found.get("steps", 0), 0)
        if steps > _MAX_STEPS:
            raise ValueError
        for each in found.get("tensors", ()):
            # Inputs and outputs may live one step before and after the others.
            if not (-1 <= each["first"] <= each["last"] <= steps and each["bytes"] >= 0 and each["offset"] >= 0):
                raise ValueError
        for number, each in enumerate(found.get("order", ())):
            blocks = *each.get("reads", ()), *each.get("writes", ())
            is_earlier = all(0 <= other < number for other in each.get("after", ()))
            if not (is_earlier and all(0 <= other < len(found.get("tensors", ())) for other in blocks)):
                raise ValueError
        if found.get("peak") is not None and not 0 <= found["peak"]["step"] < steps:
            raise ValueError
    except (TypeError, ValueError, LookupError):
        raise refuse("it is damaged") from None
    return found


def is_viewer(text: str) -> bool:
    """Return whether a text is a page without data, on which reports are opened."""
    facts = _parse(text) if BEGIN in text else None
    return isinstance(facts, dict) and facts.get("format") == FORMAT and facts.get("sections") == [to_data(Viewer())]


def _parse(text: str) -> Any:
    """Return the facts of a page, or what a text is as JSON; None if it is neither."""
    begin = text.find(BEGIN)
    if begin >= 0:
        begin += len(BEGIN)
        text = text[begin : text.find(END, begin)]
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
