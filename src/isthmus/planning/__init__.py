"""Exact offline memory planning: buffers with known lifetimes get offsets in one block of memory.

If that block is too small for all of them, `solve_spills` chooses which stay in it and which move to a slower memory.

This package does not know tensors or graphs. It takes a `Problem` and returns a `Solution` that says how good it is.

Examples
--------
>>> from isthmus.planning import PlannerBuffer, Problem, check, solve
>>> problem = Problem((PlannerBuffer("a", 0, 2, 8), PlannerBuffer("b", 1, 3, 8), PlannerBuffer("c", 2, 4, 8)))
>>> plan = solve(problem)
>>> plan.status.value, plan.peak
('optimal', 16)
>>> check(problem, plan.offsets)
16
"""

from isthmus.planning.bound import lower_bound
from isthmus.planning.greedy import greedy_by_size
from isthmus.planning.problem import Gap, PlannerBuffer, PlanningError, Problem, Solution, Status
from isthmus.planning.solver import solve
from isthmus.planning.spill import SpillItem, SpillProblem, SpillSolution, SpillTraffic, SpillUse
from isthmus.planning.spill_check import check_spills
from isthmus.planning.spill_search import largest_first, solve_spills
from isthmus.planning.table import read_csv, write_csv
from isthmus.planning.validate import check

__all__ = [
    "Gap", "PlannerBuffer", "PlanningError", "Problem", "Solution", "SpillItem", "SpillProblem", "SpillSolution",
    "SpillTraffic", "SpillUse", "Status", "check", "check_spills", "greedy_by_size", "largest_first", "lower_bound",
    "read_csv", "solve", "solve_spills", "write_csv",
]  # fmt: skip
