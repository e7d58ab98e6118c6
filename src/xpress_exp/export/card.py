"""README.md of an exported folder: what it is, what it scored, where it comes from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from xpress_exp.export.content import Content

COLUMNS = ("task", "temperature", "solver", "passes", "prompts", "tau", "speed-up")


def model_card(
    name: str, content: Content, facts: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]
) -> str:
    """Markdown. facts: provenance; rows: one mapping per measurement with the keys COLUMNS, empty
    when the run was not evaluated."""
    drafter, head, target = content.drafter, content.head, content.target
    settings = ", ".join(
        f"{key}={value}" for key, value in head.items() if key not in ("name", "_target_")
    )
    return f"""# {head["name"]} drafter for {target.name_or_path or target.name}

Format `{name}`. A dFlash drafter of {drafter["num_layers"]} layers, block size
{drafter["block_size"]}, slot convention `{drafter["slot_convention"]}`: {
        content.slots.num_draft_tokens
    } draft tokens per block.
Head `{head["name"]}`{f" ({settings})" if settings else ""}.

| | |
| --- | --- |
| target layers (outputs, from 0) | {list(drafter["target_layer_ids"])} |
| mask token | {drafter["mask_token_id"]} |
| vocabulary SHA-256 | `{target.tokenizer_sha256}` |
| chat template SHA-256 | `{target.chat_template_sha256}` |
| commit | `{facts.get("commit", "unknown")}` |
| optimizer steps | {facts.get("training", {}).get("optimizer_steps", "unknown")} |

## Measured

{_table(rows)}

config.json says under `xpress_exp` what its other fields cannot; provenance.json holds settings,
versions and hashes.
"""


def _table(rows: Sequence[Mapping[str, Any]]) -> str:
    if not rows:
        return "This run was not evaluated."
    lines = [f"| {' | '.join(COLUMNS)} |", f"|{' --- |' * len(COLUMNS)}"]
    lines += [f"| {' | '.join(str(row[column]) for column in COLUMNS)} |" for row in rows]
    return "\n".join(lines)
