"""The part of ``isthmus fit`` for contexts: whether they fit into a chip's process domains, and in what order."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from isthmus.backends.vendor.target import profile_of
from isthmus.domains.advice import Remedy, applied, remedies
from isthmus.domains.model import Domains, Refusal
from isthmus.domains.profile import ChipProfile
from isthmus.domains.search import FitVerdict, SearchResult, search
from isthmus.domains.sizes import ContextSizes
from isthmus.errors import counted, invalid_argument
from isthmus.prepare.tiling import parse_size
from isthmus.report.page.contexts import context_sections
from isthmus.tools.context_files import ContextList, contexts_of
from isthmus.tools.files import file_name
from isthmus.tools.messages import print_report
from isthmus.tools.report_options import write_page

REMEDIES = ("estimate", "group", "share", "reuse", "switch", "split=SIZE")
"""What ``--with`` can apply."""


def add_arguments(parser: argparse._ActionsContainer) -> None:
    """Add the options for contexts to a parser."""
    what = "will these contexts fit together? Context binaries, or a Genie bundle (genie_config.json, or its folder)"
    parser.add_argument("--contexts", type=file_name, nargs="+", default=[], metavar="FILE", help=what)
    what = "a context by its sizes in a log: keys are spill, opdata, shared, io, graphs (a number), same (a label that "
    what += "contexts with equal weights have in common); may be repeated"
    parser.add_argument("--context", action="append", default=[], metavar="NAME=SIZE,KEY=VALUE", help=what)
    what = "the I/O buffers that are registered for a context, by default one for all of its I/O; may be repeated"
    parser.add_argument("--io", action="append", default=[], metavar="NAME=SIZE,SIZE", help=what)
    what = f"contexts as they are with a remedy: {', '.join(REMEDIES)}; may be repeated"
    parser.add_argument("--with", action="append", default=[], dest="remedies", metavar="REMEDY", help=what)


def is_asked(options: argparse.Namespace) -> bool:
    """Return whether a command line is about contexts."""
    return bool(options.contexts or options.context)


def main(options: argparse.Namespace) -> int:
    """Run the command; the exit status is 1 if no order loads all contexts."""
    _refuse_others(options)
    listed = contexts_of(options.contexts, options.context, options.io)
    chosen = profile_of(options.soc or "default")
    listed = _with_remedies(listed, options.remedies)
    result = search(listed.contexts, chosen, io_estimation=listed.io_estimation)
    found: list[Remedy] = []
    if result.verdict is not FitVerdict.FITS:
        found = remedies(listed.contexts, chosen, io_estimation=listed.io_estimation)
    report = describe(listed, chosen, result, found)
    if options.html is not None:
        title = f"{counted(len(listed.contexts), 'context')} on {chosen.name}"
        write_page(
            options.html, title, context_sections(report), f"in {counted(len(chosen.domains), 'process domain')}"
        )
    print_report(options, report, lines(report))
    return 0 if result.verdict is FitVerdict.FITS else 1


def _refuse_others(options: argparse.Namespace) -> None:
    """Refuse options that are about a model."""
    if options.model is not None:
        raise invalid_argument(f"'{options.model}'", "with --contexts there is no MODEL", "Put it behind --contexts.")
    for name in ("budget", "tcm", "judge", "out", "vtcm", "level", "config", "backend"):
        if getattr(options, name) is not None:
            raise invalid_argument(f"--{name} {getattr(options, name)}", "has no meaning with --contexts")
    if options.soc is not None and "," in options.soc:
        raise invalid_argument(f"--soc {options.soc}", "contexts are loaded on one chip")


def _with_remedies(listed: ContextList, names: Sequence[str]) -> ContextList:
    """Apply the remedies of a command line."""
    contexts, estimate = listed.contexts, listed.io_estimation
    remedy_names = {each.partition("=")[0] for each in REMEDIES}
    for text in names:
        name, _, value = text.partition("=")
        size = parse_size(value) if value else None
        if name not in remedy_names or (name == "split") != bool(size):
            raise invalid_argument(f"--with {text}", f"must be one of {', '.join(REMEDIES)}")
        estimate = estimate or name == "estimate"
        contexts = tuple(applied(name, contexts, size or 0))
    # Contexts that were split or joined are in no file.
    origins = dict(zip((each.name for each in listed.contexts), listed.origins, strict=True))
    return replace(
        listed, contexts=contexts, origins=tuple(origins.get(each.name, "") for each in contexts),
        io_estimation=estimate,
    )  # fmt: skip


# -- the report --------------------------------------------------------------------------------------------------------


def describe(listed: ContextList, chosen: ChipProfile, result: SearchResult, found: Sequence[Remedy]) -> dict[str, Any]:
    """Return the result as plain data."""
    return {
        "profile": {"name": chosen.name, "facts": [vars(each) for each in chosen.facts]},
        "io_estimation": listed.io_estimation,
        "notes": list(listed.notes),
        "contexts": [_context(each, origin) for each, origin in zip(listed.contexts, listed.origins, strict=True)],
        **_result(result),
        "remedies": [
            {
                "name": each.name, "title": each.title, "how": each.how, "premise": each.premise, "helps": each.helps,
                "effect": each.result is not None, "io_estimation": each.io_estimation,
                "contexts": [_context(context, "") for context in each.contexts] if each.helps else [],
                **({} if each.result is None else _result(each.result)),
            }
            for each in found
        ],
    }  # fmt: skip


def _context(context: ContextSizes, origin: str) -> dict[str, Any]:
    return {
        "name": context.name, "shared_weights": context.shared_weights, "weights": context.weights,
        "spill_fill": context.spill_fill, "op_data": context.op_data, "io": list(context.io), "charge": context.charge,
        "group": None if context.group is None else {"name": context.group.name, "bytes": context.group.nbytes},
        "graphs": len(context.graphs), "from": origin,
    }  # fmt: skip


def _result(result: SearchResult) -> dict[str, Any]:
    refusal = result.as_given
    return {
        "verdict": result.verdict.value,
        "order": list(result.order),
        "proof": result.proof,
        "as_given": None if refusal is None else _refusal(refusal),
        "domains": _domains(result.domains),
    }


def _refusal(refusal: Refusal) -> dict[str, Any]:
    return {
        "code": int(refusal.code), "what": refusal.what, "sentence": refusal.sentence, "lines": list(refusal.lines),
    }  # fmt: skip


def _domains(domains: Domains) -> list[dict[str, Any]]:
    """Return what is mapped in each domain, by address."""
    found = []
    for domain in domains.domains:
        blocks = [
            {"context": placement.context, "what": each.what, "address": each.address, "bytes": each.nbytes}
            for placement in domains.placements()
            if placement.domain == domain.number
            for each in placement.mappings
        ]
        blocks += [
            {"context": f"group {name}", "what": each.what, "address": each.address, "bytes": each.nbytes}
            for name, each in domain.group_mappings.items()
        ]
        blocks.sort(key=lambda block: int(block["address"]))  # type: ignore[call-overload]
        found.append({"number": domain.number, "capacity": domain.capacity, "used": domain.used, "blocks": blocks})
    return found


def lines(report: Mapping[str, Any]) -> Iterator[str]:
    """Yield the result as text."""
    chosen, contexts = report["profile"], report["contexts"]
    yield f"{counted(len(contexts), 'context')} on {chosen['name']}, in bytes"
    for fact in chosen["facts"]:
        yield f"  {fact['name']:<10} {fact['value']} ({fact['source']})"
    width = max([len("context"), *(len(each["name"]) for each in contexts)])
    yield f"  {'context':<{width}}{'weights':>15}{'spill-fill':>15}{'op data':>13}{'I/O':>15}{'charged':>15}"
    for each in contexts:
        weights = each["weights"] + each["shared_weights"]
        spill = f"({each['spill_fill']:,})" if each["group"] else f"{each['spill_fill']:,}"
        sizes = f"{weights:>15,}{spill:>15}{each['op_data']:>13,}{sum(each['io']):>15,}{each['charge']:>15,}"
        yield f"  {each['name']:<{width}}{sizes}"
    for group in {json.dumps(each["group"]): each["group"] for each in contexts if each["group"]}.values():
        yield f"  group {group['name']}: one spill-fill buffer of {group['bytes']:,} bytes in each domain with a member"
    if report["io_estimation"]:
        yield "  IO_MEM_ESTIMATION is set: a context is loaded where its I/O has room too"
    yield from (f"  {note}" for note in report["notes"])
    yield from _verdict(report)
    yield from _advice(report["remedies"])


def _verdict(report: Mapping[str, Any]) -> Iterator[str]:
    """Yield what happens as given, and the order that works or why none does."""
    refusal = report["as_given"]
    if refusal is not None:
        yield f"in the order given: error {refusal['code']}, {refusal['what']}"
        yield from (f"  {part}" for part in refusal["sentence"].split("; "))
        yield "  the vendor's library logs then:"
        yield from (f"    {line}" for line in refusal["lines"])
    if report["verdict"] != FitVerdict.FITS.value:
        negation = "no order is known" if report["verdict"] == FitVerdict.UNDECIDED.value else "no order loads them"
        yield f"{negation}: {report['proof']}"
        return
    yield "they fit, in the order given:" if refusal is None else "they fit, in this order:"
    yield from _order(report)


def _order(result: Mapping[str, Any]) -> Iterator[str]:
    where = {block["context"]: domain["number"] for domain in result["domains"] for block in domain["blocks"]}
    for number, name in enumerate(result["order"], 1):
        yield f"  {number:>3} {name}: domain {where[name]}" if name in where else f"  {number:>3} {name}: takes nothing"
    for domain in result["domains"]:
        yield f"  domain {domain['number']}: {domain['used']:,} of {domain['capacity']:,} bytes"


def _advice(found: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield what each remedy would do."""
    if found:
        yield "what would help:" if any(each["helps"] for each in found) else "what was tried does not help:"
    for each in found:
        verdict = "they fit" if each["helps"] else each.get("proof", "") if each["effect"] else "changes nothing here"
        yield f"  {each['name']} ({each['title']}): {verdict}"
        if each["helps"]:
            yield f"      {each['how']}"
            yield f"      premise: {each['premise']}"
            yield f"      order: {', '.join(each['order'])}"
