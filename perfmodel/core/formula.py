"""An evaluator for the formulas in shipped files and sweeps: Python's parser reads them, no part of them is run as code.

Constants, names, attributes and calls, arithmetic, comparisons (which chain), ``and or not``, ``a if b else c``, tuples, lists, dicts,
subscripts, f-strings and comprehensions. The caller hands in the names, whose values may be arrays: logic is element by element, and
works out both sides. All other syntax is refused with SyntaxError.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache, reduce
from inspect import Parameter, Signature, ismodule
from itertools import pairwise
from typing import Any, NoReturn

from perfmodel.core.errors import DataError, PerfmodelError

FAULTS = (ArithmeticError, AttributeError, LookupError, PerfmodelError, SyntaxError, TypeError, ValueError)
"""Exceptions that a formula may raise."""


class FormulaError(DataError):
    """A formula cannot be read or evaluated; the message names its place in the file."""


_OPERATIONS: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}


@cache
def read(text: str) -> ast.expr:
    """The syntax tree of ``text``; SyntaxError if it is no expression."""
    return ast.parse(text.strip(), mode="eval").body


def names_in(text: str) -> tuple[str, ...]:
    """Names in ``text``, without repetition and in a fixed order."""
    return tuple(dict.fromkeys(node.id for node in ast.walk(read(text)) if isinstance(node, ast.Name)))


def value(tree: ast.expr, names: Mapping[str, Any]) -> Any:
    """The value of ``tree``; SyntaxError for a name that ``names`` lacks, or a form that is not allowed.

    >>> value(read("[2 * x for x in row if x > 1]"), {"row": (1, 2, 3)})
    [4, 6]
    """

    def evaluated(part: ast.expr) -> Any:
        return value(part, names)

    match tree:
        case ast.Constant(value=constant):
            return constant
        case ast.Name(id=name) if name in names:
            return names[name]
        case ast.Attribute(value=owner, attr=name) if not name.startswith("_"):
            return _attribute(evaluated(owner), name, tree)
        case ast.Call(func=called, args=parts, keywords=options):
            callee = evaluated(called)
            return callee(*map(evaluated, parts), **{option.arg or _refuse(tree): evaluated(option.value) for option in options})
        case ast.BinOp(left=a, op=sign, right=b) if type(sign) in _OPERATIONS:
            return _OPERATIONS[type(sign)](evaluated(a), evaluated(b))
        case ast.Compare(left=first, ops=signs, comparators=others) if all(type(sign) in _OPERATIONS for sign in signs):
            neighbours = pairwise([evaluated(first), *map(evaluated, others)])
            return reduce(_and, [_OPERATIONS[type(sign)](a, b) for sign, (a, b) in zip(signs, neighbours, strict=True)])
        case ast.BoolOp(op=sign, values=parts):
            return reduce(_and if isinstance(sign, ast.And) else _or, map(evaluated, parts))
        case ast.UnaryOp(op=ast.Not() | ast.USub() as sign, operand=part):
            return evaluated(part) == 0 if isinstance(sign, ast.Not) else -evaluated(part)
        case ast.IfExp(test=test, body=then, orelse=otherwise):
            return evaluated(then if evaluated(test) else otherwise)
        case ast.Subscript(value=owner, slice=place):
            return evaluated(owner)[evaluated(place)]
        case ast.ListComp(elt=part, generators=loops) | ast.GeneratorExp(elt=part, generators=loops):
            return [value(part, bound) for bound in _iterations(loops, names)]
        case _:
            return _collected(tree, evaluated)


def _and(a: Any, b: Any) -> Any:
    return (a != 0) & (b != 0)


def _or(a: Any, b: Any) -> Any:
    return (a != 0) | (b != 0)


def _collected(tree: ast.expr, evaluated: Callable[[ast.expr], Any]) -> Any:
    """The value of a tuple, list, dict, slice or f-string, from the values of its parts, which ``evaluated`` gives."""
    match tree:
        case ast.Tuple(elts=parts):
            return tuple(map(evaluated, parts))
        case ast.List(elts=parts):
            return list(map(evaluated, parts))
        case ast.Dict(keys=keys, values=parts):
            return {evaluated(key) if key else _refuse(tree): evaluated(part) for key, part in zip(keys, parts, strict=True)}
        case ast.Slice(lower=first, upper=last, step=None):
            return slice(None if first is None else evaluated(first), None if last is None else evaluated(last))
        case ast.JoinedStr(values=parts):
            return "".join(map(str, map(evaluated, parts)))
        case ast.FormattedValue(value=part, conversion=-1, format_spec=None):
            return evaluated(part)
        case _:
            return _refuse(tree)


def _refuse(tree: ast.AST) -> NoReturn:
    raise SyntaxError(f"there is no {ast.unparse(tree)!r} in a formula")


def _attribute(owner: Any, name: str, tree: ast.expr) -> Any:
    """``owner.name``, but no module inside a module, and no method of a text: ``str.format`` could read any attribute."""
    attribute = getattr(owner, name)
    return _refuse(tree) if isinstance(owner, str) or ismodule(attribute) else attribute


def _iterations(loops: list[ast.comprehension], names: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """``names`` and the loop variables, once per iteration of the nested ``loops``."""
    if not loops:
        yield names
        return
    first, *inner = loops
    variables = first.target.elts if isinstance(first.target, ast.Tuple) else [first.target]
    for item in value(first.iter, names):
        items = item if isinstance(first.target, ast.Tuple) else [item]
        bound = {**names, **{ast.unparse(variable): element for variable, element in zip(variables, items, strict=True)}}
        if all(value(test, bound) for test in first.ifs):
            yield from _iterations(inner, bound)


@contextmanager
def _errors_at(where: str) -> Iterator[None]:
    """Context that turns errors into a FormulaError which names ``where``; a FormulaError of an inner function passes unchanged."""
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
    with _errors_at(where):
        [parsed], tree = ast.parse(f"def {signature}: 0").body, read(body)
        assert isinstance(parsed, ast.FunctionDef)
        bind = _signature(parsed.args, names)

    def called(*arguments: Any, **options: Any) -> Any:
        with _errors_at(where):
            bound = bind.bind(*arguments, **options)
            bound.apply_defaults()
            return value(tree, {**names, **bound.arguments})

    called.__name__ = parsed.name
    return called


def _signature(arguments: ast.arguments, names: Mapping[str, Any]) -> Signature:
    defaults = [Parameter.empty] * (len(arguments.args) - len(arguments.defaults)) + [
        value(default, names) for default in arguments.defaults
    ]
    parameters = zip(arguments.args, defaults, strict=True)
    return Signature([Parameter(parameter.arg, Parameter.POSITIONAL_OR_KEYWORD, default=default) for parameter, default in parameters])
