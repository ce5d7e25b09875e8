"""The base of every settings model."""

from typing import ClassVar

from pydantic import BaseModel, ConfigDict


class Settings(BaseModel):
    """Base of all settings: frozen, and an unknown key is an error."""

    page: ClassVar[str] = "docs/settings.md"  # that lists the keys
    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, allow_inf_nan=False)
