"""Compares our libQnnHtp.so with the vendor's, layer by layer, for two chips.

    python tests/differential/run.py [LAYER ...] [--write] [--kept] [--seconds 300]

Without `--write` it fails where the results are worse than the record (`agreement.json`), where our library ends its
process, and where a difference of call sequences has no reason. With `--write` it writes the record and docs/parity.md.
Answers are kept in .cache/differential, so that a run that is interrupted or out of time continues where it was.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent)]

from differential.children import PACKAGE, ROOT, Side, answers, as_chip, ours, recorded_answers, vendor  # noqa: E402
from differential.layers import LAYERS  # noqa: E402

RECORD = HERE / "agreement.json"
PAGE = ROOT / "docs" / "parity.md"
CHIPS = {"SM8750": 69, "SM8350": 30}
LAYER_CHIPS: dict[str, dict[str, int | None]] = {
    "validation": {**CHIPS}, "execution": {"SM8750": 69}, "forms": {"SM8750": 69},
}  # fmt: skip
"""The chips of layers whose answers depend on one."""


def compared(layer: str, theirs: Side, mine: Side, only_kept: bool) -> tuple[dict[str, Any], list[str]]:
    """Compare a layer; return the results by chip, and the cases that ended our process.

    `only_kept` compares the cases that both libraries have answered before, and asks for no others.
    """
    from differential import compare

    results: dict[str, Any] = {}
    ended: list[str] = []
    cases = LAYERS[layer].load().cases()
    sides = [theirs, mine, *([as_chip(mine)] if layer == "execution" else [])]
    chips = LAYER_CHIPS.get(layer, {"any": None})
    # Our answers depend on no chip: those for the first one serve all.
    [first, *_] = chips.values()
    for chip, number in chips.items():
        found = []
        for side in sides:
            asked = number if side is theirs else first
            found.append(recorded_answers(layer, side, asked) if only_kept else answers(layer, side, asked, cases))
        found = [{name: side[name] for name in cases if all(name in each for each in found)} for side in found]
        results[chip] = getattr(compare, layer)(*found)
        ended += [name for side in found[1:] for name in compare.ended(side)]
        figures = [f"{name} {value}" for name, value in results[chip].items() if isinstance(value, (int, float))]
        print(f"{layer} ({chip}): {', '.join(figures)}", flush=True)
    return results, ended


def worse(layer: str, before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Say in which ways the results of a layer are worse than the recorded ones."""
    found: list[str] = []
    for chip, results in now.items():
        known = before.get(chip, {})
        what = f"{layer} ({chip})"
        for figure in ("agreement", "equal", "within tolerance", "ours runs"):
            if results.get(figure, 0) < known.get(figure, 0):
                found.append(f"{what}: {figure} is {results.get(figure, 0)}, and was {known[figure]}")
        found += [f"{what}: undecided difference: {name}" for name in results.get("undecided", ())]
        # A reason was decided for the outcome of that time.
        recorded = known.get("differences", {})
        for name, each in results.get("differences", {}).items():
            if name in recorded and each["ours"] != recorded[name]["ours"]:
                found.append(f"{what}: {name}: ours is {each['ours']!r}, and was {recorded[name]['ours']!r}")
    return found


def main() -> int:
    """Compare, report, and return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("layers", nargs="*", metavar="LAYER", help=f"what to compare: {', '.join(LAYERS)}; default all")
    parser.add_argument("--write", action="store_true", help="write the record and docs/parity.md")
    parser.add_argument("--kept", action="store_true", help="compare the answers that are kept, and ask for no others")
    parser.add_argument("--seconds", type=int, default=300, help="when to stop; the next run continues")
    chosen = parser.parse_args()
    if unknown := [layer for layer in chosen.layers if layer not in LAYERS]:
        parser.error(f"there is no layer {unknown[0]}")
    theirs = vendor()
    if theirs is None:
        print(f"make differential: nothing to compare with; install the package {PACKAGE}")
        return 0

    def stop(number: int, frame: object) -> None:
        print(f"make differential: stopped after {chosen.seconds} s; the next run continues", flush=True)
        # Not a failure: nothing that was compared is worse.
        raise SystemExit(0)

    signal.signal(signal.SIGALRM, stop)
    signal.alarm(chosen.seconds)
    record = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    problems: list[str] = []
    now = {**record, "package": f"{PACKAGE} {theirs.build.partition('-')[0]}"}
    with tempfile.TemporaryDirectory() as folder:
        mine = Side("ours", Path(folder), "") if chosen.kept else ours(Path(folder))
        for layer in chosen.layers or LAYERS:
            now[layer], ended = compared(layer, theirs, mine, chosen.kept)
            problems += [f"{layer}: ours ended its process: {name}" for name in ended]
            problems += worse(layer, {} if chosen.write else record.get(layer, {}), now[layer])
    if chosen.write:
        from differential.parity import page

        RECORD.write_text(json.dumps(now, indent=1) + "\n")
        PAGE.write_text(page(now))
    for problem in problems:
        print(problem)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
