"""Fields of a config.json that may stand in several places."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from xpress_exp.run_dir import ArtefactError

REQUIRED: Any = object()


class Fields:
    """Looks a field up in all places; equal copies are fine, different ones are refused.

    places: prefix of the place ('' for the top level, else 'dflash_config.') -> its content.
    """

    def __init__(self, file: Path, places: Mapping[str, Mapping[str, Any] | None]) -> None:
        self.file = file
        self.places = {prefix: content or {} for prefix, content in places.items()}

    def get(self, key: str, default: Any = REQUIRED) -> Any:
        """The value. Raises ArtefactError when it is told twice and differently, or not at all
        and there is no default; a null counts as not told."""
        found = {
            f"{prefix}{key}": content[key]
            for prefix, content in self.places.items()
            if content.get(key) is not None
        }
        values = list(found.values())
        if any(value != values[0] for value in values):
            told = " but ".join(f"{name}={value}" for name, value in found.items())
            raise ArtefactError(f"{self.file}: {told}; they must agree")
        if not values:
            if default is REQUIRED:
                raise ArtefactError(f"{self.file} lacks {key}")
            return default
        return values[0]

    def integer(self, key: str, default: Any = REQUIRED) -> Any:
        """The value, which must be a whole number."""
        value = self.get(key, default)
        if value is not default and (isinstance(value, bool) or not isinstance(value, int)):
            raise ArtefactError(f"{self.file}: {key}={value!r} must be a whole number")
        return value

    def require(self, key: str, *allowed: Any) -> None:
        """Raise ArtefactError when the field is told and is none of `allowed`: nothing else is
        computed here."""
        value = self.get(key, None)
        if value is not None and value not in allowed:
            wanted = " or ".join(str(item) for item in allowed)
            raise ArtefactError(f"{self.file}: {key}={value} is not supported; only {wanted}")
