"""Problems with a known answer: a square of time and memory, cut into pieces."""

from __future__ import annotations

import random

from isthmus.planning import PlannerBuffer, Problem


def square_in_pieces(pieces: int, seed: int, side: int = 256) -> Problem:
    """Buffers that fill a square without a hole, so that its side is the smallest peak."""
    chance = random.Random(seed)
    rectangles = [(0, side, 0, side)]
    while len(rectangles) < pieces:
        x0, x1, y0, y1 = rectangles.pop(chance.randrange(len(rectangles)))
        x, y = chance.randint(x0, x1), chance.randint(y0, y1)
        halves = [(x0, x, y0, y1), (x, x1, y0, y1)] if chance.random() < 0.5 else [(x0, x1, y0, y), (x0, x1, y, y1)]
        rectangles += [(a, b, c, d) for a, b, c, d in halves if a < b and c < d]
    chance.shuffle(rectangles)
    return Problem(tuple(PlannerBuffer(str(i), a, b, d - c) for i, (a, b, c, d) in enumerate(rectangles)))
