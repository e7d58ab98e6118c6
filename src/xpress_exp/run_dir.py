"""Everything on disk: file names of a run, atomic writes, fingerprints, provenance, done-marks.

A run directory is `runs/<arm>-b<block>-s<seed>-<fingerprint>/`. Stages meet only here.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

SCHEMA_VERSION = 1
PACKAGES = ("torch", "lightning", "transformers", "datasets", "hydra-core", "wandb", "safetensors")


class ArtefactError(RuntimeError):
    """A file of ours is corrupt, partial or belongs to something else; names file and cause."""


def fingerprint(science: Any) -> str:
    """First 10 hex digits of SHA-256 over canonical JSON; equal for equal content."""
    text = json.dumps(science, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:10]


def sha256_file(path: Path) -> str:
    """SHA-256 of a file's bytes, hex."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        for piece in iter(lambda: file.read(1 << 20), b""):
            digest.update(piece)
    return digest.hexdigest()


@contextlib.contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yield a temporary sibling that replaces `path` on success and vanishes on error."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write text under a temporary name, then rename."""
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, content: Any) -> None:
    """Write JSON atomically, key-sorted, so that two equal contents are equal files."""
    write_text(path, json.dumps(content, indent=1, sort_keys=True) + "\n")


def read_json(path: Path) -> Any:
    """Read JSON; raises ArtefactError naming the file when it is missing or broken."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ArtefactError(f"{path} is missing; run the stage that writes it") from error
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ArtefactError(f"{path} is not valid JSON ({error}); delete it and rerun") from error


def git_state(folder: Path | None = None) -> dict[str, Any]:
    """Commit and dirty flag of the source tree, or 'unknown' outside a checkout."""
    folder = folder or Path(__file__).parent
    if shutil.which("git") is None:
        return {"commit": "unknown", "dirty": False}

    def git(*arguments: str) -> str:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=False
        )
        return done.stdout.strip() if done.returncode == 0 else ""

    commit = git("rev-parse", "HEAD")
    if not commit:
        return {"commit": "unknown", "dirty": False}
    return {"commit": commit, "dirty": bool(git("status", "--porcelain", "--untracked-files=no"))}


def provenance(extra: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Commit, command line, versions and machine; stored beside every artefact."""
    versions = {}
    for package in PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[package] = metadata.version(package)
    return {
        "schema_version": SCHEMA_VERSION,
        **git_state(),
        "argv": [Path(sys.argv[0]).stem.replace("__main__", "xpress_exp"), *sys.argv[1:]],
        "python": platform.python_version(),
        "packages": versions,
        "machine": platform.machine(),
        "cpu_count": os.cpu_count(),
        **(extra or {}),
    }


class RunDir:
    """The directory of one run; knows every file name in it."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def config_file(self) -> Path:
        return self.path / "config.json"

    @property
    def model_file(self) -> Path:
        return self.path / "model.safetensors"

    @property
    def checkpoint_dir(self) -> Path:
        return self.path / "checkpoints"

    @property
    def last_checkpoint(self) -> Path:
        return self.checkpoint_dir / "last.ckpt"

    @property
    def metrics_file(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def failure_file(self) -> Path:
        return self.path / "failure.json"

    def eval_dir(self, decode_fingerprint: str) -> Path:
        return self.path / "eval" / decode_fingerprint

    def claim(self, science: Mapping[str, Any]) -> None:
        """Write the science config once; raises ArtefactError if the directory holds another."""
        if self.config_file.exists():
            if read_json(self.config_file) != json.loads(json.dumps(science)):
                raise ArtefactError(
                    f"{self.config_file} holds another configuration than this run's; "
                    "choose another paths.runs or delete the directory"
                )
            return
        write_json(self.config_file, science)
        write_json(self.path / "provenance.json", provenance())

    def mark_done(self, stage: str, facts: Mapping[str, Any]) -> None:
        """Close a stage: later runs skip it. `facts` say what was made (hashes, counts)."""
        write_json(self.path / f"{stage}.done.json", {**provenance(), **facts})

    def done(self, stage: str) -> dict[str, Any] | None:
        """Facts of a closed stage, or None when it is still open."""
        path = self.path / f"{stage}.done.json"
        return read_json(path) if path.exists() else None
