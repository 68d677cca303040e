"""The memory map as SVG, for documents: the same blocks and colours as on a page, without its script."""

from __future__ import annotations

import itertools
from xml.sax.saxutils import escape

from isthmus.errors import counted
from isthmus.prepare.schedule import Plan, PlanRow
from isthmus.report.memory_map import round_numbers, size
from isthmus.report.names import shorten

WIDTH, HEIGHT = 960, 420
_LEFT, _RIGHT, _TOP, _BOTTOM = 76, 12, 58, 34
# The average width of a letter, in the units of the picture.
_LETTER = 6.4
# Colours of blocks: cool ones (c), warm ones for what is live at the peak (w), work space (k).
_STYLE = """
text{font:12px system-ui,-apple-system,"Segoe UI",Roboto,"Noto Sans",sans-serif;fill:#1b1e24}
.title{font-size:16px;font-weight:600}.muted{fill:#5a606b}.ground{fill:#fff}.line{stroke:#e2dfd9}
.c0{fill:#a9c1d0}.c1{fill:#bccfda}.c2{fill:#97b3c5}.c3{fill:#cbd9e1}.w0{fill:#f0a177}.w1{fill:#f5b896}.w2{fill:#e88d5f}
.k{fill:#d9d6d0}.peak{stroke:#b93a0b;stroke-width:1.5;stroke-dasharray:4 3}.at{fill:#b93a0b;font-weight:600}
@media(prefers-color-scheme:dark){text{fill:#eceae5}.muted{fill:#a3a9b5}.ground{fill:#1c1f25}.line{stroke:#343943}
.c0{fill:#3f5b6c}.c1{fill:#4a687a}.c2{fill:#354f60}.c3{fill:#557488}.w0{fill:#dd7a4b}.w1{fill:#c96a3e}.w2{fill:#ec9266}
.k{fill:#4a4e57}.peak{stroke:#ff9461}.at{fill:#ff9461}rect.w0+text,rect.w1+text,rect.w2+text{fill:#14161a}}
"""


def draw_svg(plan: Plan, title: str) -> str:
    """Draw the memory map of a plan as SVG, with a heading; each block has its name and size as a tooltip.

    Examples
    --------
    >>> rows = (PlanRow("conv_1", 128, 0, 1, 0), PlanRow("a<b", 64, 1, 2, 128))
    >>> plan = Plan(192, 192, "optimal", 192, 256, 1, ("conv_1",), rows, (("Relu", "r"),) * 4, 0, 0, 0.0)
    >>> text = draw_svg(plan, "model.onnx")
    >>> text.count("<rect"), "a&lt;b" in text, "http:" in text.replace("http://www.w3.org/2000/svg", "")
    (3, True, False)
    """
    rows = [row for row in plan.rows if row.bytes]
    begin = min([0, *(row.first for row in rows)])
    steps = max([len(plan.steps), 1, *(row.last + 1 for row in rows)]) - begin
    wide, high = WIDTH - _LEFT - _RIGHT, HEIGHT - _TOP - _BOTTOM
    total = max(plan.bytes, 1)

    def x(step: float) -> float:
        return round(_LEFT + (step - begin) / steps * wide, 2)

    def y(offset: int) -> float:
        return round(_TOP + (1 - offset / total) * high, 2)

    proof = "proved optimal" if plan.status == "optimal" else f"lower bound {plan.lower_bound:,}"
    heading = f"{counted(plan.bytes, 'byte')} of scratch, {proof}; {counted(len(plan.steps), 'step')}"
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">',
        f"<title>{_text(title)}: {heading}</title><style>{_STYLE}</style>",
        f'<rect class="ground" width="{WIDTH}" height="{HEIGHT}" rx="10"/>',
        f'<text class="title" x="16" y="26">{_text(shorten([title], 70)[0])}</text>',
        f'<text class="muted" x="{WIDTH - 16}" y="26" text-anchor="end">{heading}</text>',
    ]
    for part in range(5):
        level = y(total * part // 4)
        out.append(f'<path class="line" d="M{_LEFT} {level}H{WIDTH - _RIGHT}"/>')
        label = size(total * part // 4)
        out.append(f'<text class="muted" x="{_LEFT - 8}" y="{level + 4}" text-anchor="end">{label}</text>')
    every = next(n for n in round_numbers() if n * wide >= 60 * steps)
    for step in range(0, begin + steps, every):
        label = f'x="{x(step + 0.5)}" y="{HEIGHT - 14}" text-anchor="middle">{step}'
        out.append(f'<text class="muted" {label}</text>')
    out.append(f'<text class="muted" x="{_LEFT - 8}" y="{HEIGHT - 14}" text-anchor="end">step</text>')
    cool, warm = itertools.cycle(("c0", "c1", "c2", "c3")), itertools.cycle(("w0", "w1", "w2"))
    for row in rows:
        at_peak = row.first <= plan.peak_step <= row.last
        kind = next(warm) if at_peak else "k" if row.name.endswith(" (work)") else next(cool)
        left, top = x(row.first), y(row.offset + row.bytes)
        out.append(_block(row, kind, left, top, x(row.last + 1) - left, y(row.offset) - top))
    if 0 <= plan.peak_step < begin + steps:
        middle = x(plan.peak_step + 0.5)
        out.append(f'<path class="peak" d="M{middle} {_TOP - 6}V{HEIGHT - _BOTTOM}"/>')
        at = min(max(middle, _LEFT + 40), WIDTH - _RIGHT - 40)
        out.append(f'<text class="at" x="{at}" y="{_TOP - 10}" text-anchor="middle">peak: step {plan.peak_step}</text>')
    return "\n".join([*out, "</svg>\n"])


def _block(row: PlanRow, kind: str, left: float, top: float, wide: float, high: float) -> str:
    """Return a block, with its name where there is room for it."""
    # A gap between neighbours, unless nothing would be left.
    size_ = f'width="{wide - (wide > 3):.2f}" height="{max(high - (high > 3), 0.3):.2f}"'
    tip = f"<title>{_text(row.name)}: {row.bytes:,} bytes at {row.offset:,}, steps {row.first} to {row.last}</title>"
    block = f'<rect class="{kind}" x="{left}" y="{top}" {size_}>{tip}</rect>'
    letters = int((wide - 10) / _LETTER)
    if letters < 6 or high < 15:
        return block
    name = _text(shorten([row.name], letters)[0])
    return f'{block}<text x="{left + 5}" y="{top + high / 2 + 4:.2f}" pointer-events="none">{name}</text>'


def _text(text: str) -> str:
    """Return a text as XML: escaped, without characters that XML cannot have."""
    return escape("".join(char if char.isprintable() else "?" for char in text))
