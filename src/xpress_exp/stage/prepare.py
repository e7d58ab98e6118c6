"""prepare: the target's responses and features that a run trains on, made once per fingerprint.

${paths.cache}/responses-<fp>/ and ${paths.cache}/features-<fp>/; shipped responses need no folder.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from hydra.utils import instantiate
from omegaconf import DictConfig

from xpress_exp.builders import build_target
from xpress_exp.data.document import DocumentStore, ResponseDocuments
from xpress_exp.data.feature_cache import cache_features, features_identity, open_features
from xpress_exp.data.regenerate import regenerate
from xpress_exp.data.response import (
    GenerationSettings,
    ResponseSet,
    open_folder,
    responses_identity,
)
from xpress_exp.data.response_store import shipped_responses
from xpress_exp.data.source import PromptSource
from xpress_exp.run_dir import fingerprint
from xpress_exp.target import TargetModel

SHIPPED = "smollm2_responses.xz"
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Prepared:
    """What training reads. facts: hashes and counts for the run's provenance."""

    responses: ResponseSet
    documents: DocumentStore
    facts: dict[str, Any]


def prepare(cfg: DictConfig) -> None:
    """Make what is missing; a closed folder is verified and left alone.

    Raises ValueError for unusable data or settings, ArtefactError for a damaged cache.
    """
    if cfg.optim.max_steps == 0:
        log.info("prepare: nothing to do, optim.max_steps=0 trains nothing")
        return
    target = build_target(cfg)
    responses = _responses(cfg, target, make=True)
    log.info("prepare: responses %s", responses.counts)
    if _is_cached(cfg):
        features = cfg.data.features
        folder = feature_dir(cfg, responses, target)
        cache_features(responses, target, folder, features.dtype, features.shard_tokens)
        log.info("prepare: features in %s", folder)


def load_prepared(cfg: DictConfig, target: TargetModel) -> Prepared:
    """Open what prepare made; raises ArtefactError when it is missing, open or damaged."""
    responses = _responses(cfg, target, make=False)
    facts = {"responses_sha256": responses.content_sha256, "responses": responses.counts}
    if not _is_cached(cfg):
        return Prepared(responses, ResponseDocuments(responses), facts)
    folder = feature_dir(cfg, responses, target)
    identity = _feature_identity(cfg, responses, target)
    return Prepared(responses, open_features(folder, identity, responses), facts)


def response_dir(cfg: DictConfig, target: TargetModel) -> Path:
    """Folder of regenerated responses; another source, target or setting is another folder."""
    return _response_folder(cfg, _response_identity(cfg, target, _source(cfg)))


def _response_folder(cfg: DictConfig, identity: dict[str, Any]) -> Path:
    return Path(cfg.paths.cache) / f"responses-{fingerprint(identity)}"


def feature_dir(cfg: DictConfig, responses: ResponseSet, target: TargetModel) -> Path:
    """Folder of cached features of these responses."""
    identity = _feature_identity(cfg, responses, target)
    return Path(cfg.paths.cache) / f"features-{fingerprint(identity)}"


def _responses(cfg: DictConfig, target: TargetModel, make: bool) -> ResponseSet:
    data = cfg.data
    source, generation = _source(cfg), _generation(cfg)
    if data.responses == "shipped":
        with resources.as_file(resources.files("xpress_exp") / "asset" / SHIPPED) as path:
            return shipped_responses(path, source, target, generation, data.max_length)
    if data.responses != "regenerate":
        raise ValueError(f"data.responses={data.responses} is unknown; use shipped or regenerate")
    identity = _response_identity(cfg, target, source)
    folder = _response_folder(cfg, identity)
    if not make:
        return open_folder(folder, identity)
    return regenerate(source, target, generation, data.max_length, data.max_broken_share, folder)


def _response_identity(
    cfg: DictConfig, target: TargetModel, source: PromptSource
) -> dict[str, Any]:
    return responses_identity(
        source.identity, target.identity, _generation(cfg), cfg.data.max_length
    )


def _feature_identity(
    cfg: DictConfig, responses: ResponseSet, target: TargetModel
) -> dict[str, Any]:
    features = cfg.data.features
    return features_identity(responses, target, features.dtype, features.shard_tokens)


def _source(cfg: DictConfig) -> PromptSource:
    return instantiate(cfg.data.source)


def _generation(cfg: DictConfig) -> GenerationSettings:
    generation = cfg.data.generation
    return GenerationSettings(
        temperature=generation.temperature,
        top_p=generation.top_p,
        max_new_tokens=generation.max_new_tokens,
        batch_size=generation.batch_size,
        seed=generation.seed,
    )


def _is_cached(cfg: DictConfig) -> bool:
    mode = cfg.data.features.mode
    if mode not in ("cached", "online"):
        raise ValueError(f"data.features.mode={mode} is unknown; use cached or online")
    return mode == "cached"
