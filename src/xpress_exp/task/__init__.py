"""Prompts on which drafters are measured."""

from xpress_exp.task.prompts import (
    BuiltinHeldout,
    JsonlTask,
    Task,
    TaskPrompt,
    prompts_sha256,
)

__all__ = ["BuiltinHeldout", "JsonlTask", "Task", "TaskPrompt", "prompts_sha256"]
