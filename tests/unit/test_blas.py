import pytest

from rocbake import blas

# As the SDK image has them.
FILES = [
    "usr/lib/x86_64-linux-gnu/rocblas/5.2.0/library/TensileLibrary_lazy_gfx1030.dat",
    "usr/lib/x86_64-linux-gnu/rocblas/5.2.0/library/TensileLibrary_lazy_gfx1100.dat",
    "usr/lib/x86_64-linux-gnu/rocblas/5.2.0/library/Kernels.so-000-gfx1102.hsaco",
    "opt/rocm/lib/hipblaslt/library/TensileLibrary_lazy_gfx1100.dat",
    "opt/rocm/lib/hipblaslt/library/gfx1201/TensileLibrary_lazy_gfx1201.dat",
    "opt/rocm/lib/other/library/TensileLibrary_lazy_gfx1102.dat",
    "usr/share/doc/rocblas/TensileLibrary_lazy_gfx1102.dat",
]


@pytest.mark.parametrize(
    ("processor", "libraries"),
    [
        ("gfx1100", ("rocBLAS", "hipBLASLt")),
        ("gfx1030", ("rocBLAS",)),
        ("gfx1201", ("hipBLASLt",)),
        ("gfx1102", ()),
    ],
)
def test_kernels_are_told_from_the_files(processor, libraries):
    assert blas.coverage(FILES).of(processor) == libraries


@pytest.mark.parametrize(
    ("needed", "wanted"),
    [
        (["libc.so.6", "libamdhip64.so.7"], False),
        (["librocblas.so.5"], True),
        (["libhipblas.so.3"], True),
        (["libhipblaslt.so.1"], True),
        (["librocblas_other.so.1", "xlibrocblas.so.5"], False),
    ],
)
def test_who_multiplies_is_told_from_what_it_links(needed, wanted):
    assert blas.is_wanted(needed) is wanted
