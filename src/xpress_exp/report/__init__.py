"""Result rows, tables and figures from stored evaluation records."""

from xpress_exp.report.collect import (
    COLUMNS,
    ExpectedPoint,
    ResultRow,
    collect,
)
from xpress_exp.report.difference import PairedDifference, differences
from xpress_exp.report.figure import write_figures
from xpress_exp.report.recommendation import recommendation, terminal_recommendation
from xpress_exp.report.summary import results_markdown
from xpress_exp.report.table import terminal_table, write_csv

__all__ = [
    "COLUMNS",
    "ExpectedPoint",
    "PairedDifference",
    "ResultRow",
    "collect",
    "differences",
    "recommendation",
    "results_markdown",
    "terminal_recommendation",
    "terminal_table",
    "write_csv",
    "write_figures",
]
