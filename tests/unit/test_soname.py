import pytest

from rocbake import soname


@pytest.mark.parametrize(
    ("name", "releases"),
    [
        ("libamdhip64.so.6", (6,)),
        ("libhiprtc.so.7", (7,)),
        ("librocblas.so.4", (6,)),
        ("librocblas.so.5", (7, 10)),
        ("libhipblas.so.3", (7,)),
        ("libhipblaslt.so.0", (5, 6)),
        ("librocsolver.so.0", ()),
        ("librocblas.so", ()),
    ],
)
def test_a_soname_tells_which_rocm_has_it(name, releases):
    assert soname.releases_of(name) == releases


@pytest.mark.parametrize(
    "name",
    [
        "libamdhip64.so.7",
        "libamdhip64.so",
        "libamd_comgr.so.3",
        "libhsa-runtime64.so.1",
        "libhiprtc.so.7",
        "libMIOpen.so.1",
        "librccl.so.1",
        "librocblas.so.5.1.70204",
    ],
)
def test_rocms_libraries_are_known_by_name(name):
    assert soname.is_rocm(name)
    assert soname.computes(name)


@pytest.mark.parametrize(
    "name", ["libc.so.6", "libomp.so.5", "libhip", "xlibhip.so", "librocblas.so.5x"]
)
def test_others_are_not(name):
    assert not soname.is_rocm(name)
    assert not soname.computes(name)


@pytest.mark.parametrize(
    "name",
    ["librocprofiler-register.so.0", "libroctx64.so.4", "librocm_smi64.so.1", "libamd_smi.so.26"],
)
def test_what_only_measures_is_not_needed_to_compute(name):
    assert soname.is_rocm(name)
    assert not soname.computes(name)


def test_a_soname_is_shown_with_its_release():
    assert soname.described("librocblas.so.5") == "librocblas.so.5 (ROCm 7 or 10)"
    assert soname.described("libhipblaslt.so.0") == "libhipblaslt.so.0 (ROCm 5 or 6)"
    assert soname.described("libz.so.1") == "libz.so.1"
