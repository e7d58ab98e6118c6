"""The published dFlash layout (z-lab): bare parameter names, no head, slots filled in."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from xpress_exp.export.backbone import (
    convention_of,
    drafter_config,
    read_drafter,
    read_target,
    top_and_nested,
)
from xpress_exp.export.content import Content
from xpress_exp.export.layout import Layout

NO_HEAD = {"name": "none"}


def _write(content: Content, dtype: str) -> dict[str, Any]:
    return {"architectures": ["DFlashDraftModel"], **drafter_config(content, dtype)}


def _read(config: Mapping[str, Any], file: Path) -> Content:
    fields = top_and_nested(config, file)
    convention = convention_of(fields, samples_from_anchor=False)
    return Content(read_drafter(fields, convention), NO_HEAD, read_target(fields))


ZLAB = Layout("zlab", _write, _read)
