"""How a resumed training reads its checkpoint: as data, whoever wrote the file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lightning.pytorch.plugins.io import TorchCheckpointIO

from xpress_exp.export import read_pickle
from xpress_exp.run_dir import ArtefactError

# Without these Lightning would resume half a training, or fail far from the cause.
NEEDED = ("state_dict", "optimizer_states", "lr_schedulers", "loops", "global_step")


class PlainCheckpointIO(TorchCheckpointIO):
    """Writes as Lightning does; reads tensors, numbers, texts and containers of them only."""

    def load_checkpoint(self, path: Any, *_options: Any, **_named: Any) -> dict[str, Any]:
        """The checkpoint, tensors on the CPU. Lightning's own options are not asked: no caller may
        loosen the reading. Raises ArtefactError for a file that is missing, damaged, cut short, no
        checkpoint, or holds anything that would have to be executed."""
        file = Path(path)
        remedy = f"delete {file.parent} to train from the start, or put back a sound copy"
        try:
            content = read_pickle(file)
        except ArtefactError as error:
            raise ArtefactError(f"{error}; {remedy}") from error
        lacking = [key for key in NEEDED if key not in content]
        if lacking:
            raise ArtefactError(f"{file} lacks {', '.join(lacking)}; {remedy}")
        return content
