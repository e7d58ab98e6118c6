"""One virtual environment per peer, with every version pinned."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Environment:
    """installs: argument lists of `pip install`, in order, under constraints-<name>.txt."""

    name: str
    installs: tuple[tuple[str, ...], ...]

    @property
    def constraints(self) -> Path:
        return HERE / f"constraints-{self.name}.txt"

    def stamp(self) -> str:
        """Changes when the environment must be built again."""
        recipe = json.dumps([self.installs, self.constraints.read_text(), sys.version])
        return hashlib.sha256(recipe.encode()).hexdigest()

    def build(self, folder: Path) -> Path:
        """The interpreter in folder/<name>, built unless it is there already.

        Raises CalledProcessError when an installation fails.
        """
        home = folder / self.name
        interpreter, mark = home / "bin" / "python", home / "stamp"
        if mark.exists() and mark.read_text() == self.stamp():
            return interpreter
        print(f"building {home}", flush=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(home)], check=True)
        for arguments in self.installs:
            pip = [str(interpreter), "-m", "pip", "install", "--quiet", "-c", str(self.constraints)]
            subprocess.run([*pip, *arguments], check=True)
        mark.write_text(self.stamp())
        return interpreter


DFLASH = Environment("dflash", (("dflash[local]",),))
# Its metadata asks for torchvision and torchaudio, which its models do not use and which bring
# another torch; so its other requirements are named one by one.
SPECULATORS = Environment(
    "speculators",
    (
        (
            *("torch", "transformers", "datasets", "loguru", "pydantic-settings", "openai"),
            *("typer", "protobuf", "psutil", "aiohttp", "httpx", "rich"),
        ),
        ("--no-deps", "speculators", "hs-connectors"),
    ),
)
