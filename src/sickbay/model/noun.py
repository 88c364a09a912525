"""What every noun is: a frozen, typed value with a wire form."""

from typing import Any, dataclass_transform

import msgspec


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(msgspec.field,))
class _NounMeta(msgspec.StructMeta):
    """Makes every noun frozen and keyword-only without each having to say so."""

    def __new__(mcls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **config: Any) -> Any:
        return super().__new__(
            mcls, name, bases, namespace, **{"frozen": True, "kw_only": True, "omit_defaults": True, **config}
        )


class Noun(msgspec.Struct, metaclass=_NounMeta):
    """A frozen value. Its JSON leaves defaults out, so that a new field does not make old rows unreadable."""
