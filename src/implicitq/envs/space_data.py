"""Spaces as plain data, as files hold them. What a file says is checked before anything is made of it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from gymnasium import spaces

from implicitq.types import Array, InputError
from implicitq.validation import brief

# Bounds of what a file may describe: beyond these a few words in it would take a large memory or a long time.
_MOST = 1_000_000  # categories, or binary dimensions
_MOST_PIXELS = 10_000_000  # bytes of an image
_DEEPEST = 32  # spaces inside of spaces, axes of an array
_NUMBER_TYPES = (
    *("float16", "float32", "float64", "int8", "int16", "int32", "int64"),
    *("uint8", "uint16", "uint32", "uint64", "bool"),
)


def describe(space: spaces.Space) -> dict[str, Any]:
    """The space as plain data."""
    match space:
        case spaces.Box():
            bounds = {end: _texts(getattr(space, end)) for end in ("low", "high")}
            return {"kind": "Box", "shape": list(space.shape), "dtype": str(space.dtype), **bounds}
        case spaces.Discrete():
            return {"kind": "Discrete", "n": int(space.n), "start": int(space.start), "dtype": str(space.dtype)}
        case spaces.MultiDiscrete():
            sizes = {"nvec": space.nvec.tolist(), "start": space.start.tolist()}
            return {"kind": "MultiDiscrete", **sizes, "dtype": str(space.dtype)}
        case spaces.MultiBinary():
            return {"kind": "MultiBinary", "n": space.n if isinstance(space.n, int) else list(space.shape)}
        case spaces.Dict():
            return {"kind": "Dict", "parts": [[name, describe(part)] for name, part in space.items()]}
        case spaces.Tuple():
            return {"kind": "Tuple", "parts": [describe(part) for part in space]}
    raise InputError(f"space {space} cannot be written to a file")


def _texts(bound: Array) -> list[str] | str:
    """JSON has no infinity. One text for all the pixels of an image."""
    if bound.dtype == np.uint8 and bound.ndim == 3 and bound.size and (bound == bound.flat[0]).all():
        return str(bound.flat[0])
    numbers = bound.astype(np.int8) if bound.dtype == bool else bound
    return [str(x) for x in numbers.ravel().tolist()]


def rebuild(data: Any) -> spaces.Space:
    """Inverse of `describe`; any other data are refused, and quickly."""
    try:
        with np.errstate(all="raise"):
            return _rebuild(data, 0)
    except InputError:
        raise
    except (KeyError, TypeError, ValueError, ArithmeticError) as error:
        raise InputError(f"a space cannot be made of {brief(data)}: {brief(str(error))}") from None


def _rebuild(data: Any, depth: int) -> spaces.Space:
    if depth > _DEEPEST:
        raise InputError(f"a space is nested more than {_DEEPEST} deep")
    match data["kind"]:
        case "Box":
            dtype = _number_type(data["dtype"])
            shape = _sizes(data["shape"])
            low, high = (_bounds(data[end], math.prod(shape), dtype).reshape(shape) for end in ("low", "high"))
            return spaces.Box(low, high, dtype=dtype.type)
        case "Discrete":
            # Older versions of Gymnasium know no other type than int64.
            kind: dict[str, Any] = {} if data["dtype"] == "int64" else {"dtype": _number_type(data["dtype"]).type}
            return spaces.Discrete(_size(data["n"]), start=data["start"], **kind)
        case "MultiDiscrete":
            dtype = _number_type(data["dtype"])
            nvec, start = (_whole_numbers(data[key], dtype) for key in ("nvec", "start"))
            if nvec.size == 0 or nvec.max() > _MOST:
                raise InputError(f"a MultiDiscrete space needs dimensions of at most {_MOST:,} categories each")
            return spaces.MultiDiscrete(nvec, dtype=dtype.type, start=start)
        case "MultiBinary":
            shape = _sizes(data["n"]) if isinstance(data["n"], list) else _size(data["n"])
            _size(math.prod(shape) if isinstance(shape, tuple) else shape)
            return spaces.MultiBinary(shape)
        case "Dict":
            parts = [(_name(name), _rebuild(part, depth + 1)) for name, part in _list(data["parts"])]
            return spaces.Dict(parts)  # a list keeps its order
        case "Tuple":
            return spaces.Tuple([_rebuild(part, depth + 1) for part in _list(data["parts"])])
    raise InputError(f"unknown kind of space {brief(data['kind'])}")


def _number_type(name: Any) -> np.dtype:
    if not isinstance(name, str) or name not in _NUMBER_TYPES:
        raise InputError(f"a space has numbers of one of the types {', '.join(_NUMBER_TYPES)}, got {brief(name)}")
    return np.dtype(name)


def _size(number: Any) -> int:
    if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number <= _MOST:
        raise InputError(f"the size of a space must be a whole number up to {_MOST:,}, got {brief(number)}")
    return number


def _sizes(numbers: Any) -> tuple[int, ...]:
    if len(_list(numbers)) > _DEEPEST:
        raise InputError(f"a space has {len(numbers)} axes, more than the {_DEEPEST} known here")
    return tuple(map(_size, numbers))


def _bounds(texts: Any, count: int, dtype: np.dtype) -> Array:
    """As `describe` writes them, and as many as the shape says: so a short file makes no large space."""
    if isinstance(texts, str) and dtype == np.uint8:
        if count > _MOST_PIXELS:
            raise InputError(f"an image has {count:,} bytes, more than the {_MOST_PIXELS:,} known here")
        return np.full(count, int(texts), dtype)
    if len(_list(texts)) != count or not all(isinstance(text, str) for text in texts):
        raise InputError(f"a Box needs {count} bounds as texts at either end, got {brief(texts)}")
    number = float if np.issubdtype(dtype, np.floating) else int
    return np.array([number(text) for text in texts], dtype)


def _whole_numbers(numbers: Any, dtype: np.dtype) -> Array:
    """An array of nested lists; what they hold is looked at first, since NumPy would make an array of anything."""

    def check(item: Any, depth: int) -> None:
        if isinstance(item, list) and depth < _DEEPEST:
            for part in item:
                check(part, depth + 1)
        elif not isinstance(item, int) or isinstance(item, bool):
            raise InputError(f"a MultiDiscrete space holds whole numbers, got {brief(item)}")

    check(numbers, 0)
    return np.array(numbers, dtype)


def _list(data: Any) -> list[Any]:
    if not isinstance(data, list):
        raise InputError(f"a space has a list where {brief(data)} is given")
    return data


def _name(data: Any) -> str:
    if not isinstance(data, str | int):
        raise InputError(f"a part of a space is called by a text, got {brief(data)}")
    return data  # pyright: ignore[reportReturnType]  # numbers are rare, and fine
