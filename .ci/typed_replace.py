"""A mypy plugin: `msgspec.structs.replace` is type-checked, field by field, as `dataclasses.replace` is.

Without it every field name and value of a `replace(row, …)` is `Any`. What is unpacked from a plain `dict` stays so:
only a TypedDict says which fields it has.
"""

from collections.abc import Callable

from mypy.nodes import ARG_STAR2, CallExpr
from mypy.plugin import FunctionSigContext, Plugin
from mypy.plugins.dataclasses import replace_function_sig_callback
from mypy.types import FunctionLike, TypedDictType, get_proper_type


def _signature(context: FunctionSigContext) -> FunctionLike:
    call = context.context
    assert isinstance(call, CallExpr)
    unpacked = [arg for arg, kind in zip(call.args, call.arg_kinds, strict=True) if kind is ARG_STAR2]
    types = [get_proper_type(context.api.get_expression_type(arg)) for arg in unpacked]
    typed = all(isinstance(each, TypedDictType) for each in types)
    return replace_function_sig_callback(context) if typed else context.default_signature


class TypedReplace(Plugin):
    def get_function_signature_hook(self, fullname: str) -> Callable[[FunctionSigContext], FunctionLike] | None:
        return _signature if fullname == "msgspec.structs.replace" else None


def plugin(version: str) -> type[Plugin]:  # noqa: ARG001
    return TypedReplace
