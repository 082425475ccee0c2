import dataclasses
import struct

import pytest

from rocbake import blas, fit, gpu
from rocbake.errors import FitError
from rocbake.fit import Beyond, Misfit, Verdict
from rocbake.gpu import Absence, Card, DeviceNode, Gpus, NodeKind
from rocbake.host import _LEVELS, Host, Libc, Rocm
from rocbake.manifest import ElfEntry, FileEntry, Manifest

LIB = "/usr/lib/x86_64-linux-gnu"
KFD = DeviceNode(gpu.KFD, NodeKind.CHARACTER)
SHA256 = "0" * 64
HIP = "libamdhip64.so.7"
SYSTEM = ("libc.so.6", "libm.so.6", "libstdc++.so.6")
FEATURES = [frozenset(" ".join(_LEVELS[:level]).split()) for level in range(5)]


def file(path, *needed, soname=None, code=(), **versions):
    """Return a file of a product; versions by prefix, the dots written as underscores."""
    return FileEntry(
        path=path,
        mode="0755",
        elf=ElfEntry(
            soname=soname,
            needed=needed,
            rpath=(),
            versions={prefix: number.replace("_", ".") for prefix, number in versions.items()},
        ),
        code_objects=dict.fromkeys(code, 1),
    )


def kernels(target):
    return FileEntry(path=f"lib/rocblas/5/library/TensileLibrary_lazy_{target}.dat", mode="0644")


PROBE = file(
    "bin/probe", HIP, *SYSTEM, code=("gfx1201",), GLIBC="2_34", GLIBCXX="3_4_29", hip="6_0"
)


def product(*files, kind="plain", rocm="7.2.4", targets=None):
    """Return the manifest that these files would give."""
    files = files or (PROBE,)
    elves = [one.elf for one in files if one.elf]
    inside = {one.soname for one in elves} | {one.path.rpartition("/")[2] for one in files}
    versions = {}
    for one in elves:
        for prefix, number in one.versions.items():
            versions[prefix] = max(versions.get(prefix, number), number)
    needed = sorted({name for one in elves for name in one.needed} - inside)
    found = {name for one in files for name in one.code_objects}
    return Manifest(
        kind=kind,
        name="probe",
        version="1.0",
        key=SHA256,
        epoch=0,
        rocm=rocm,
        targets=tuple(sorted(found)) if targets is None else targets,
        needed=tuple(needed),
        versions=versions if needed else {},
        files=files,
    )


def card(target="gfx1201", index=0, *, is_apu=False):
    node = DeviceNode(f"/dev/dri/renderD{128 + index}", NodeKind.CHARACTER)
    return Card(index, index + 1, target, f"card {index}", is_apu, 16 << 30, 64, node)


def gpus(*cards):
    absence = None if cards else Absence("no-driver", "no amdgpu", "modprobe amdgpu")
    return Gpus(KFD, cards, absence=absence)


@pytest.fixture
def machine():
    """A machine with all that is needed: Debian of 2026 and a gfx1201."""
    libraries = {name: f"{LIB}/{name}" for name in (HIP, *SYSTEM)}
    return Host(
        libc=Libc("glibc", "2.43", libraries["libc.so.6"]),
        libraries=libraries,
        versions={
            "libstdc++.so.6": {"GLIBCXX": "3.4.36", "CXXABI": "1.3.17"},
            HIP: {"hip": "7.2"},
        },
        cpu_features=FEATURES[3],
        rocms=(Rocm("7", libraries[HIP]),),
        kernels=blas.coverage(()),
        gpus=gpus(card()),
    )


def but(machine, **changes):
    return dataclasses.replace(machine, **changes)


def with_libraries(machine, *names, without=()):
    kept = {name: path for name, path in machine.libraries.items() if name not in without}
    return but(
        machine,
        libraries=kept | {name: f"{LIB}/{name}" for name in names},
        versions={name: given for name, given in machine.versions.items() if name in kept},
    )


def kinds(verdict):
    return [one.kind for one in verdict.misfits]


def test_what_fits_has_no_misfits_and_no_notes(machine):
    assert fit.check(product(), machine) == Verdict()
    assert fit.check(product(), machine).fits


# --- the C library, and versions


def test_an_older_glibc_is_a_misfit_with_both_versions(machine):
    old = but(machine, libc=Libc("glibc", "2.31", f"{LIB}/libc.so.6"))

    (misfit,) = fit.check(product(), old).misfits

    assert (misfit.kind, misfit.needed) == ("version", "GLIBC_2.34")
    assert misfit.here == f"glibc 2.31, {LIB}/libc.so.6"
    assert misfit.files == ("bin/probe",)
    assert str(misfit) == (
        f"GLIBC_2.34 is needed by bin/probe; here is glibc 2.31, {LIB}/libc.so.6"
    )


@pytest.mark.parametrize("version", ["2.34", "2.100"])
def test_versions_are_compared_as_numbers(machine, version):
    assert fit.check(product(), but(machine, libc=Libc("glibc", version, "/libc"))).fits
    assert not fit.check(product(), but(machine, libc=Libc("glibc", "2.9", "/libc"))).fits


def test_only_files_that_need_more_are_named(machine):
    old = but(machine, libc=Libc("glibc", "2.36", "/libc"))
    made = product(
        file("bin/old", *SYSTEM, GLIBC="2_36"), file("bin/new", *SYSTEM, GLIBC="2_38"), PROBE
    )

    (misfit,) = fit.check(made, old).misfits

    assert misfit.needed == "GLIBC_2.38"
    assert misfit.files == ("bin/new",)


@pytest.mark.parametrize(
    ("libc", "there"),
    [(Libc("musl", "1.2.5", "/lib/ld-musl-x86_64.so.1"), "musl 1.2.5"), (None, "no C library")],
)
def test_another_c_library_is_one_misfit(machine, libc, there):
    bare = but(machine, libc=libc, libraries={}, versions={}, rocms=())

    (misfit,) = fit.check(product(), bare).misfits

    assert (misfit.kind, misfit.needed) == ("libc", "glibc 2.34")
    assert misfit.here.startswith(there)


def test_a_glibc_of_unknown_version_is_noted(machine):
    verdict = fit.check(product(), but(machine, libc=Libc("glibc", None, "/libc.so.6")))

    assert verdict.fits
    assert verdict.notes == ("/libc.so.6 does not tell its version, so 2.34 was not compared",)


def test_an_older_libstdcxx_is_a_misfit_with_both_versions(machine):
    old = but(machine, versions={"libstdc++.so.6": {"GLIBCXX": "3.4.28"}})

    (misfit,) = fit.check(product(), old).misfits

    assert misfit.needed == "GLIBCXX_3.4.29"
    assert misfit.here == f"GLIBCXX_3.4.28, {LIB}/libstdc++.so.6"
    assert fit.check(product(), but(old, versions={"libstdc++.so.6": {"GLIBCXX": "3.4.29"}})).fits


def test_versions_of_what_is_in_the_archive_are_its_own(machine):
    own = file("lib/libstdc++.so.6", "libc.so.6", soname="libstdc++.so.6", GLIBC="2_34")
    old = but(machine, versions={"libstdc++.so.6": {"GLIBCXX": "3.4.28"}})

    assert fit.check(product(PROBE, own), old).fits


def test_an_older_runtime_of_the_same_rocm_is_a_misfit(machine):
    made = product(file("bin/probe", HIP, *SYSTEM, code=("gfx1201",), hip="7_3"))

    (misfit,) = fit.check(made, machine).misfits

    assert (misfit.needed, misfit.here) == ("hip_7.3", f"hip_7.2, {LIB}/{HIP}")


# --- libraries and ROCm


def test_a_library_that_is_not_here_is_a_misfit(machine):
    made = product(PROBE, file("bin/other", "libomp.so.5"))

    (misfit,) = fit.check(made, machine).misfits

    assert (misfit.kind, misfit.needed, misfit.here) == ("library", "libomp.so.5", "none")
    assert misfit.files == ("bin/other",)
    assert misfit.remedy == "this system's package that has libomp.so.5"


def test_another_rocm_is_named_with_what_has_which_soname(machine):
    made = product(file("lib/libg.so", HIP, "librocblas.so.5", *SYSTEM, code=("gfx1201",)))
    old = with_libraries(machine, "libamdhip64.so.6", "librocblas.so.4", without=[HIP])
    old = but(old, rocms=(Rocm("6.4.1", "/opt/rocm"),))

    verdict = fit.check(made, old)

    assert kinds(verdict) == ["rocm", "library", "library"]
    assert [(one.needed, one.here) for one in verdict.misfits] == [
        ("ROCm 7", "ROCm 6.4.1, /opt/rocm"),
        ("libamdhip64.so.7 (ROCm 7 or 10)", f"{LIB}/libamdhip64.so.6 (ROCm 6)"),
        ("librocblas.so.5 (ROCm 7 or 10)", f"{LIB}/librocblas.so.4 (ROCm 6)"),
    ]


def test_another_rocm_beside_the_right_one_hinders_nothing(machine):
    both = but(machine, rocms=(Rocm("6.4.1", "/opt/rocm-6.4.1"), Rocm("7.2.4", "/opt/rocm")))

    assert fit.check(product(), both).fits
    assert kinds(fit.check(product(), with_libraries(both, without=[HIP]))) == ["library"]


def test_without_any_rocm_its_libraries_are_all_that_is_told(machine):
    bare = but(with_libraries(machine, without=[HIP]), rocms=())

    assert kinds(fit.check(product(), bare)) == ["library"]


def test_a_later_rocm_with_the_same_sonames_fits(machine):
    later = but(machine, rocms=(Rocm("10.1.0", "/opt/rocm"),))

    verdict = fit.check(product(), later)

    assert verdict.fits
    assert verdict.notes == ("it was built with ROCm 7.2.4; here is ROCm 10.1.0, /opt/rocm",)


def test_a_rocm_that_the_loader_does_not_find_is_told_how_to_find(machine):
    path = f"/opt/rocm/core-7.14/lib/{HIP}"
    hidden = with_libraries(machine, without=[HIP])
    hidden = but(hidden, rocms=(Rocm("7.14.0", "/opt/rocm/core-7.14", {HIP: path}),))

    (misfit,) = fit.check(product(), hidden).misfits

    assert misfit.here == f"{path}, where the loader does not look"
    assert misfit.remedy == "export LD_LIBRARY_PATH=/opt/rocm/core-7.14/lib"


def test_the_file_behind_a_soname_is_no_other_release(machine):
    made = product(file("bin/probe", "libomp.so.6"))
    there = with_libraries(machine, "libomp.so.5", "libomp.so.5.1", "libompx.so.1")

    (misfit,) = fit.check(made, there).misfits

    assert misfit.here == f"{LIB}/libomp.so.5"


def test_a_bundled_archive_asks_for_nothing_of_the_system(machine):
    made = product(kind="bundled")
    made = made.model_copy(update={"needed": (), "versions": {}})
    musl = but(machine, libc=None, libraries={}, versions={}, rocms=(Rocm("6.4", "/opt/rocm"),))

    assert fit.check(made, musl) == Verdict()


# --- what only the files say


def test_a_library_that_is_opened_later_is_a_misfit_too(machine):
    beyond = Beyond(opened={"lib/xla.so": ("librocsolver.so.0",)})

    (misfit,) = fit.check(product(), machine, beyond).misfits

    assert (misfit.kind, misfit.needed) == ("library", "librocsolver.so.0")
    assert misfit.files == ("lib/xla.so",)
    assert fit.check(product(), with_libraries(machine, "librocsolver.so.0"), beyond).fits


def test_one_of_several_numbers_is_enough(machine):
    beyond = Beyond(opened={"a": ("librocblas.so.4",), "b": ("librocblas.so.5",)})

    assert fit.check(product(), with_libraries(machine, "librocblas.so.4"), beyond).fits
    (misfit,) = fit.check(product(), machine, beyond).misfits
    assert misfit.needed == "librocblas.so.5 (ROCm 7 or 10)"
    assert misfit.files == ("a", "b")


def test_what_is_needed_as_well_is_told_of_once(machine):
    beyond = Beyond(opened={"bin/probe": (HIP,)})

    assert len(fit.check(product(), with_libraries(machine, without=[HIP]), beyond).misfits) == 1


@pytest.mark.parametrize(
    "name", ["librocprofiler-register.so.0", "librocm_smi64.so.1", "libamdhip64.so"]
)
def test_what_a_product_may_do_without_is_noted(machine, name):
    made = product(file("bin/probe", *SYSTEM, code=("gfx1201",)))
    verdict = fit.check(made, machine, Beyond(opened={"lib/xla.so": (name,)}))

    assert verdict.fits
    assert verdict.notes == (f"{name} is not here; lib/xla.so may open it when it runs",)


def test_a_processor_without_the_level_is_a_misfit(machine):
    beyond = Beyond(levels={"lib/a.so": 2, "lib/b.so": 4})

    (misfit,) = fit.check(product(), machine, beyond).misfits

    assert (misfit.kind, misfit.needed) == ("cpu", "x86-64-v4")
    assert misfit.here.startswith("x86-64-v3, without avx512f, ")
    assert misfit.files == ("lib/b.so",)
    assert fit.check(product(), but(machine, cpu_features=FEATURES[4]), beyond).fits


def test_a_processor_that_tells_nothing_is_noted(machine):
    silent = but(machine, cpu_features=frozenset())

    verdict = fit.check(product(), silent, Beyond(levels={"lib/a.so": 2}))

    assert verdict.fits
    assert verdict.notes == ("x86-64-v2 is needed; the processor's features could not be read",)


def x86_file(level, data=b""):
    """Write an ELF file with a note of the level that it needs, and with data."""
    prop = struct.pack("<III", 0xC0008002, 4, (1 << level) - 1) + bytes(4)
    note = struct.pack("<III", 4, len(prop), 5) + b"GNU\0" + prop
    sections = [(0, b""), (7, note), (1, b"\0" + data + b"\0")]
    body, headers = b"", b""
    for kind, content in sections:
        place = 64 + len(body)
        headers += struct.pack("<IIQQQQIIQQ", 0, kind, 2, 0, place, len(content), 0, 0, 1, 0)
        body += content
    head = b"\x7fELF\x02\x01\x01" + bytes(9)
    head += struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, 0, 64 + len(body), 0, 64, 0, 0, 64, 3, 0)
    return head + body + headers


def test_files_are_asked_for_what_manifests_leave_out(tmp_path):
    made = product(
        file("lib/libxla.so", HIP),
        file("lib/glibc-hwcaps/x86-64-v3/libfast.so", "libc.so.6"),
        file("lib/librocblas.so.5", "libc.so.6"),
        FileEntry(path="README", mode="0644"),
    )
    names = b"libamdhip64.so.7\0librocsolver.so.0\0libcuda.so.1"
    for entry in made.files:
        path = tmp_path / entry.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(x86_file(1 if "rocblas" in entry.path else 3, names))

    assert fit.look_beyond(tmp_path, made) == Beyond(
        levels={"lib/libxla.so": 3},
        opened={
            "lib/libxla.so": ("librocsolver.so.0",),
            "lib/glibc-hwcaps/x86-64-v3/libfast.so": ("libamdhip64.so.7", "librocsolver.so.0"),
        },
    )


# --- GPUs


def code(*targets):
    return product(file("bin/probe", HIP, *SYSTEM, code=targets))


def test_a_gpu_without_code_is_a_misfit_with_both_sides(machine):
    other = but(machine, gpus=gpus(card("gfx1030")))

    (misfit,) = fit.check(code("gfx1100", "gfx1201"), other).misfits

    assert (misfit.kind, misfit.needed) == ("gpu", "a GPU of gfx1100 or gfx1201")
    assert misfit.here == "gfx1030 (card 0)"
    assert misfit.files == ("bin/probe",)
    assert misfit.remedy == "invoke build --recipe probe --target gfx1030"


def test_generic_code_runs_on_its_members(machine):
    assert fit.check(code("gfx12-generic"), machine) == Verdict()
    assert not fit.check(code("gfx11-generic"), machine).fits


def test_code_for_a_feature_is_noted(machine):
    instinct = but(machine, gpus=gpus(card("gfx90a")))

    verdict = fit.check(code("gfx90a:xnack+"), instinct)

    assert verdict.fits
    assert verdict.notes == ("gfx90a:xnack+ runs only where the driver has set these features so",)
    assert fit.check(code("gfx90a"), instinct) == Verdict()


def test_a_gpu_beside_the_one_with_code_is_noted_with_how_to_hide_it(machine):
    both = but(machine, gpus=gpus(card("gfx1036", is_apu=True), card("gfx1201", 1)))

    verdict = fit.check(code("gfx1201"), both)

    assert verdict.fits
    assert verdict.notes == ("it has no code for gfx1036 (card 0): export HIP_VISIBLE_DEVICES=1",)


def test_no_gpu_is_a_note(machine):
    verdict = fit.check(product(), but(machine, gpus=gpus()))

    assert verdict.fits
    assert verdict.notes == ("no GPU was compared with gfx1201: no amdgpu",)


def test_a_product_for_the_processor_is_noted_where_there_is_a_gpu(machine):
    made = product(file("bin/probe", *SYSTEM), rocm=None)

    assert fit.check(made, machine).notes == (
        "no code for a GPU is in it: it computes on the processor",
    )
    assert fit.check(made, but(machine, gpus=gpus())).notes == ()


# --- kernel files


BLAS = file("bin/probe", HIP, "libhipblas.so.3", *SYSTEM, code=("gfx1201",))
BLAS_LIBRARIES = ("libhipblas.so.3", "librocblas.so.5")


def bundle(*files):
    made = product(BLAS, *files, kind="bundled")
    return made.model_copy(update={"needed": (), "versions": {}})


def test_a_bundle_without_kernels_for_the_gpu_is_a_misfit(machine):
    (misfit,) = fit.check(bundle(kernels("gfx1100")), machine).misfits

    assert (misfit.kind, misfit.needed) == ("kernels", "a BLAS kernel file for gfx1201")
    assert misfit.here == "in the archive those for gfx1100"
    assert misfit.files == ("bin/probe",)
    assert fit.check(bundle(kernels("gfx1201")), machine) == Verdict()


def test_the_machines_own_kernels_count_for_a_plain_archive(machine):
    here = with_libraries(machine, *BLAS_LIBRARIES)
    lacking = but(here, kernels=blas.coverage([kernels("gfx1030").path]))
    having = but(here, kernels=blas.coverage([kernels("gfx1201").path]))

    (misfit,) = fit.check(product(BLAS), lacking).misfits

    assert misfit.here == "beside this machine's rocBLAS those for gfx1030"
    assert fit.check(product(BLAS), having) == Verdict()


def test_without_a_blas_library_its_absence_is_all_that_is_told(machine):
    assert kinds(fit.check(product(BLAS), machine)) == ["library"]


def test_what_multiplies_by_itself_needs_no_kernels(machine):
    assert fit.check(product(), with_libraries(machine, *BLAS_LIBRARIES)) == Verdict()


def test_kernels_for_one_of_two_cards_are_noted(machine):
    both = but(machine, gpus=gpus(card("gfx1201"), card("gfx1200", 1)))
    made = bundle(kernels("gfx1201"), file("lib/b.so", code=("gfx1200",)))

    verdict = fit.check(made, both)

    assert verdict.fits
    assert verdict.notes == ("no BLAS kernel file for gfx1200 (card 1) is in the archive",)


# --- which one, and the refusal


def test_the_product_that_brings_least_comes_first(machine):
    bundled = bundle(kernels("gfx1201"))
    candidates = [
        ("bundled", bundled),
        ("two", code("gfx1200", "gfx1201")),
        ("other", code("gfx1030")),
        ("one", code("gfx1201")),
    ]

    assert fit.fitting(candidates, machine) == ("one", "two", "bundled")
    assert fit.fitting(candidates, but(machine, libc=None)) == ("bundled",)
    assert fit.fitting(candidates[2:3], machine) == ()


MISFITS = Verdict(
    (
        Misfit("version", "GLIBC_2.43", "glibc 2.36", ("a", "b", "c", "d", "e"), "newer"),
        Misfit("library", "libomp.so.5", "none", (), "install it"),
    ),
    ("a note",),
)


def test_every_misfit_is_told_at_once():
    with pytest.raises(FitError) as refused:
        fit.require(MISFITS, "whisper-cpp 1.8.5")

    assert str(refused.value) == (
        "whisper-cpp 1.8.5 does not fit this machine:\n"
        "  GLIBC_2.43 is needed by a, b, c and 2 more; here is glibc 2.36\n"
        "  libomp.so.5 is needed; here is none"
    )
    assert refused.value.hint == "newer; install it"
    assert refused.value.exit_code == 11


def test_what_would_fit_is_named():
    with pytest.raises(FitError) as refused:
        fit.require(MISFITS, "whisper-cpp", instead=["w-bundled.tar.zst", "other"])

    assert refused.value.hint == "this one fits: w-bundled.tar.zst"


def test_what_is_skipped_is_said():
    assert fit.require(MISFITS, "whisper-cpp", skip=True) == (
        f"--no-fit-check passes over: {MISFITS.misfits[0]}",
        "--no-fit-check passes over: libomp.so.5 is needed; here is none",
        "a note",
    )


def test_what_fits_is_let_through_with_its_notes():
    assert fit.require(Verdict(notes=("a note",)), "probe", skip=True) == ("a note",)
    assert fit.require(Verdict(), "probe") == ()
