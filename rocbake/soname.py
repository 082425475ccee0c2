"""Sonames of ROCm's libraries, and which of its releases has one: the one table of them. Pure."""

from __future__ import annotations

import re

# Which ROCm has a soname, by its first number. The runtime has ROCm's own, up to 7; the others:
#   https://github.com/ROCm/rocBLAS/releases 4.0.0 for 6.0.0, 5.0.0 for 7.0.1; 3 in
#   https://github.com/elixir-nx/xla/issues/82
#   https://github.com/ROCm/hipBLAS/blob/develop/CHANGELOG.md 2.0.0 for 6.0.0;
#   https://github.com/ROCm/hipBLAS/releases/tag/rocm-7.2.1 is 3.2.0
#   https://github.com/ROCm/hipBLASLt/releases/tag/rocm-7.0.1 is 1.0.0; 0.1.0 was for 5.5
#   hipSOLVER: Fedora's 6.0.2 has 0, Debian's 7.2.4 has 1
#   10 kept those of 7: what the wheel of jax-rocm10-pjrt 0.12.0, for 10.1.0, needs
# Those that kept their number say nothing: rocSOLVER, rocFFT, MIOpen, RCCL, ROCR.
_RELEASES: dict[str, tuple[int, ...]] = {
    "libamdhip64.so.5": (5,),
    "libamdhip64.so.6": (6,),
    "libamdhip64.so.7": (7, 10),
    "libhiprtc.so.5": (5,),
    "libhiprtc.so.6": (6,),
    "libhiprtc.so.7": (7,),
    "librocblas.so.3": (5,),
    "librocblas.so.4": (6,),
    "librocblas.so.5": (7, 10),
    "libhipblas.so.2": (6,),
    "libhipblas.so.3": (7,),
    "libhipblaslt.so.0": (5, 6),
    "libhipblaslt.so.1": (7, 10),
    "libhipsolver.so.0": (5, 6),
    "libhipsolver.so.1": (7,),
}
_NUMBER = r"\.so(\.\d+)*"
_OWN = re.compile(rf"lib(amdhip64|amd_\w+|hip\w*|roc\w*|hsa-\w+|MIOpen|rccl)[\w-]*{_NUMBER}")
_COMPUTES = re.compile(
    r"lib(amdhip64|hiprtc|amd_comgr|hsa-runtime64|MIOpen|rccl"
    rf"|(roc|hip)(blas|blaslt|solver|sparse|sparselt|fft|rand)){_NUMBER}"
)


def is_rocm(name: str) -> bool:
    """Tell whether this is the name of one of ROCm's libraries, with a number or without."""
    return _OWN.fullmatch(name) is not None


def computes(name: str) -> bool:
    """Tell whether it is one that computing needs, and not only measuring or managing.

    >>> computes("librocblas.so.5"), computes("librocprofiler-register.so.0")
    (True, False)
    """
    return _COMPUTES.fullmatch(name) is not None


def releases_of(name: str) -> tuple[int, ...]:
    """Return the first numbers of the ROCm releases that have a soname; () if it does not tell.

    >>> releases_of("librocblas.so.4"), releases_of("libMIOpen.so.1")
    ((6,), ())
    """
    return _RELEASES.get(name, ())


def described(name: str) -> str:
    """Return a soname with the releases that have it, where it tells.

    >>> described("libhipblaslt.so.0"), described("libz.so.1")
    ('libhipblaslt.so.0 (ROCm 5 or 6)', 'libz.so.1')
    """
    releases = " or ".join(map(str, releases_of(name)))
    return f"{name} (ROCm {releases})" if releases else name
