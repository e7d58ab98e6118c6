"""The one door from configuration to objects, and to a trained model on disk."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from hydra.utils import get_object
from omegaconf import DictConfig
from safetensors.torch import save_file
from torch import Tensor, nn

from xpress_exp.drafter import DFlashDrafter
from xpress_exp.export import (
    Content,
    check_target,
    check_wanted,
    make_drafter,
    make_head,
    read_folder,
    read_tensors,
)
from xpress_exp.few_rows import FewRows, LayoutChoice, freeze_linears, shared
from xpress_exp.head import CorrectionHead
from xpress_exp.readout import vocab_logits
from xpress_exp.run_dir import (
    ArtefactError,
    RunDir,
    atomic_path,
    read_json,
    sha256_file,
)
from xpress_exp.schema import initial_folder, plain, run_path, weights_file
from xpress_exp.target import TargetModel
from xpress_exp.types import ModelDims, SlotConvention, SlotMap

# Keys of the drafter group that say how the drafter is used, not how it is built.
_USAGE_KEYS = (
    "init",
    "block_size",
    "slot_convention",
    "num_unused_slots",
    "target_layer_ids",
    "draft_vocab",
)


class DraftModel(nn.Module):
    """A drafter with its correction head and the target's frozen LM head.

    Only drafter and head are parameters; lm_head [V, H] is the target's and is never saved.
    vocab_ids int64 [V'] lists a reduced draft vocabulary, None means the full one;
    vocab_index int64 [V] is its inverse with -1 outside.
    """

    lm_head: Tensor
    draft_rows: Tensor
    vocab_ids: Tensor | None
    vocab_index: Tensor | None

    def __init__(
        self,
        drafter: DFlashDrafter,
        head: CorrectionHead,
        lm_head: Tensor,
        vocab_ids: Tensor | None,
    ) -> None:
        super().__init__()
        self.drafter = drafter
        self.head = head
        self.register_buffer("lm_head", lm_head, persistent=False)
        self.register_buffer("vocab_ids", vocab_ids, persistent=False)
        rows, index = lm_head, None
        if vocab_ids is not None:
            rows = lm_head[vocab_ids]
            index = torch.full((len(lm_head),), -1, device=lm_head.device)
            index[vocab_ids] = torch.arange(len(vocab_ids), device=lm_head.device)
        self.register_buffer("draft_rows", rows, persistent=False)
        # In a tuple: it is no part of the state, which holds the weights once.
        self._fast_rows: tuple[FewRows, ...] = ()
        self.register_buffer("vocab_index", index, persistent=False)

    @property
    def slots(self) -> SlotMap:
        return self.drafter.slots

    def base_logits(self, hidden: Tensor) -> Tensor:
        """Logits of the bare drafter [..., V'] of hidden [..., H], float32 or wider."""
        hidden = hidden.to(self.draft_rows.dtype)
        if self._fast_rows:
            logits = self._fast_rows[0](hidden)
        else:
            logits = vocab_logits(hidden, self.draft_rows)
        return logits if logits.dtype == torch.float64 else logits.float()

    def refold(self) -> None:
        """Rebuild the head's inference tables after its weights have changed."""
        self.head.refold()

    def make_fast(self, choice: LayoutChoice) -> None:
        """Use layouts fast for few rows from now on; the weights must not change any more."""
        freeze_linears(self.drafter, choice)
        freeze_linears(self.head, choice)
        self.head.make_fast(choice)
        self._fast_rows = (shared(self.draft_rows, choice),)


def build_part(node: DictConfig | Mapping[str, Any], **arguments: Any) -> Any:
    """Instantiate the `_target_` of a group; its `name` is a label, not an argument."""
    group: dict[str, Any] = plain(node)
    settings = {key: value for key, value in group.items() if key not in ("name", "_target_")}
    # Called directly: hydra's instantiate would turn dataclass arguments into dicts.
    return get_object(group["_target_"])(**settings, **arguments)


def build_slots(drafter: DictConfig) -> SlotMap:
    """Slot map of the drafter group."""
    convention = SlotConvention(drafter.slot_convention)
    return SlotMap(convention, drafter.block_size, drafter.num_unused_slots)


def build_target(cfg: DictConfig) -> TargetModel:
    """The frozen target with the feature layers of the drafter group."""
    return build_part(
        cfg.target,
        layer_ids=list(cfg.drafter.target_layer_ids),
        cache_dir=cfg.paths.cache,
        device="cuda" if cfg.trainer.accelerator == "gpu" else "cpu",
    )


def build_model(cfg: DictConfig, target: TargetModel, initialise: bool = True) -> DraftModel:
    """A model before training: the drafter from `drafter.init`, the head freshly initialised.

    The initialisation is a pure function of cfg.seed; `initialise` False skips reading the initial
    drafter. Raises ValueError when that has another architecture or target.
    """
    vocab_ids = _draft_vocabulary(cfg.drafter.draft_vocab, target)
    dims = ModelDims(
        hidden_size=target.hidden_size,
        vocab_size=target.vocab_size,
        draft_vocab_size=target.vocab_size if vocab_ids is None else len(vocab_ids),
        slots=build_slots(cfg.drafter),
    )
    settings: dict[str, Any] = plain(cfg.drafter)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(cfg.seed)
        drafter = build_part(
            {key: value for key, value in settings.items() if key not in _USAGE_KEYS},
            dims=dims,
            feature_size=target.feature_size,
            token_embedding=target.embedding,
            rope_inv_freq=target.rope_inv_freq,
            rope_scale=target.rope_scale,
        )
        head = build_part(cfg.head, dims=dims, token_embedding=target.embedding)
    folder = initial_folder(cfg)
    if folder is not None and initialise:
        content = _initial_content(folder)
        check_wanted(content, folder, settings, cfg.target.name)
        check_target(content, folder, target)
        _load_strict(drafter, _part(content, "drafter"), folder)
    model = DraftModel(drafter, head, target.lm_head, vocab_ids).to(device=target.device)
    # Weights are trained in float32 even when the target is half precision; the target's own
    # matrices, which are buffers here, are not copied into a wider type.
    return _cast(model, torch.promote_types(target.dtype, torch.float32))


def _initial_content(folder: Path) -> Content:
    try:
        return read_folder(folder)
    except ValueError as error:
        raise ValueError(f"drafter.init={folder}: {error}") from error


def _cast(model: DraftModel, dtype: torch.dtype) -> DraftModel:
    """Drafter and head in `dtype`; the buffers stay as the target has them."""
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)
    return model


def _draft_vocabulary(path: str | None, target: TargetModel) -> Tensor | None:
    if path is None:
        return None
    ids = read_json(Path(path))
    if sorted(set(ids)) != ids or not ids or ids[0] < 0 or ids[-1] >= target.vocab_size:
        raise ValueError(
            f"drafter.draft_vocab={path} must list distinct ascending ids below {target.vocab_size}"
        )
    return torch.tensor(ids, device=target.device)


def _load_strict(module: nn.Module, tensors: dict[str, Tensor], file: Path) -> None:
    try:
        module.load_state_dict(tensors, strict=True)
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        raise ArtefactError(f"{file} does not fit this configuration: {reason}") from error


def _part(content: Content, part: str) -> dict[str, Tensor]:
    """Tensors of 'drafter' or 'head', names without it."""
    return {
        name.removeprefix(f"{part}."): tensor
        for name, tensor in content.tensors.items()
        if name.startswith(f"{part}.")
    }


def save_model(run: RunDir, model: DraftModel) -> str:
    """Write drafter and head as safetensors in the run directory; returns the file's SHA-256."""
    with atomic_path(run.model_file) as temporary:
        tensors = {name: tensor.contiguous().cpu() for name, tensor in model.state_dict().items()}
        save_file(tensors, temporary, metadata={"format": "pt"})
    return sha256_file(run.model_file)


def load_model(cfg: DictConfig, target: TargetModel) -> DraftModel:
    """The trained model of cfg's run, in eval mode with its inference tables folded.

    Raises ArtefactError when training has not finished or the file is not the one it wrote.
    """
    run = RunDir(run_path(cfg))
    facts = run.done("train")
    if facts is None:
        raise ArtefactError(f"{run.path} has no finished training; run stages=[train] first")
    file = run.model_file
    if not file.exists() or sha256_file(file) != facts["model_sha256"]:
        raise ArtefactError(
            f"{file} does not have the hash recorded after training; delete {run.path}"
        )
    model = build_model(cfg, target, initialise=False)
    _load_strict(model, read_tensors(file), file)
    return _ready(model, target)


def load_content(content: Content, folder: Path, target: TargetModel) -> DraftModel:
    """The model that a checkpoint folder holds, ready to decode with `target`.

    Raises ArtefactError when the folder belongs to another target.
    """
    check_target(content, folder, target)
    ids = None if content.vocab_ids is None else content.vocab_ids.to(target.device)
    drafted = target.vocab_size if ids is None else len(ids)
    dims = ModelDims(target.hidden_size, target.vocab_size, drafted, content.slots)
    with torch.random.fork_rng(devices=[]):
        drafter = make_drafter(
            content, dims, target.embedding, target.rope_inv_freq, target.rope_scale
        )
        head = make_head(content.head, dims, target.embedding)
    file = weights_file(folder)
    _load_strict(drafter, _part(content, "drafter"), file)
    _load_strict(head, _part(content, "head"), file)
    return _ready(DraftModel(drafter, head, target.lm_head, ids).to(target.device), target)


def _ready(model: DraftModel, target: TargetModel) -> DraftModel:
    """In eval mode, folded, without gradients."""
    model.eval().requires_grad_(False)
    # Drafts cost what serving pays: weights as narrow as the target's.
    _cast(model, target.dtype)
    model.refold()
    return model
