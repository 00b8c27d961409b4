"""`where`: a condition over the columns of a table, as a pyarrow expression.

It is written as in Python: names of columns, figures, texts and lists of them, comparisons, `in`, `and`,
`or`, `not`, + - * /, `int(x)`, `float(x)`, `str(x)`, and every function of `pyarrow.compute` that looks at
each value alone, for example `utf8_length(prompt) < 500`. `field("a column")` names a column that is no
Python name. A row for which a value is missing is left out, unless the condition asks for it: `is_null(x)`.
"""

import ast
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from jaxtyping import Int

from headrace.pipelines.errors import InputError
from headrace.pipelines.scans import TableScan
from headrace.pipelines.tables import read_rows

_BATCH_ROWS = 4096
_OPERATORS: Mapping[type, Callable[..., Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.USub: lambda value: 0 - value,
    ast.Not: operator.invert,
    ast.And: operator.and_,
    ast.Or: operator.or_,
}
_CASTS = {"int": pa.int64(), "float": pa.float64(), "str": pa.string()}


class Condition(NamedTuple):
    """A condition and the columns that it looks at."""

    expression: pc.Expression
    columns: tuple[str, ...]


def read_condition(text: str) -> Condition:
    """The condition that a text says.

    Raises:
      InputError: it is no condition.
    """
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError) as error:
        raise InputError(f"where is {text!r}: {error}: write a condition, for example 'n > 3'") from error
    columns: dict[str, None] = {}
    try:
        expression = _build(tree, columns)
    except (TypeError, ValueError, pa.ArrowException) as error:
        raise InputError(f"where is {text!r}: {' '.join(str(error).split())}") from error
    if not isinstance(expression, pc.Expression) or not columns:
        raise InputError(f"where is {text!r}: it names no column")
    return Condition(expression, tuple(columns))


def matching_rows(path: str, scan: TableScan, condition: Condition) -> Int[np.ndarray, " rows"]:
    """Numbers of the rows of a table for which a condition is true; rows that cannot be read are not.

    Raises:
      InputError: the condition does not fit the types of the columns.
    """
    found: list[np.ndarray] = []
    names = condition.columns
    rows = read_rows(path, 0, scan.rows, offset=scan.offsets[0] if scan.offsets else 0, columns=names)
    batch: dict[str, list[Any]] = {name: [] for name in names}
    numbers: list[int] = []
    for row in rows:
        if row.error is not None:
            continue
        numbers.append(row.row)
        for name in names:
            batch[name].append(row.values.get(name))
        if len(numbers) == _BATCH_ROWS:
            found.append(_true_rows(numbers, batch, condition, path))
            batch, numbers = {name: [] for name in names}, []
    found.append(_true_rows(numbers, batch, condition, path))
    return np.concatenate(found)


def _true_rows(
    numbers: Sequence[int], batch: Mapping[str, Sequence[Any]], condition: Condition, path: str
) -> np.ndarray:
    try:
        columns = {name: _column(values) for name, values in batch.items()}
        table = pa.table({**columns, "\0row": pa.array(numbers, pa.int64())})
        return table.filter(condition.expression).column("\0row").to_numpy()
    except pa.ArrowException as error:
        reason = " ".join(str(error).split())[:300]
        raise InputError(f"where does not fit {path.rpartition('/')[2]}: {reason}") from error


def _column(values: Sequence[Any]) -> pa.Array:
    """A column of values; those of several types, as lines of JSON may have, as text."""
    try:
        return pa.array(values)
    except pa.ArrowException:
        return pa.array([None if value is None else str(value) for value in values])


def _build(node: ast.expr, columns: dict[str, None]) -> Any:
    """The expression or the plain value that a piece of the text stands for."""
    match node:
        case ast.Constant(value=str() | int() | float() | None as value):
            return value
        case ast.List(elts=parts) | ast.Tuple(elts=parts):
            return [_build(part, columns) for part in parts]
        case ast.Name(id=name):
            return _field(name, columns)
        case ast.UnaryOp(op=op, operand=part) if type(op) in _OPERATORS:
            return _OPERATORS[type(op)](_build(part, columns))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return _OPERATORS[type(op)](_build(left, columns), _build(right, columns))
        case ast.BoolOp(op=op, values=parts):
            first, *rest = (_build(part, columns) for part in parts)
            for each in rest:
                first = _OPERATORS[type(op)](first, each)
            return first
        case ast.Compare(left=left, ops=ops, comparators=others):
            return _comparison(left, ops, others, columns)
        case ast.Call(func=ast.Name(id=name), args=parts, keywords=named):
            given = {each.arg: _build(each.value, {}) for each in named if each.arg}
            return _call(name, parts, given, columns)
    raise ValueError(f"{ast.unparse(node)!r} has no meaning in a condition")


def _field(name: str, columns: dict[str, None]) -> pc.Expression:
    columns[name] = None
    return pc.field(name)


def _comparison(
    left: ast.expr, ops: Sequence[ast.cmpop], others: Sequence[ast.expr], columns: dict[str, None]
) -> Any:
    """a < b < c is a < b and b < c."""
    whole: Any = None
    before = _build(left, columns)
    for op, other in zip(ops, others, strict=True):
        now = _build(other, columns)
        match op:
            case ast.In() | ast.NotIn():
                part = before.isin(now) if isinstance(before, pc.Expression) else None
                part = ~part & before.is_valid() if isinstance(op, ast.NotIn) and part is not None else part
            case _:
                part = _OPERATORS[type(op)](before, now) if type(op) in _OPERATORS else None
        if part is None:
            raise ValueError("a comparison is one of == != < <= > >= in, not in: is_null(x) finds nulls")
        whole, before = part if whole is None else whole & part, now
    return whole


def _call(
    name: str, parts: Sequence[ast.expr], given: Mapping[str, Any], columns: dict[str, None]
) -> pc.Expression:
    match parts:
        case [ast.Constant(value=str(column))] if name == "field":
            return _field(column, columns)
    values = [_build(part, columns) for part in parts]
    if name in _CASTS and len(values) == 1 and isinstance(values[0], pc.Expression):
        return values[0].cast(_CASTS[name])
    if name not in pc.list_functions() or pc.get_function(name).kind != "scalar":
        raise ValueError(f"there is no function {name} of single values in pyarrow.compute")
    return getattr(pc, name)(*values, **given)
