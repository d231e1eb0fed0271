"""Many arrays as few: vectors and numbers lie one behind the other in one vector.

Every array that goes into a compiled function or comes out of it costs about a microsecond, whatever its size, and
every small one is a piece of work of its own there. Networks with normalisation, averages and both moments of Adam have
more than a hundred, most of them vectors. Matrices stay apart: to cut one out of a larger array would be to copy it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Any

import jax.numpy as jnp


class Packing:
    """How arrays of some shapes and types are packed."""

    def __init__(self, examples: Sequence[Any], groups: Iterable[Sequence[int]]) -> None:
        """`groups` lists the number of every array once. Only arrays of one group and one type are packed together.

        `slots` says which packed arrays belong to each group. How a group is packed depends on that group alone, so
        equal groups of two packings are packed alike.
        """
        self._shapes = [tuple(example.shape) for example in examples]
        self._contents: list[list[int]] = []  # numbers of the arrays in every packed one
        self.slots: list[list[int]] = []
        for group in groups:
            begin = len(self._contents)
            small: dict[str, list[int]] = {}
            for number in group:
                if len(self._shapes[number]) > 1:
                    self._contents.append([number])
                else:
                    small.setdefault(str(examples[number].dtype), []).append(number)
            self._contents += small.values()
            self.slots.append(list(range(begin, len(self._contents))))
        self._ends = [
            [sum(map(self._size, content[:end])) for end in range(len(content) + 1)] for content in self._contents
        ]

    def pack(self, arrays: Sequence[Any], numpy: Any = jnp) -> list[Any]:
        """Many arrays -> few; `numpy` is `jax.numpy` in compiled functions, else NumPy."""
        return [
            arrays[content[0]]
            if len(content) == 1
            else numpy.concatenate([arrays[number].reshape(-1) for number in content])
            for content in self._contents
        ]

    def unpack(self, packed: Sequence[Any]) -> list[Any]:
        """Inverse of `pack`; with NumPy, the arrays are views."""
        arrays: list[Any] = [None] * len(self._shapes)
        for content, ends, whole in zip(self._contents, self._ends, packed, strict=True):
            parts = [whole] if len(content) == 1 else [whole[begin:end] for begin, end in itertools.pairwise(ends)]
            for number, part in zip(content, parts, strict=True):
                arrays[number] = part.reshape(self._shapes[number])
        return arrays

    def _size(self, number: int) -> int:
        return math.prod(self._shapes[number])
