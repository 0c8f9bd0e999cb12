"""An evaluator for the formulas in shipped files: Python's, of the forms that are allowed and without its builtins.

Constants, names, attributes and calls, arithmetic, comparisons of two, ``a if b else c``, tuples, lists, dicts, subscripts,
f-strings and comprehensions. The caller hands in the names. All other syntax is refused with SyntaxError.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from functools import cache
from inspect import Parameter, Signature, ismodule
from types import CodeType
from typing import Any

from perfmodel.core.errors import DataError, PerfmodelError

FAULTS = (ArithmeticError, AttributeError, LookupError, PerfmodelError, SyntaxError, TypeError, ValueError)
"""What a formula may raise."""


class FormulaError(DataError):
    """A function of the file that cannot be read or worked out; names its place."""


_FORMS = (
    *(ast.Constant, ast.Name, ast.Load, ast.Store, ast.Attribute, ast.Call, ast.keyword, ast.IfExp, ast.Subscript, ast.Slice),
    *(ast.BinOp, ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Pow, ast.UnaryOp, ast.USub),
    *(ast.Compare, ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE),
    *(ast.Tuple, ast.List, ast.Dict, ast.JoinedStr, ast.FormattedValue, ast.ListComp, ast.GeneratorExp, ast.comprehension),
)


@cache
def read(text: str) -> ast.expr:
    """``text`` as a tree; SyntaxError if it is no expression."""
    return ast.parse(text.strip(), mode="eval").body


def names_in(text: str) -> tuple[str, ...]:
    """Names in ``text``, each once, always in the same order."""
    return tuple(dict.fromkeys(node.id for node in ast.walk(read(text)) if isinstance(node, ast.Name)))


def value(tree: ast.expr, names: Mapping[str, Any]) -> Any:
    """The value of ``tree``; SyntaxError for a name that ``names`` lacks, or a form that is not allowed.

    >>> value(read("[2 * x for x in row if x > 1]"), {"row": (1, 2, 3)})
    [4, 6]
    """
    try:
        return eval(_compiled(tree), {**names, "__builtins__": {}, _ATTRIBUTE: _attribute})
    except NameError as error:
        raise _refusal(error.name or str(error)) from None


@cache
def _compiled(tree: ast.expr) -> CodeType:
    """Code of ``tree``, whose forms are checked, with every attribute taken by ``_attribute``."""
    checked: Any = ast.fix_missing_locations(ast.Expression(_Checked().visit(deepcopy(tree))))
    return compile(checked, "formula", "eval")


class _Checked(ast.NodeTransformer):
    def visit(self, node: ast.AST) -> Any:
        if not _is_allowed(node):
            raise _refusal(ast.unparse(node))
        self.generic_visit(node)
        if isinstance(node, ast.Attribute):
            return ast.Call(ast.Name(_ATTRIBUTE, ast.Load()), [node.value, ast.Constant(node.attr)], [])
        return node


_ATTRIBUTE = "."
"""The name of ``_attribute`` in code: one that no formula can write."""


def _is_allowed(node: ast.AST) -> bool:
    match node:
        case ast.UnaryOp(op=sign) | ast.BinOp(op=sign) | ast.Compare(ops=[sign]):
            return isinstance(sign, _FORMS)
        case ast.Attribute(attr=name, ctx=ast.Load()):
            return not name.startswith("_")
        case ast.Dict(keys=keys):
            return None not in keys
        case ast.FormattedValue(conversion=how, format_spec=spec):
            return how == -1 and spec is None
        case ast.Compare() | ast.Attribute() | ast.keyword(arg=None) | ast.Slice(step=ast.expr()) | ast.comprehension(is_async=1):
            return False
    return isinstance(node, _FORMS)


def _attribute(owner: Any, name: str) -> Any:
    """``owner.name``, but no module inside a module, and no method of a text: ``str.format`` could read any attribute."""
    found = getattr(owner, name)
    if isinstance(owner, str) or ismodule(found):
        raise _refusal(name)
    return found


def _refusal(text: str) -> SyntaxError:
    return SyntaxError(f"there is no {text!r} in a formula")


@contextmanager
def _at(where: str) -> Iterator[None]:
    """Turns an error in the block into a FormulaError that names ``where``; one that names an inner function passes through."""
    try:
        yield
    except FormulaError:
        raise
    except FAULTS as error:
        raise FormulaError(f"{where}: {error}") from error


def function(signature: str, body: str, names: Mapping[str, Any], where: str) -> Callable[..., Any]:
    """A Python function with ``signature`` (defaults allowed) that evaluates ``body`` over its arguments and ``names``.

    Errors are FormulaErrors that name ``where``, the place in the file.

    >>> function("area(a, b=2)", "a * b * unit", {"unit": 10}, "line 1")(3)
    60
    """
    with _at(where):
        [parsed], tree = ast.parse(f"def {signature}: 0").body, read(body)
        assert isinstance(parsed, ast.FunctionDef)
        bind = _signature(parsed.args, names)

    def called(*given: Any, **options: Any) -> Any:
        with _at(where):
            bound = bind.bind(*given, **options)
            bound.apply_defaults()
            return value(tree, {**names, **bound.arguments})

    called.__name__ = parsed.name
    return called


def _signature(given: ast.arguments, names: Mapping[str, Any]) -> Signature:
    defaults = [Parameter.empty] * (len(given.args) - len(given.defaults)) + [value(default, names) for default in given.defaults]
    parameters = zip(given.args, defaults, strict=True)
    return Signature([Parameter(one.arg, Parameter.POSITIONAL_OR_KEYWORD, default=default) for one, default in parameters])
