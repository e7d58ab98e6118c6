"""Solvers: parallel, sequential, jacobi."""

from __future__ import annotations

from xpress_exp.solver.compiled import CompiledSolver
from xpress_exp.solver.contract import BlockState, Solver
from xpress_exp.solver.jacobi import JacobiSolver
from xpress_exp.solver.parallel import ParallelSolver
from xpress_exp.solver.sequential import SequentialSolver

__all__ = [
    "BlockState",
    "CompiledSolver",
    "JacobiSolver",
    "ParallelSolver",
    "SequentialSolver",
    "Solver",
]
