"""One head pass on the drafter's own tokens."""

from __future__ import annotations

from xpress_exp.solver.jacobi import JacobiSolver


class ParallelSolver(JacobiSolver):
    """Seeds with the base draft and corrects every position once, under the same noise.

    The first Jacobi pass under its own name. num_iterations is accepted for a uniform config and
    has no effect.
    """

    def __init__(self, num_iterations: int | None = None) -> None:  # noqa: ARG002
        super().__init__(num_iterations=1)
