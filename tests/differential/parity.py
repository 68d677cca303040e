"""Writes docs/parity.md from the record of a comparison, the declarations of the interface and the decisions."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from enum import IntEnum
from typing import Any

from differential import compare
from differential.argument_sequences import RIGHT
from differential.context_rules import CHECKED, RULES
from differential.operations import KINDS, USES
from isthmus.backends.htp.c import HtpDeviceOption
from isthmus.backends.htp.options import HtpContextOption, HtpGraphOption
from isthmus.cabi import objects
from isthmus.cabi.declarations import BACKEND, SYSTEM
from isthmus.capi import serve  # noqa: F401 - enters the functions
from isthmus.capi.functions import TABLE
from isthmus.capi.messages import name_of
from isthmus.errors import Code
from isthmus.graph.ops import OPERATIONS

VERSION = "2.51"
VALIDATED, DOCUMENTED, OURS, ABSENT = f"validated against {VERSION}", "documented", "ours", "not offered"
_NOT_ON_X86 = (
    "memRegister", "memDeRegister", "signalCreate", "signalSetConfig", "signalTrigger", "signalFree",
    "graphExecuteAsync", "contextCreateFromBinaryWithSignal",
    "contextCreateFromBinaryListAsync", "contextCreateFromBinaryWithCallback", "contextValidateBinary",
    "contextFinalize",
    "errorGetVerboseMessage", "errorFreeVerboseMessage",
)  # fmt: skip
"""Functions that the vendor's x86 library does not offer, so that nothing can be compared."""
_IN_C = ("deviceGetInfrastructure",)
"""Functions that the library in C answers itself."""
_IN_SEQUENCES = {
    *RIGHT, "propertyHasCapability", "backendCreate", "backendRegisterOpPackage", "graphCreateSubgraph",
    "profileGetSubEvents", "profileGetEventData", "profileGetExtendedEventData", "deviceFreePlatformInfo",
}  # fmt: skip
_OPTIONS: dict[str, tuple[type[IntEnum], frozenset[int]]] = {
    "backend": (objects.BackendOption, frozenset({0, 1, 2})),
    "context": (objects.ContextOption, frozenset({0, 1, 4, 5, 6})),
    "graph": (objects.GraphOption, frozenset({0, 3, 4})),
    "device": (objects.DeviceOption, frozenset({0})),
    "profile": (objects.ProfileOption, frozenset({1})),
    "signal": (objects.SignalOption, frozenset()),
    "HTP graph": (HtpGraphOption, frozenset({1, 2, 3, 6, 8})),
    "HTP context": (HtpContextOption, frozenset()),
    "HTP device": (HtpDeviceOption, frozenset({0})),
}
"""The options of each kind of object, and the numbers of those that sequences set."""
_CAUSES = {
    compare.MISSING_OP: "Ours does not have the operation.",
    compare.MISSING_KIND: "Ours has the operation, but not with this kind of data.",
    compare.ONLY_OURS: "HTP does not compute this. Ours does, because other backends need it.",
    compare.VENDOR_LAX: "The vendor's library does not look at this; ours refuses it, so that the mistake is seen.",
    compare.OURS_LAX: "Ours does not look at this.",
    compare.VENDOR_ENDS: "The vendor's library ends the process. Ours returns a code.",
}
_INTRODUCTION = f"""\
# Parity with the vendor's library

This page compares our libQnnHtp.so with the vendor's x86 library of QNN {VERSION}, call by call. The library is that of
the package PACKAGE. The page is written by `python tests/differential/run.py --write`; a newer
package shows its changes as a diff of it. The library is the user's own installation. It is called through its public
functions only, in child processes, and nothing of it is part of this project. Its licence is a PDF in the package,
which the user accepts.

- **{VALIDATED}**: the same calls were made on both libraries, and the results compared.
- **{DOCUMENTED}**: it follows QNN's documentation; the x86 library does not offer it, or no sequence calls it.
- **{OURS}**: QNN has nothing like it.
- **{ABSENT}**: ours does not have it.

Memory registration, signals and asynchronous execution are not offered on x86, so QNN's documents are their judge:
[behaviour.md](behaviour.md) lists the tests.
"""
_RULES = f"""\
What happens to contexts and their memory, and what ours does. [contexts.md](contexts.md) explains it. The numbers are
ours, used in tests only.

- **measured**: run on the vendor's x86 library, or published by users of devices.
- **documented**: stated by Qualcomm's documents or headers.
- **assumed**: concluded from these, where both are silent.
- **{CHECKED}**: ours does nothing of the kind, but the
  [validation of calls](c-api.md#have-a-clients-calls-checked) names what breaks the rule.
"""
_TOLERANCES = """\
Results may differ by one step of 8 bits or of 16 bits; by 5 steps for Sigmoid and Tanh, 16 for Gelu, exponential and
logarithm, 20 for Softmax and 32 for products of 16 by 16 bits, whose low bits HTP drops; floats by 1/256 of the value
or of the root mean square of all values, since HTP computes them in fp16, and by 1/64 for Gelu, HardSwish, sine, cosine
and Softmax. Beyond that:
"""
_BITS = """\
With the setting `"numerics": "htp"` ([htp.md](htp.md#rounding-as-on-a-chip)), EQUAL of COMPARED results have the bits
of the vendor's library. Floats of 32 bits are compared as fp16, in which HTP computes them.
"""
_LEGEND = """\
One use of each operation, as validated for CHIP: `=` both accept it, `·` both refuse it, `V` only the vendor's library
accepts it, `O` only ours, `†` the vendor's library ends the process. Kinds such as a16w8 have activations of 16 bits
and weights of 8.
"""
_MARKS = {"both": "=", "none": "·", "vendor": "V", "ours": "O", "ends": "†", "": " "}


def _table(head: Iterable[str], rows: Iterable[Iterable[Any]]) -> Iterator[str]:
    """Yield the lines of a table."""
    head = list(head)
    yield f"| {' | '.join(head)} |"
    yield f"|{'---|' * len(head)}"
    for row in rows:
        yield f"| {' | '.join(str(cell) for cell in row)} |"
    yield ""


def page(record: dict[str, Any]) -> str:
    """Return the text of docs/parity.md."""
    lines = [
        _INTRODUCTION.replace("PACKAGE", record["package"]),
        "## Agreement", "", *_agreement(record),
        "## Call sequences that differ", "", *_sequences(record["sequences"]["any"]),
        "## Functions", "", *_functions(),
        "## Options", "", *_options(record),
        "## Rules of contexts", "", *_rules(),
        "## Error codes", "", *_codes(),
        "## Operations and kinds of data", "", *_operations(record),
        "## What validates, finalizes and computes", "", *_execution(record["execution"]),
        "## Forms of nodes", "", *_forms(record["forms"]),
    ]  # fmt: skip
    return "\n".join(lines).rstrip() + "\n"


def _agreement(record: dict[str, Any]) -> Iterator[str]:
    """Yield the counts."""
    rows: list[list[Any]] = []
    for chip, found in record["validation"].items():
        text = f"{found.get('both accept', 0)} accepted and {found.get('both refuse', 0)} refused by both"
        rows.append([f"validation, {chip}", found["cases"], f"{found['agreement']:.1%}", text])
    for chip, found in record["execution"].items():
        compared, within = found.get("compared", 0), found.get("within tolerance", 0)
        share = f"{within / compared:.1%}" if compared else "-"
        text = f"{within} of {compared} results within the tolerances, {found.get('equal', 0)} of them equal"
        rows.append([f"execution, {chip}", found["cases"], share, text])
    for chip, found in record["forms"].items():
        text = f"{found['both run']} run with the same results and {found['both refuse']} are refused on both"
        rows.append([f"forms of nodes, {chip}", found["cases"], f"{found['equal'] / found['cases']:.1%}", text])
    found = record["sequences"]["any"]
    text = f"{found['equal']} equal, {found['decided']} differ for a reason below, {len(found['undecided'])} undecided"
    rows.append(["call sequences", found["cases"], f"{found['equal'] / found['cases']:.1%}", text])
    found = record["options"]["any"]
    text = "generate, load and run succeed or are refused on both; no process of ours ended"
    rows.append(["provider options", found["cases"], f"{found['equal'] / found['cases']:.1%}", text])
    yield from _table(["layer", "cases", "agreement", "details"], rows)


def _text(answer: Any) -> str:
    """Return an answer as a text for a table."""
    return answer if isinstance(answer, str) else json.dumps(answer)


def _sequences(found: dict[str, Any]) -> Iterator[str]:
    """Yield the differences of call sequences by reason."""
    by_reason: dict[str, list[str]] = {}
    for name, each in found["differences"].items():
        line = f"{name} ({_text(each['vendor'])} → {_text(each['ours'])})"
        by_reason.setdefault(each["reason"] or "not decided", []).append(line)
    yield "Each has the vendor's answer and ours. All other sequences have equal answers."
    yield ""
    rows = ([len(lines), reason, "; ".join(lines)] for reason, lines in by_reason.items())
    yield from _table(["number", "reason", "sequences"], rows)


def _functions() -> Iterator[str]:
    """Yield the marks of all functions."""

    def mark(name: str) -> str:
        if name not in TABLE and name not in _IN_C:
            return ABSENT
        return VALIDATED if name in _IN_SEQUENCES and name not in _NOT_ON_X86 else DOCUMENTED

    for title, functions in (("backend", BACKEND), ("system library", SYSTEM)):
        by_mark: dict[str, list[str]] = {}
        for name in functions:
            by_mark.setdefault(mark(name), []).append(name)
        rows = ([mark, len(names), ", ".join(names)] for mark, names in sorted(by_mark.items()))
        yield f"Functions of the {title}. One that is not offered returns 1000."
        yield ""
        yield from _table(["mark", "number", "functions"], rows)


def _options(record: dict[str, Any]) -> Iterator[str]:
    """Yield the marks of all options."""
    rows = []
    for noun, (kind, compared) in _OPTIONS.items():
        for mark, chosen in ((VALIDATED, True), (DOCUMENTED, False)):
            names = [option.name for option in kind if (int(option) in compared) is chosen]
            if names:
                rows.append([noun, mark, ", ".join(names)])
    yield from _table(["options of", "mark", "names"], rows)
    found = record["options"]["any"]
    yield f"ONNX Runtime's provider ran with {found['cases']} values of its options on both libraries."
    yield ""
    if found["differences"]:
        yield "These have another outcome; the steps are generate, load and run:"
        yield ""
        rows = [
            [f"`{name}`", *(_steps(each[side]) for side in ("vendor", "ours")), each["reason"]]
            for name, each in found["differences"].items()
        ]
        yield from _table(["option", "vendor", "ours", "reason"], rows)


def _steps(answer: Any) -> str:
    """Return what came of the steps of an option."""
    return answer if isinstance(answer, str) else ", ".join(answer)


def _rules() -> Iterator[str]:
    """Yield the rules of contexts, by topic."""
    yield _RULES
    topics: dict[str, list[list[Any]]] = {}
    for rule in RULES:
        tests = [f"`{file}::{function}`" for file, function in rule.named()]
        said = f"{rule.ours}. {rule.note}".strip() if rule.tests else f"{rule.ours}: {rule.note}"
        row = [rule.number, f"{rule.what} *{rule.known}*", "<br>".join([said, *tests])]
        topics.setdefault(rule.topic, []).append(row)
    for topic, rows in topics.items():
        yield f"### {topic}"
        yield ""
        yield from _table(["rule", "what happens", "ours"], rows)


def _codes() -> Iterator[str]:
    """Yield the marks of all error codes."""
    from differential.object_sequences import SEQUENCES

    asked = {name.removeprefix("error: message of ") for name in SEQUENCES}
    by_mark: dict[str, list[str]] = {}
    for code in Code:
        mark = VALIDATED if str(int(code)) in asked or code is Code.SUCCESS else DOCUMENTED
        by_mark.setdefault(mark, []).append(f"{name_of(code)} {int(code)}")
    yield "The name of a code is validated if errorGetMessage returns it on both. The sentences behind it are our own."
    yield ""
    yield from _table(["mark", "codes"], ([mark, ", ".join(names)] for mark, names in by_mark.items()))


def _operations(record: dict[str, Any]) -> Iterator[str]:
    """Yield a mark for each operation and kind of data, and the causes of differences."""
    first, *others = record["validation"]
    marks = record["validation"][first]["marks"]
    yield _LEGEND.replace("CHIP", first)
    rows = ([op, *(_MARKS[marks[op].get(kind, "")] for kind in KINDS)] for op in sorted(marks))
    yield from _table(["operation", *KINDS], rows)
    for other in others:
        changed = [
            f"{op} {kind}" for op, kinds in record["validation"][other]["marks"].items() for kind, mark in kinds.items()
            if mark != marks[op][kind]
        ]  # fmt: skip
        yield f"For {other} the marks of these differ: {', '.join(changed) or 'none'}."
        yield ""
    yield "The same uses with one thing wrong, and all differences by cause:"
    yield ""
    found = record["validation"][first]["causes"]
    rows = ([cause, len(names), _CAUSES[cause], _short(names)] for cause, names in found.items())
    yield from _table(["cause", "number", "meaning", "cases"], rows)
    compared = set(USES)
    own = sorted(name for name, op in OPERATIONS.items() if op.package != "qti.aisw")
    rest = sorted(name for name, op in OPERATIONS.items() if op.package == "qti.aisw" and name not in compared)
    yield from _table(["mark", "operations"], [
        [VALIDATED, ", ".join(sorted(compared & set(OPERATIONS)))],
        [f"{DOCUMENTED} (HTP does not have them)", ", ".join(rest)],
        [OURS, ", ".join(own)],
        [ABSENT, ", ".join(sorted(compared - set(OPERATIONS)))],
    ])  # fmt: skip


def _short(names: list[str]) -> str:
    """Return cases grouped by what follows the operation."""
    grouped: dict[str, list[str]] = {}
    for name in names:
        op, _, rest = name.partition(" ")
        grouped.setdefault(rest, []).append(op)
    return "; ".join(f"{rest}: {', '.join(ops)}" for rest, ops in grouped.items())


def _execution(record: dict[str, Any]) -> Iterator[str]:
    """Yield what does not finalize, what is computed otherwise, and how halves are rounded."""
    for chip, found in record.items():
        counts = [found.get(name, 0) for name in ("vendor runs", "ours runs", "compared")]
        yield f"For {chip}, {counts[0]} uses run on the vendor's library and {counts[1]} on ours; {counts[2]} on both."
        yield ""
        for side, names in found["not finalized"].items():
            library = "the vendor's library" if side == "vendor" else "ours"
            yield f"Valid, but not finalized by {library}: {'; '.join(names) or 'none'}."
            yield ""
        yield _TOLERANCES
        rows = [[name, *each.values()] for name, each in found["beyond tolerance"].items()]
        yield from _table(["use", "largest difference", "tolerance", "reason"], rows)
        yield _BITS.replace("EQUAL", str(found["equal as a chip"])).replace("COMPARED", str(found["compared"]))
        rows = [[kind, *(each.get(name, 0) for name in ("compared", "default", "as a chip"))]
                for kind, each in found["equal by kind"].items()]  # fmt: skip
        yield from _table(["kind of data", "compared", "equal by default", 'equal with "htp"'], rows)
        rows = [[name.removeprefix("ties: "), *each.values()] for name, each in found["halves"].items()]
        yield "Where an exact result lies halfway between two steps, it is rounded:"
        yield ""
        yield from _table(["use", "by the vendor's library", "by ours", 'by ours with "htp"'], rows)


def _forms(record: dict[str, Any]) -> Iterator[str]:
    """Yield the forms of nodes with another outcome."""
    yield "Nodes as clients of QNN make them: single numbers as [1] and of rank 0, slices of one element, operands of"
    yield "mixed types, weights and biases that are no constants, biases without scales. These have another outcome:"
    yield ""
    for found in record.values():
        rows = ([name, each["vendor"], each["ours"], each["reason"]] for name, each in found["differences"].items())
        yield from _table(["form", "vendor", "ours", "reason"], rows)
