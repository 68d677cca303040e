"""The sections of pages about contexts: process domains as columns, contexts as blocks, and what would help."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from isthmus.errors import counted
from isthmus.report import page

FITS = "fits"
# What a verdict means; the search may also have given up.
_NOTES = {FITS: "in some order", "does not fit": "in no order"}
# What graphs need together.
_NEEDS = {
    "constants": "shared ones once", "op data": "of all graphs", "scratch": "the largest of each context",
    "I/O": "one buffer for all graphs",
}  # fmt: skip


def context_sections(report: Mapping[str, Any]) -> list[page.Section]:
    """Return the sections of what ``isthmus fit --contexts`` reports."""
    domains, contexts = report["domains"], report["contexts"]
    refusal, fits = report["as_given"], report["verdict"] == FITS
    used, capacity = (sum(each[key] for each in domains) for key in ("used", "capacity"))
    tone = page.GOOD if fits else page.BAD
    figures = [
        page.Figure("Verdict", report["verdict"], note=_NOTES.get(report["verdict"], "no order is known"), tone=tone),
        page.Figure("Contexts", len(contexts), page.COUNT),
        page.Figure("Charged", sum(each["charge"] for each in contexts), page.BYTES, "with I/O, groups apart"),
        page.Figure(
            "Domains", capacity, page.BYTES, f"in {len(domains)}; {used / capacity:.0%} mapped", part=used / capacity
        ),
    ]
    if fits:
        summary = f"Load in this order, each with its I/O right after it: {', '.join(report['order'])}."
    else:
        start = "No order loads them" if report["verdict"] in _NOTES else "No order is known"
        summary = f"{start}: {report['proof']}."
    title = "Process domains" if fits else "Process domains, as far as contexts load in the order given"
    found: list[page.Section] = [page.Figures(figures, note=summary), _columns(title, domains)]
    if report["notes"]:
        found.append(page.Notes("What Genie's configuration changes", [page.Note(each) for each in report["notes"]]))
    if refusal is not None:
        lines = "\n".join(refusal["lines"])
        note = page.Note(f"{refusal['code']}: {refusal['what']} {refusal['sentence']}", lines, page.BAD)
        found.append(page.Notes("In the order given", [note]))
    if report["remedies"]:
        title = "What would help" if any(each["helps"] for each in report["remedies"]) else "What does not help"
        found.append(page.Notes(title, [_remedy(each) for each in report["remedies"]]))
    found += [
        _columns(f"With {each['name']}: {each['title']}", each["domains"])
        for each in report["remedies"]
        if each["helps"]
    ]
    return [*found, _table(contexts), _facts(report["profile"])]


def _columns(title: str, domains: Any) -> page.DomainColumns:
    columns = [
        page.DomainColumn(
            f"Domain {each['number']}", each["capacity"],
            [page.DomainBlock(b["context"], b["what"], b["address"], b["bytes"]) for b in each["blocks"]],
        )
        for each in domains
    ]  # fmt: skip
    return page.DomainColumns(title, columns, "Addresses grow downwards; columns have one scale.")


def _remedy(remedy: Mapping[str, Any]) -> page.Note:
    """Say what a remedy does, and how."""
    if remedy["helps"]:
        order = f"Order: {', '.join(remedy['order'])}."
        text = f"{remedy['name']}, {remedy['title']}: they fit."
        return page.Note(text, f"{remedy['how']}. {order} Premise: {remedy['premise']}.", page.GOOD)
    verdict = remedy.get("proof", "") if remedy["effect"] else "changes nothing here"
    return page.Note(f"{remedy['name']}, {remedy['title']}: {verdict}.")


def _table(contexts: Any) -> page.SortableTable:
    sizes = dict.fromkeys(("weights", "shared", "spill-fill", "op data", "I/O", "charged"), page.BYTES)
    units = {"context": page.TEXT, **sizes, "group": page.TEXT, "from": page.TEXT}
    rows = [
        (
            each["name"], each["weights"], each["shared_weights"], each["spill_fill"], each["op_data"], sum(each["io"]),
            each["charge"], each["group"]["name"] if each["group"] else "", each["from"],
        )
        for each in contexts
    ]  # fmt: skip
    return page.SortableTable("Contexts", page.columns_of(units, ["charged"]), rows, "In bytes.")


def _facts(profile: Mapping[str, Any]) -> page.SortableTable:
    rows = [(each["name"], each["value"], each["source"]) for each in profile["facts"]]
    columns = [page.Column("figure"), page.Column("value"), page.Column("source")]
    return page.SortableTable(f"Profile {profile['name']}", columns, rows)


# -- graphs that are planned together ----------------------------------------------------------------------------------


def graph_sections(report: Mapping[str, Any]) -> list[page.Section]:
    """Return the sections of what ``isthmus plan`` reports of the graphs in context binaries."""
    *parts, whole = report["in_all"]
    caches = report["caches"]
    figures = [page.Figure("Together", whole["together"], page.BYTES, "if no two graphs run at once")]
    figures += [
        page.Figure(each["what"].capitalize() if each["what"].islower() else each["what"], each["together"], page.BYTES,
                    _NEEDS[each["what"]], part=each["together"] / max(whole["together"], 1))
        for each in parts
    ]  # fmt: skip
    note = (
        f"Each graph alone, as if it shared nothing, would make {whole['alone']:,} bytes: {whole['saved']:,} are saved."
    )
    bars = [
        page.Bar(f"{each['what']}, {how}", each[how], tone="accent" if how == "together" else "")
        for each in report["in_all"]
        for how in ("together", "alone")
    ]
    found: list[page.Section] = [
        page.Figures(figures, note=note),
        page.Bars("Together, and each graph alone", bars),
    ]
    if caches:
        sizes = [page.Bar(f"{_tokens(each['context_length'])}, {each['bits']} bits", each["bytes"]) for each in caches]
        note = "Keys and values of all layers, by context length and size of elements: inputs and outputs together."
        found.append(page.Bars("Caches", sizes, note=note))
    units = {"graph": page.TEXT, "tokens": page.COUNT}
    units |= dict.fromkeys(("constants", "shared", "op data", "scratch", "I/O", "cache"), page.BYTES)
    units["context"] = page.TEXT
    keys = ("context_length", "constants", "shared", "op_data", "scratch", "io", "cache")
    rows = [
        (each["name"], *(each[key] for key in keys), context["name"])
        for context in report["contexts"]
        for each in context["graphs"]
    ]
    note = "In bytes. Shared: the constants that graphs of a context share, once for all. The cache is part of I/O."
    found.append(page.SortableTable("Graphs", page.columns_of(units, ["scratch", "I/O"]), rows, note))
    apart = [
        (each["graph"], each["nbytes"], each["constants"], each["reason"], context["name"])
        for context in report["contexts"]
        for each in context["unshared"]
    ]
    if apart:
        units = {"graph": page.TEXT, "bytes": page.BYTES, "constants": page.COUNT}
        units |= {"why": page.TEXT, "context": page.TEXT}
        found.append(page.SortableTable("Not shared", page.columns_of(units, ["bytes"]), apart, "Constants, and why."))
    return found


def _tokens(length: int | None) -> str:
    return "unknown length" if length is None else counted(length, "token")
