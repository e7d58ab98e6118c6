from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from omegaconf import DictConfig, OmegaConf

from xpress_exp.builders import build_target
from xpress_exp.data.document import ResponseDocuments
from xpress_exp.data.feature_cache import FeatureSet
from xpress_exp.run_dir import ArtefactError
from xpress_exp.stage.prepare import feature_dir, load_prepared, prepare, response_dir


def config(tmp_path: Path, **changes: Any) -> DictConfig:
    cfg = OmegaConf.create(
        {
            "paths": {"cache": str(tmp_path)},
            "trainer": {"accelerator": "cpu"},
            "target": {"name": "tiny", "_target_": "xpress_exp.target.TinyTarget"},
            "drafter": {"target_layer_ids": [0, 1]},
            "optim": {"max_steps": 5},
            "data": {
                "source": {
                    "_target_": "xpress_exp.data.BuiltinPrompts",
                    "split": "train",
                    "num_prompts": 6,
                },
                "responses": "regenerate",
                "generation": {
                    "temperature": 1.0,
                    "top_p": 1.0,
                    "max_new_tokens": 5,
                    "batch_size": 3,
                    "seed": 0,
                },
                "max_length": 512,
                "max_broken_share": 0.5,
                "features": {"mode": "cached", "dtype": "float32", "shard_tokens": 400},
            },
        }
    )
    for key, value in changes.items():
        OmegaConf.update(cfg, key.replace("__", "."), value)
    return cfg


def test_cached_features_are_found_again(tmp_path: Path) -> None:
    cfg = config(tmp_path)
    target = build_target(cfg)
    prepare(cfg)
    prepared = load_prepared(cfg, target)
    folders = {response_dir(cfg, target), feature_dir(cfg, prepared.responses, target)}
    assert set(tmp_path.iterdir()) == folders
    assert isinstance(prepared.documents, FeatureSet)
    assert len(prepared.documents) == prepared.facts["responses"]["success"]


def test_online_mode_stores_no_features(tmp_path: Path) -> None:
    cfg = config(tmp_path, data__features__mode="online")
    prepare(cfg)
    target = build_target(cfg)
    assert list(tmp_path.iterdir()) == [response_dir(cfg, target)]
    assert isinstance(load_prepared(cfg, target).documents, ResponseDocuments)


@pytest.mark.parametrize(
    "change",
    [
        {"data__max_length": 1024},
        {"data__generation__temperature": 0.5},
        {"data__source__num_prompts": 7},
        {"target__seed": 1},
    ],
    ids=str,
)
def test_a_stale_cache_is_not_reused(tmp_path: Path, change: dict[str, Any]) -> None:
    cfg = config(tmp_path)
    prepare(cfg)
    other = config(tmp_path, **change)
    with pytest.raises(ArtefactError, match=r"manifest.json is missing; run the stage"):
        load_prepared(other, build_target(other))
    prepare(other)
    first, second = (load_prepared(c, build_target(c)) for c in (cfg, other))
    assert first.responses.identity != second.responses.identity


def test_nothing_is_made_for_an_arm_that_trains_nothing(tmp_path: Path) -> None:
    prepare(config(tmp_path, optim__max_steps=0))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"data__responses": "magic"}, "data.responses=magic"),
        ({"data__features__mode": "magic"}, "data.features.mode=magic"),
    ],
)
def test_unknown_choices_are_refused(tmp_path: Path, change: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        prepare(config(tmp_path, **change))
