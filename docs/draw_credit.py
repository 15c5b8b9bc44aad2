"""Draws docs/credit.svg, the worked example of docs/credit.md, from what `compute_credit` gives: python docs/draw_credit.py"""

from pathlib import Path

from gagar_mcore.credit import Attempt, CreditParams, compute_credit
from gagar_mcore.records.types import Credit, Grade, Verdict

TARGET = Path(__file__).with_name("credit.svg")
WIDTH, JUDGED, AXIS, SCALE, TOP, ROW = 720, 90, 420, 250, 70, 30
STYLE = """
text { font: 13px system-ui, sans-serif; fill: #333 }
.title { font-weight: 600; font-size: 15px }
.number { text-anchor: end; font-variant-numeric: tabular-nums }
.small { font-size: 12px; fill: #666 }
.axis { stroke: #888 }
.before { fill: none; stroke: #888; stroke-dasharray: 3 2 }
.up { fill: #2f8f5b } .down { fill: #c4553b }
@media (prefers-color-scheme: dark) {
  text { fill: #ddd } .small { fill: #aaa }
  .up { fill: #4fb580 } .down { fill: #de7a62 }
}"""


CLEAN = Grade(5, 5, 5, 5, 5)
GRADES = {
    "t1": CLEAN,
    "t2": Grade(4, 4, 5, 5, 5),
    "t3": Grade(3, 4, 4, 4, 4),
    "t4": Grade(3, 3, 3, 3, 3),
    "t5": Grade(4, 3, 2, 3, 3, rewrite=True),
    "t6": CLEAN,
}
GROUP = [*(Attempt(id, 1.0) for id in GRADES), Attempt("t7", 0.0), Attempt("t8", 0.0)]
VERDICT = Verdict("example", GRADES, hacks=["t6"])


def example() -> tuple[Credit, Credit]:
    """The outcome advantages and the redistributed ones."""
    outcome = compute_credit(GROUP, VERDICT, CreditParams("grpo"))
    return outcome, compute_credit(GROUP, VERDICT, CreditParams())


def picture() -> str:
    outcome, credit = example()
    rows = [row(index, member.id, outcome, credit) for index, member in enumerate(GROUP)]
    bottom = TOP + ROW * len(GROUP)
    total = sum(credit.advantages[id] for id in credit.factors)
    note = f"lambda {credit.lam:.4f}; the five passes have {total:.3f} in all, before and after; the group sums to 0"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {bottom + 40}" role="img">',
        f"<title>Outcome advantage and redistributed advantage of eight trajectories</title><style>{STYLE}\n</style>",
        '<text class="title" x="10" y="24">Credit of one group: from outcome (dashed) to redistributed advantage (bars)</text>',
        f'<text class="small" x="10" y="50">trajectory</text><text class="small" x="{JUDGED}" y="50">judgement</text>',
        *rows,
        f'<line class="axis" x1="{AXIS}" x2="{AXIS}" y1="{TOP - 12}" y2="{bottom}"/>',
        f'<text class="small" x="10" y="{bottom + 22}">{note}</text>',
        "</svg>\n",
    ]
    return "\n".join(parts)


def row(index: int, id: str, outcome: Credit, credit: Credit) -> str:
    before, after = outcome.advantages[id], credit.advantages[id]
    y = TOP + ROW * index
    return "".join(
        [
            f'<text x="10" y="{y + 8}">{id}</text>',
            f'<text class="small" x="{JUDGED}" y="{y + 8}">{judgement(id, credit)}</text>',
            f'<rect class="{"up" if after > 0 else "down"}" {span(after)} y="{y - 6}" height="18"/>',
            f'<rect class="before" {span(before)} y="{y - 6}" height="18"/>',
            f'<text class="number" x="{WIDTH - 10}" y="{y + 8}">{before:+.3f} → {after:+.3f}</text>',
        ]
    )


def judgement(id: str, credit: Credit) -> str:
    if id in VERDICT.hacks:
        return "confirmed hack"
    return f"tier {credit.tiers[id]}, f {credit.factors[id]:g}" if id in credit.factors else "failed"


def span(value: float) -> str:
    length = round(abs(value) * SCALE, 2)
    return f'x="{round(AXIS - length, 2) if value < 0 else AXIS:g}" width="{length:g}"'


if __name__ == "__main__":
    TARGET.write_text(picture(), encoding="utf-8")
