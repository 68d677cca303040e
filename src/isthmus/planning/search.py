"""The exact search: it places the buffers of one component one by one, bottom up, and proves that nothing is missed.

The same functions run interpreted on lists, for small components, and as machine code on arrays; see `machine`. All
compiled code is in this file. It is written so that a field can be a bare pointer: nothing uses its length.

How it works
    In any layout that fits, buffers can be moved down until none can move further. Each buffer is then at its *floor*,
    the lowest offset above all conflicting buffers below it. So it is enough to search such layouts. The search takes
    the lowest floor first and places a buffer on it. If that fails, the buffer is *skipped*: in every remaining layout
    some conflicting buffer is in its way. The lowest top of the buffers that could be is its new *reach*, an offset
    that it cannot go below. If there is no such buffer, no layout remains.

    At each node the remaining buffers must fit between reach and ceiling. In each section of time they do not overlap:
    all those whose reach is at least that of a given buffer must fit together above that reach.

    If no remaining buffer spans some point in time, the two sides are independent: each is searched separately, and if
    one fails, its neighbours are not searched again.

    Among layouts that differ only in the order of directly stacked buffers with the same lifetime, or of equal buffers,
    one is enough. (Proof: take the layout with the smallest sum of weight times offset, where the weight of a buffer is
    its size divided by its rank. No buffer in it can move down, and it has such buffers in order of rank.)

All offsets are in units of the component; times are sections, see `component`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

# Results of `advance`.
SOLVED, EXHAUSTED, PAUSED, FULL = 1, 0, -1, -2

# An offset above all others.
FAR = 1 << 62

# The next action (phase) for the frame on top of the stack: choose a buffer, skip the chosen buffer and choose another,
# leave a part whose buffers are all placed, begin the next part.
ENTER, RETRY, LEAVE, NEXT_PART = 0, 1, 2, 3

# Registers of a paused search, then the lengths of some of its fields.
DEPTH, TRAIL_TOP, PHASE, NODES_LEFT, MEMBERS, TRAIL_LENGTH, ORDER_LENGTH, REGISTERS = range(8)

# Fields of a frame. A frame either chooses one buffer of a part, or iterates over the parts that a choice has left.
# FIRST, COUNT: the remaining buffers, as a range of `order`. LEFT, RIGHT: the range of sections; while a frame iterates
# over parts, LEFT is where the next part begins. CHOSEN: the buffer that was chosen last. ENTRY_MARK, CHOICE_MARK: the
# top of the trail when the frame was entered, and before its buffer was placed. SPLIT: the depth of the frame that
# iterates over the parts of which this is one, or -1. CALLER: the depth of the frame that tries again if this one
# fails, or -1. FROM, TO: the sections whose space must be checked, because something in them has changed.
FIRST, COUNT, LEFT, RIGHT, CHOSEN, ENTRY_MARK, CHOICE_MARK, SPLIT, CALLER, FROM, TO, FRAME = range(12)

# Kinds of trail entry: a raised offset, a placed buffer, a changed turn. An entry has ENTRY numbers: the kind, the
# buffer, and two old values.
ROSE, PLACED, TURN = 0, 1, 2
ENTRY = 4


class State(NamedTuple):
    """The state of one search. Every field is a flat list or array of 64-bit integers.

    Buffers are the members of the component, numbered from 0.

    - `size`, `limit`, `alignment`: for each buffer: its size, the highest offset that it may have, and its alignment.
    - `conflict_first`, `conflict`: the conflicts of buffer ``x`` are
      ``conflict[conflict_first[x]:conflict_first[x + 1]]``.
    - `piece_first`, `piece_left`, `piece_right`, `left`, `right`: the sections of each buffer; see
      `component.Component`.
    - `barrier_first`, `barrier_low`, `barrier_high`: the fixed buffers that each buffer must not overlap, from low to
      high; ``barrier_first`` is like ``conflict_first``.
    - `group`: for each buffer a number that it shares with all that have the same lifetime and no constraints.
    - `ceiling`: one number: the top of the memory.
    - `by_crowd`: one number: 1 if buffers where memory is scarcest come first.
    - `rank`, `twin`: for each buffer: its place in the order of preference, and the closest identical buffer before it,
      or -1.
    - `floor`, `reach`, `placed`: for each buffer: see the module's explanation; `placed` is 0 or 1.
    - `total`: for each section, the sum of the sizes of the buffers that are not placed.
    - `spans`: for each section, how many buffers that are not placed span the border to the next section.
    - `turn`: for each buffer, its place in the order of preference within its part.
    - `order`: the buffers of every frame on the stack, one range after another.
    - `group_last`, `group_top`: for each group: the buffer placed last, or -1, and its top.
    - `frames`, `trail`, `registers`: the stack of frames, the changes to undo, and what else a paused search must keep.
    - `blame`: how often each buffer was the one that no longer fitted.
    - `load`, `crowd`, `bag`: temporary storage of `fits`, `give_turns` and `sort_by_reach`.
    """

    # The component (read only).
    size: Any
    limit: Any
    alignment: Any
    conflict_first: Any
    conflict: Any
    piece_first: Any
    piece_left: Any
    piece_right: Any
    left: Any
    right: Any
    barrier_first: Any
    barrier_low: Any
    barrier_high: Any
    group: Any
    # The parameters of this search (read only).
    ceiling: Any
    by_crowd: Any
    rank: Any
    twin: Any
    # The partial layout.
    floor: Any
    reach: Any
    placed: Any
    total: Any
    spans: Any
    turn: Any
    order: Any
    group_last: Any
    group_top: Any
    # The data for backtracking.
    frames: Any
    trail: Any
    registers: Any
    # The result for later attempts.
    blame: Any
    # Temporary storage.
    load: Any
    crowd: Any
    bag: Any


def lift(s: State, x: int, offset: int) -> int:
    """Return the lowest aligned offset of buffer `x`, at or above the given one, that avoids fixed buffers."""
    size, alignment, barrier_first = s.size, s.alignment, s.barrier_first
    barrier_low, barrier_high = s.barrier_low, s.barrier_high
    step = alignment[x]
    at = offset if step == 1 else -(-offset // step) * step
    for k in range(barrier_first[x], barrier_first[x + 1]):
        if at < barrier_high[k] and at + size[x] > barrier_low[k]:
            at = -(-barrier_high[k] // step) * step
    return at


def undo(s: State, top: int, mark: int) -> int:
    """Undo everything on the trail above the mark, where `top` is its end; return the new end."""
    size, piece_first, piece_left, piece_right = s.size, s.piece_first, s.piece_left, s.piece_right
    left, right, group, floor, reach, placed = s.left, s.right, s.group, s.floor, s.reach, s.placed
    total, spans, turn, group_last, group_top = s.total, s.spans, s.turn, s.group_last, s.group_top
    trail = s.trail
    while top > mark:
        top -= ENTRY
        x = trail[top + 1]
        if trail[top] == ROSE:
            floor[x] = trail[top + 2]
            reach[x] = trail[top + 3]
        elif trail[top] == PLACED:
            placed[x] = 0
            group_last[group[x]] = trail[top + 2]
            group_top[group[x]] = trail[top + 3]
            for k in range(piece_first[x], piece_first[x + 1]):
                for t in range(piece_left[k], piece_right[k]):
                    total[t] += size[x]
            for t in range(left[x], right[x] - 1):
                spans[t] += 1
        else:
            turn[x] = trail[top + 2]
    return top


def note(s: State, top: int, kind: int, x: int, a: int, b: int) -> int:
    """Record on the trail how to undo a change of buffer `x`: the kind, and the old values `a` and `b`.

    Return the new end of the trail. The values are floor and reach for ``ROSE``, `group_last` and `group_top` for
    ``PLACED``, and the turn for ``TURN``.
    """
    trail = s.trail
    trail[top] = kind
    trail[top + 1] = x
    trail[top + 2] = a
    trail[top + 3] = b
    return top + ENTRY


def reach_of_skipped(s: State, x: int, lowest: int) -> int:
    """Return the reach of a skipped buffer: the lowest offset that it can have if it may not be on its floor.

    Then some conflicting buffer y, not placed yet, is in its way, and it is above y. The result is `FAR` if there is no
    such y. No buffer that is still to be placed goes below `lowest`.
    """
    size, conflict_first, conflict, floor = s.size, s.conflict_first, s.conflict, s.floor
    reach, placed = s.reach, s.placed
    best = FAR
    top = floor[x] + size[x]
    for k in range(conflict_first[x], conflict_first[x + 1]):
        y = conflict[k]
        if placed[y] == 0:
            at = max(reach[y], lowest)
            if at < top and at + size[y] < best:
                best = at + size[y]
    return lift(s, x, best) if best < FAR else best


def sort_by_reach(s: State, first: int, count: int) -> None:
    """Sort a range of the order by reach, after some of its buffers were raised.

    Seen from the end, a raised buffer is one whose reach is higher than that of a buffer after it. Such buffers are
    taken out, and merged back in.
    """
    reach, order, bag = s.reach, s.order, s.bag
    least = FAR
    taken = 0
    gap = first + count
    for i in range(first + count - 1, first - 1, -1):
        x = order[i]
        if reach[x] > least:
            j = taken
            while j > 0 and reach[bag[j - 1]] < reach[x]:
                bag[j] = bag[j - 1]
                j -= 1
            bag[j] = x
            taken += 1
        else:
            least = reach[x]
            gap -= 1
            order[gap] = x
    # The other buffers are now at the end of the range, and the bag is in descending order of reach: merge from the
    # front.
    write = first
    while taken > 0:
        x = bag[taken - 1]
        while gap < first + count and reach[order[gap]] <= reach[x]:
            order[write] = order[gap]
            write += 1
            gap += 1
        order[write] = x
        write += 1
        taken -= 1


def fits(s: State, first: int, count: int, begin: int, end: int) -> bool:
    """Return whether the sections from begin to end have space for a range of the order that is sorted by reach.

    From the highest reach down, each buffer and all before it must fit between its reach and the ceiling.
    """
    size, piece_first, piece_left, piece_right = s.size, s.piece_first, s.piece_left, s.piece_right
    left, right, ceiling, reach, order = s.left, s.right, s.ceiling, s.reach, s.order
    blame, load = s.blame, s.load
    roof = ceiling[0]
    for t in range(begin, end):
        load[t] = 0
    for i in range(first + count - 1, first - 1, -1):
        x = order[i]
        if left[x] < end and right[x] > begin:
            height = size[x]
            most = 0
            for k in range(piece_first[x], piece_first[x + 1]):
                for t in range(max(piece_left[k], begin), min(piece_right[k], end)):
                    loaded = load[t] + height
                    load[t] = loaded
                    most = max(most, loaded)
            if reach[x] + most > roof:
                blame[x] += 1
                return False
    return True


def give_turns(s: State, top: int, first: int, count: int) -> int:
    """Order the buffers of a new part by preference, and store their positions as their turns.

    Return the new end of the trail, whose end was `top`.
    """
    piece_first, piece_left, piece_right = s.piece_first, s.piece_left, s.piece_right
    by_crowd, rank, total, turn, order = s.by_crowd, s.rank, s.total, s.turn, s.order
    crowd = s.crowd
    for i in range(first, first + count):
        x = order[i]
        most = 0
        if by_crowd[0] == 1:
            for k in range(piece_first[x], piece_first[x + 1]):
                for t in range(piece_left[k], piece_right[k]):
                    most = max(most, total[t])
        crowd[x] = most
    for i in range(first + 1, first + count):
        x = order[i]
        j = i - 1
        while j >= first and (crowd[order[j]] < crowd[x] or (crowd[order[j]] == crowd[x] and rank[order[j]] > rank[x])):
            order[j + 1] = order[j]
            j -= 1
        order[j + 1] = x
    for i in range(first, first + count):
        x = order[i]
        top = note(s, top, TURN, x, turn[x], 0)
        turn[x] = i - first
    return top


def advance(s: State, nodes: int) -> int:
    """Continue a search for a number of nodes.

    Returns ``SOLVED``: `floor` holds the offsets. ``EXHAUSTED``: no layout exists. ``PAUSED``: the nodes are used up.
    ``FULL``: continue with a longer trail and order. The register ``NODES_LEFT`` holds the number of unused nodes.
    """
    size, limit, conflict_first, conflict = s.size, s.limit, s.conflict_first, s.conflict
    piece_first, piece_left, piece_right, left = s.piece_first, s.piece_left, s.piece_right, s.left
    right, group, rank, twin, floor, reach = s.right, s.group, s.rank, s.twin, s.floor, s.reach
    placed, total, spans, turn, order = s.placed, s.total, s.spans, s.turn, s.order
    group_last, group_top, frames = s.group_last, s.group_top, s.frames
    registers, blame = s.registers, s.blame
    depth = registers[DEPTH]
    top = registers[TRAIL_TOP]
    phase = registers[PHASE]
    # The maximum that one node writes: a trail entry for each buffer that is raised, reviewed or gets a turn, and the
    # order of the remaining buffers when one is placed, twice if they split into parts.
    trail_reserve = ENTRY * (4 * registers[MEMBERS] + 8)
    order_reserve = 2 * registers[MEMBERS]
    trail_length = registers[TRAIL_LENGTH]
    order_length = registers[ORDER_LENGTH]
    result = PAUSED
    while True:
        frame = depth * FRAME
        if phase == LEAVE:
            # The part is placed; continue with its neighbours, or with those of the enclosing part.
            depth = frames[frame + SPLIT]
            if depth < 0:
                result = SOLVED
                break
            phase = NEXT_PART
            continue

        first = frames[frame + FIRST]
        count = frames[frame + COUNT]
        after = first + count
        if phase == NEXT_PART:
            # A part extends to the next point in time that no buffer spans.
            stop = frames[frame + LEFT]
            begin = stop
            members = 0
            while members == 0 and stop < frames[frame + RIGHT]:
                begin = stop
                stop = begin + 1
                while stop < frames[frame + RIGHT] and spans[stop - 1] > 0:
                    stop += 1
                for i in range(first, after):
                    x = order[i]
                    if left[x] >= begin and right[x] <= stop:
                        order[after + members] = x
                        members += 1
            if members == 0:
                phase = LEAVE
                continue
            frames[frame + LEFT] = stop
            top = give_turns(s, top, after, members)
            part = frame + FRAME
            frames[part + FIRST] = after
            frames[part + COUNT] = members
            frames[part + LEFT] = begin
            frames[part + RIGHT] = stop
            frames[part + ENTRY_MARK] = frames[frame + ENTRY_MARK]
            frames[part + SPLIT] = depth
            frames[part + CALLER] = frames[frame + CALLER]
            # The space was checked before the split.
            frames[part + FROM] = begin
            frames[part + TO] = begin
            depth += 1
            phase = ENTER
            continue

        if nodes <= 0 or trail_length - top < trail_reserve or order_length - after < order_reserve:
            result = PAUSED if nodes <= 0 else FULL
            break
        nodes -= 1
        changed_from = frames[frame + FROM]
        changed_to = frames[frame + TO]
        alive = True

        lowest = FAR
        if phase == RETRY:
            c = frames[frame + CHOSEN]
            top = undo(s, top, frames[frame + CHOICE_MARK])
            changed_from = left[c]
            changed_to = right[c]
            at = reach_of_skipped(s, c, floor[c])
            if at > limit[c]:
                alive = False
            else:
                top = note(s, top, ROSE, c, floor[c], reach[c])
                reach[c] = at

        # Review skipped buffers: those that could have been in their way may now be higher or elsewhere.
        if alive:
            for i in range(first, after):
                x = order[i]
                if reach[x] == floor[x] and reach[x] < lowest:
                    lowest = reach[x]
            for i in range(first, after):
                x = order[i]
                if reach[x] > floor[x]:
                    at = reach_of_skipped(s, x, lowest)
                    if at > limit[x]:
                        alive = False
                        break
                    if at > reach[x]:
                        top = note(s, top, ROSE, x, floor[x], reach[x])
                        reach[x] = at
                        changed_from = min(changed_from, left[x])
                        changed_to = max(changed_to, right[x])
        if alive:
            sort_by_reach(s, first, count)
            alive = fits(s, first, count, changed_from, changed_to)
        c = -1
        if alive:
            for i in range(first, after):
                x = order[i]
                if c >= 0 and reach[x] > floor[c]:
                    break
                if reach[x] == floor[x] and (c < 0 or turn[x] < turn[c]):
                    c = x
            # Only a fixed buffer in the way can have raised a floor too high without being noticed earlier.
            alive = c >= 0 and floor[c] <= limit[c]
        if not alive:
            top = undo(s, top, frames[frame + ENTRY_MARK])
            depth = frames[frame + CALLER]
            if depth < 0:
                result = EXHAUSTED
                break
            phase = RETRY
            continue

        frames[frame + CHOSEN] = c
        frames[frame + CHOICE_MARK] = top
        phase = RETRY
        # Of layouts that differ only in the order of such buffers, only the one in order of rank is searched.
        kin = group[c]
        below = group_last[kin]
        if twin[c] >= 0 and placed[twin[c]] == 0:
            continue
        if below >= 0 and group_top[kin] == floor[c] and rank[below] > rank[c]:
            continue

        # Place it, and raise the buffers that conflict with it.
        up = floor[c] + size[c]
        top = note(s, top, PLACED, c, below, group_top[kin])
        placed[c] = 1
        group_last[kin] = c
        group_top[kin] = up
        for k in range(piece_first[c], piece_first[c + 1]):
            for t in range(piece_left[k], piece_right[k]):
                total[t] -= size[c]
        splits = False
        for t in range(left[c], right[c] - 1):
            spans[t] -= 1
            if spans[t] == 0:
                splits = True
        changed_from = left[c]
        changed_to = right[c]
        for k in range(conflict_first[c], conflict_first[c + 1]):
            x = conflict[k]
            if placed[x] == 0 and floor[x] < up:
                top = note(s, top, ROSE, x, floor[x], reach[x])
                at = lift(s, x, up)
                floor[x] = at
                reach[x] = max(reach[x], at)
                changed_from = min(changed_from, left[x])
                changed_to = max(changed_to, right[x])
                if at > limit[x]:
                    alive = False
                    blame[x] += 1
        if not alive:
            continue
        if count == 1:
            phase = LEAVE
            continue

        write = after
        for i in range(first, after):
            if order[i] != c:
                order[write] = order[i]
                write += 1
        if splits:
            # Before the sides are searched one after the other, check that none is hopeless.
            sort_by_reach(s, after, count - 1)
            if not fits(s, after, count - 1, changed_from, changed_to):
                continue
        child = frame + FRAME
        frames[child + FIRST] = after
        frames[child + COUNT] = count - 1
        frames[child + LEFT] = frames[frame + LEFT]
        frames[child + RIGHT] = frames[frame + RIGHT]
        frames[child + ENTRY_MARK] = top
        frames[child + CALLER] = depth
        frames[child + SPLIT] = frames[frame + SPLIT]
        frames[child + FROM] = changed_from
        frames[child + TO] = changed_to
        depth += 1
        phase = NEXT_PART if splits else ENTER

    registers[DEPTH] = depth
    registers[TRAIL_TOP] = top
    registers[PHASE] = phase
    registers[NODES_LEFT] = nodes
    return result


Advance = Callable[[State, int], int]
"""The function `advance`, or its machine code."""
