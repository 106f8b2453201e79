"""The section ``columns``: which columns of the source are stored, under which names, and what is added to them."""

from typing import Annotated, Literal, Self

from pydantic import Field, SecretStr, model_validator

from ch_sink.config.sections import Name, Property, Section, Words
from ch_sink.model.policy import ColumnPolicy

__all__ = ["ColumnsSection"]

Mask = Literal["sha256", "sha512", "hmac-sha256", "redact"]


class ColumnsSection(Section):
    """Names are those of the source's columns, except those of ``add``."""

    exclude: Words = ()
    """Columns that are not stored."""
    rename: dict[str, Name] = Field(default_factory=dict)
    """Column of the source → column of the table."""
    mask: dict[str, Mask] = Field(default_factory=dict)
    """Column → what is stored instead of its text: a hash in hexadecimal digits, or ``***``."""
    mask_key: Annotated[SecretStr | None, Field(repr=False)] = None
    """The key of ``hmac-sha256``."""
    add: dict[str, Property] = Field(default_factory=dict)
    """Column of the table → a constant as SQL, such as ``'eu'`` in single quotes."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        targets = [*self.rename.values(), *self.add]
        twice = sorted({name for name in targets if targets.count(name) > 1})
        if twice:
            raise ValueError(f"fills the column {twice[0]!r} twice; give each column one source")
        for group, names in (("rename", self.rename), ("mask", self.mask)):
            both = sorted(set(self.exclude) & set(names))
            if both:
                raise ValueError(f"excludes the column {both[0]!r} and has it in {group}; keep one of them")
        if "hmac-sha256" in self.mask.values() and not (self.mask_key and self.mask_key.get_secret_value()):
            raise ValueError(
                "masks with hmac-sha256, which needs mask_key; set it by CH_SINK__COLUMNS__MASK_KEY in the environment"
            )
        return self

    def policy(self, source: tuple[str, ...] = ()) -> ColumnPolicy:
        """The choices as decoding takes them. ``source``: added columns that tell the rows of several topics apart."""
        return ColumnPolicy(
            exclude=self.exclude,
            rename=tuple(self.rename.items()),
            mask=tuple(self.mask.items()),
            mask_key=self.mask_key.get_secret_value() if self.mask_key else "",
            add=tuple(self.add.items()),
            source=source,
        )
