"""Compares the answers of two libraries, and says what agrees, what differs and why."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from differential import decisions
from differential.execution import TIES, node_named, unpacked
from differential.forms import FORMS
from differential.operations import KINDS, USES, kinds_of
from isthmus.graph.datatypes import DataType
from isthmus.graph.ops import OPERATIONS

Answers = dict[str, Any]
D = DataType
MISSING_OP = "operation that ours lacks"
MISSING_KIND = "kind of data that ours lacks"
ONLY_OURS = "kind of data that only ours takes"
VENDOR_LAX = "not checked by the vendor's library, kept"
OURS_LAX = "not checked by ours"
VENDOR_ENDS = "the vendor's library ends the process"
ROUNDING = {
    "up": lambda exact, zero: np.floor(exact + 0.5),
    "even": lambda exact, zero: np.rint(exact),
    "away from zero": lambda exact, zero: zero + np.sign(exact - zero) * np.floor(np.abs(exact - zero) + 0.5),
    "towards zero": lambda exact, zero: zero + np.sign(exact - zero) * np.ceil(np.abs(exact - zero) - 0.5),
}
"""What becomes of exact halves, by the name of the rule."""


def _accepts(answer: Any) -> bool:
    return answer == 0


def validation(vendor: Answers, ours: Answers) -> dict[str, Any]:
    """Compare which nodes are accepted: counts, differences by cause, a mark for each operation and kind of data."""
    counts: Counter[str] = Counter()
    causes: dict[str, list[str]] = {}
    marks = {op: dict.fromkeys(kinds_of(op), "") for op in sorted(USES)}
    for name, found in vendor.items():
        ends, both = decisions.is_end(found), (_accepts(found), _accepts(ours[name]))
        agree = both[0] == both[1]
        counts["both accept" if both == (True, True) else "both refuse" if agree else "differ"] += 1
        base, _, change = name.partition(": ")
        if not change:
            op, kind = base.split(" ")
            marks[op][kind] = "ends" if ends else {
                (True, True): "both", (False, False): "none", (True, False): "vendor", (False, True): "ours"
            }[both]  # fmt: skip
        if not agree:
            causes.setdefault(_cause(base, change, ends, both[0], vendor, ours), []).append(name)
    total = sum(counts.values())
    return {
        "cases": total, **counts, "agreement": round(1 - counts["differ"] / total, 4),
        "causes": {cause: sorted(names) for cause, names in sorted(causes.items())}, "marks": marks,
    }  # fmt: skip


def _cause(base: str, change: str, ends: bool, vendor_accepts: bool, vendor: Answers, ours: Answers) -> str:
    """Return why a node is accepted by one library only."""
    if ends:
        return VENDOR_ENDS
    differs_unchanged = _accepts(vendor[base]) != _accepts(ours[base])
    if change and not differs_unchanged:
        return VENDOR_LAX if vendor_accepts else OURS_LAX
    if not vendor_accepts:
        return ONLY_OURS
    return MISSING_KIND if base.split(" ")[0] in OPERATIONS else MISSING_OP


def sequences(vendor: Answers, ours: Answers) -> dict[str, Any]:
    """Compare result codes: the number of equal ones, and every difference with its reason."""
    differences = {
        name: {"vendor": found, "ours": ours[name], "reason": decisions.reason(name, found, ours[name])}
        for name, found in vendor.items()
        if found != ours[name]
    }
    undecided = sorted(name for name, each in differences.items() if each["reason"] is None)
    return {
        "cases": len(vendor), "equal": len(vendor) - len(differences), "decided": len(differences) - len(undecided),
        "undecided": undecided, "differences": differences,
    }  # fmt: skip


_STEPS_16 = {
    **dict.fromkeys(("Sigmoid", "Tanh", "ElementWiseNeuron"), 5),
    **dict.fromkeys(("Gelu", "ElementWiseExp", "ElementWiseLog"), 16),
    **dict.fromkeys(("Softmax", "LogSoftmax"), 20),
    **dict.fromkeys(("Conv2d", "DepthWiseConv2d", "TransposeConv2d", "FullyConnected", "MatMul"), 32),
    "ElementWiseSquareRoot": 32,
}  # fmt: skip
"""How many steps of a 16-bit output may differ, where that is more than one."""
_FLOATS = dict.fromkeys(("Gelu", "HardSwish", "ElementWiseCos", "ElementWiseSin", "LogSoftmax", "Softmax"), 2**-6)
"""Tolerances of floats, where they are more than four units of fp16."""
NO_RESULT = ("RandomNormalLike", "RandomUniformLike")
"""Operations whose results are random."""


def _error(op: str, kind: str, value: Any, vendor: np.ndarray, ours: np.ndarray) -> tuple[float, float]:
    """Return the largest difference of an output, and how large it may be: in steps, or in units of the value."""
    dtype = D(value.dtype)
    if dtype.is_float:
        both = vendor.astype(np.float64), ours.astype(np.float64)
        same = np.isnan(both[0]) & np.isnan(both[1])
        # Small results of sums have the errors of their large terms: compare with the size of all results.
        size = np.sqrt(np.mean(np.square(both[1]), where=np.isfinite(both[1])))
        with np.errstate(invalid="ignore"):
            off = np.abs(both[0] - both[1]) / np.maximum(np.abs(both[1]), max(size, 1e-3))
        return float(np.where(same | (both[0] == both[1]), 0, off).max(initial=0)), _FLOATS.get(op, 2**-8)
    off = np.abs(vendor.astype(np.int64) - ours.astype(np.int64))
    most = 0 if not dtype.is_fixed_point else 1
    if dtype.is_fixed_point and dtype.itemsize == 2:
        most = _STEPS_16.get(op, 1) if kind == "ufixed16" or op not in USES or "Conv" not in op else 1
    return float(off.max(initial=0)), float(most)


_MODES = ("default", "as a chip")
"""The numerics in which ours is compared bit for bit."""


def _same(vendor: np.ndarray, ours: np.ndarray) -> bool:
    """Return whether two results are equal; floats of 32 bits by what they are in fp16, which is what HTP computes."""
    if vendor.dtype == np.float32:
        with np.errstate(over="ignore"):
            vendor, ours = vendor.astype(np.float16), ours.astype(np.float16)
    return np.array_equal(vendor, ours, equal_nan=vendor.dtype.kind == "f")


def execution(vendor: Answers, ours: Answers, as_chip: Answers) -> dict[str, Any]:
    """Compare what finalizes, and what is computed; `as_chip` are ours with the numerics of chips."""
    counts: Counter[str] = Counter()
    equal: dict[str, Counter[str]] = {kind: Counter() for kind in KINDS}
    unfinalized: dict[str, list[str]] = {"vendor": [], "ours": []}
    beyond: dict[str, dict[str, float]] = {}
    rounding: dict[str, dict[str, Any]] = {}
    for name, found in vendor.items():
        for side, answer in (("vendor", found), ("ours", ours[name])):
            if isinstance(answer, str) or (not answer["validate"] and "outputs" not in answer):
                unfinalized[side].append(f"{name}: {_outcome(answer)}")
            elif not answer["validate"]:
                counts[f"{side} runs"] += 1
        if not all(isinstance(answer, dict) and "outputs" in answer for answer in (found, ours[name])):
            continue
        node = node_named(name)
        results = [
            [unpacked(text, value) for text, value in zip(answer["outputs"], node.outputs, strict=True)]
            for answer in (found, ours[name], as_chip[name])
        ]
        if name in TIES:
            tie, sides = TIES[name](), ("vendor", "ours", "ours as a chip")
            rounding[name] = {side: _rule(each[0], tie) for side, each in zip(sides, results, strict=True)}
            continue
        op, kind = name.split(" ")
        if op in NO_RESULT:
            continue
        counts["compared"] += 1
        equal[kind]["compared"] += 1
        for mode, each in zip(_MODES, results[1:], strict=True):
            equal[kind][mode] += all(map(_same, results[0], each))
        errors = [_error(op, kind, *each) for each in zip(node.outputs, *results[:2], strict=True)]
        if all(error <= most for error, most in errors):
            counts["within tolerance"] += 1
            counts["equal"] += all(not error for error, _ in errors)
        else:
            error, most = max(errors, key=lambda each: each[0] - each[1])
            beyond[name] = {
                "difference": float(f"{error:.3g}"), "tolerance": float(f"{most:.3g}"),
                "reason": decisions.numeric_reason(name),
            }  # fmt: skip
    return {
        "cases": len(vendor), **counts, "not finalized": unfinalized, "beyond tolerance": beyond, "halves": rounding,
        "equal as a chip": sum(each[_MODES[1]] for each in equal.values()), "equal by kind": equal,
    }  # fmt: skip


def forms(vendor: Answers, ours: Answers) -> dict[str, Any]:
    """Compare the forms of nodes: both refuse one, or both run it with results within the tolerances."""
    counts: Counter[str] = Counter()
    differences: dict[str, Any] = {}
    for name, found in vendor.items():
        sides = (found, ours[name])
        refused = [isinstance(answer, dict) and bool(answer["validate"]) for answer in sides]
        ran = [isinstance(answer, dict) and "outputs" in answer for answer in sides]
        reported = ["refused" if no else "runs" if yes else _outcome(answer)
                for answer, no, yes in zip(sides, refused, ran, strict=True)]  # fmt: skip
        if all(ran):
            node = FORMS[name]()
            op, kind = name.partition(": ")[0].split(" ")
            results = (map(unpacked, answer["outputs"], node.outputs) for answer in sides)
            errors = [_error(op, kind, *each) for each in zip(node.outputs, *results, strict=True)]
            if any(error > most for error, most in errors):
                reported[1] = f"differs by {max(error for error, _ in errors):.3g}"
        counts["equal"] += reported[0] == reported[1]
        counts["both run"] += reported == ["runs", "runs"]
        counts["both refuse"] += all(refused)
        if reported[0] != reported[1]:
            reason = decisions.form_reason(name, *reported)
            differences[name] = {"vendor": reported[0], "ours": reported[1], "reason": reason}
    undecided = sorted(name for name, each in differences.items() if each["reason"] is None)
    return {"cases": len(vendor), **counts, "undecided": undecided, "differences": differences}


def _outcome(answer: Any) -> str:
    """Say what became of a node that did not run."""
    if isinstance(answer, str):
        return answer
    if "refused" in answer:
        return f"{answer['refused'][0]} returns {answer['refused'][1]}"
    return f"graphFinalize returns {answer['finalize']}"


def _rule(result: np.ndarray, tie: Any) -> str:
    """Name the rules that all halves of a result follow."""
    low, high = (0, 255) if result.dtype.itemsize == 1 else (0, 65535)
    inside = (tie.exact > low + 1) & (tie.exact < high - 1)
    half = inside & (np.abs(tie.exact - np.floor(tie.exact) - 0.5) < 1e-9)
    rules = [
        name for name, rule in ROUNDING.items()
        if np.array_equal(result[half].astype(np.float64), rule(tie.exact[half], tie.zero))
    ]  # fmt: skip
    return " and ".join(rules) or "none of the rules"


def options(vendor: Answers, ours: Answers) -> dict[str, Any]:
    """Compare the steps that succeed with each option."""
    differences = {
        name: {"vendor": found, "ours": ours[name], "reason": decisions.option_reason(name)}
        for name, found in vendor.items()
        if found != ours[name]
    }
    return {"cases": len(vendor), "equal": len(vendor) - len(differences), "differences": differences}


def ended(answers: Answers) -> list[str]:
    """Name the cases that ended the process."""
    return [name for name, answer in answers.items() if decisions.is_end(answer)]
