"""BLAS kernel files: for which targets rocBLAS and hipBLASLt in an image can multiply. Pure.

A program that was compiled for a target still ends at its first matrix product if these libraries
have no kernels for it: "Cannot read .../TensileLibrary.dat: Illegal seek for GPU arch : gfx1103".
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

# The lazy index of a target's kernels, one a library and target:
# https://github.com/ROCm/rocm-libraries/blob/develop/projects/rocblas/library/src/tensile_host.cpp
_INDEX = re.compile(
    r"(?:^|/)(?P<library>rocblas|hipblaslt)/(?:[^/]+/)*library/(?:[^/]+/)*"
    r"TensileLibrary_lazy_(?P<target>gfx[0-9a-f]+)\.dat(?:\.zst)?$"
)
# What a program links that ends in one of the two.
_WANTS = re.compile(r"^lib(rocblas|hipblas|hipblaslt)\.so(\.|$)")


@dataclass(frozen=True, slots=True)
class Coverage:
    """The processors that each library has kernels for, such as "gfx1201"."""

    rocblas: frozenset[str]
    hipblaslt: frozenset[str]

    def of(self, processor: str) -> tuple[str, ...]:
        """Return the libraries that have kernels for a processor."""
        return tuple(
            name
            for name, known in (("rocBLAS", self.rocblas), ("hipBLASLt", self.hipblaslt))
            if processor in known
        )


def coverage(paths: Iterable[str]) -> Coverage:
    """Read from the paths of an image's files which kernels are there."""
    found: dict[str, set[str]] = {"rocblas": set(), "hipblaslt": set()}
    for path in paths:
        if match := _INDEX.search(path):
            found[match["library"]].add(match["target"])
    return Coverage(frozenset(found["rocblas"]), frozenset(found["hipblaslt"]))


def is_wanted(needed: Iterable[str]) -> bool:
    """Tell whether a program that needs these sonames multiplies through one of the libraries."""
    return any(_WANTS.match(soname) for soname in needed)
