import gzip
import io
import os
import tarfile
from types import SimpleNamespace

import pytest

from rocbake import engine, oci, produce, verify
from rocbake import unpack as unpacking
from rocbake.cache import Cache
from rocbake.errors import BuildError, ReproError, UsageError
from rocbake.store import Store
from rocbake.verify import Comparison
from rocbake.workshop import Workshop


def difference(*images):
    return verify.image_difference(*(oci.read(image.folder) for image in images))


def test_same_image_is_the_same_whatever_its_compression(make_image):
    assert difference(make_image({"a": b"1"}), make_image({"a": b"1"}, compress=gzip.compress)) is (
        None
    )


def test_first_file_that_differs_is_named(make_image):
    first = make_image({"a": b"1"}, {"b": b"1", "c": b"1"})
    second = make_image({"a": b"1"}, {"b": b"1", "c": b"2"})

    told = difference(first, second)

    assert told.startswith("layer 1 (layer 1): c: sha256 ")


@pytest.mark.parametrize(
    ("first", "second", "told"),
    [
        ({"a": b"1"}, {"a": b"12"}, "a: size 1, and again 2"),
        ({"a": b"1", "b": b""}, {"a": b"1", "c": b""}, "b stands where c is in the other"),
        ({"a": b"1"}, {"a": b"1", "b": b""}, "link stands where b is in the other"),
        ({}, {"link": b""}, "link: type b'2', and again b'0'"),
    ],
)
def test_what_differs_is_told(make_image, first, second, told):
    assert difference(make_image(first), make_image(second)) == f"layer 0 (layer 0): {told}"


@pytest.mark.parametrize("key", ["mode", "uid", "gid", "mtime"])
def test_what_belongs_to_a_file_counts(make_image, monkeypatch, key):
    def tar(**about):
        stream = io.BytesIO()
        with tarfile.open(fileobj=stream, mode="w") as made:
            info = tarfile.TarInfo("a")
            for name, value in about.items():
                setattr(info, name, value)
            made.addfile(info)
        return lambda _: stream.getvalue()

    image = type(make_image({}))
    images = []
    for number in (1, 2):
        monkeypatch.setattr(image, "_tar", staticmethod(tar(**{key: number})))
        images.append(make_image({}))

    assert difference(*images).endswith(f"a: {key} 1, and again 2")


def test_layer_that_ends_early_is_told(make_image, monkeypatch):
    def tar(names):
        stream = io.BytesIO()
        with tarfile.open(fileobj=stream, mode="w") as made:
            for name in names:
                made.addfile(tarfile.TarInfo(name))
        return stream.getvalue()

    monkeypatch.setattr(type(make_image({})), "_tar", staticmethod(tar))

    assert difference(make_image("ab"), make_image("a")).endswith("b is in one of them only")
    assert difference(make_image("a"), make_image("ab")).endswith("b is in one of them only")


def test_number_of_layers_counts(make_image):
    assert difference(make_image({}), make_image({}, {})) == "1 layers, and again 2"


def test_settings_count(make_image):
    assert difference(make_image({}), make_image({}, User="0")) == "User: 1000, and again 0"
    assert difference(make_image({}), make_image({}, Env=["A=1"])) == (
        "Env: None, and again ['A=1']"
    )


def test_other_configuration_counts(make_image):
    other = make_image({})
    other.change_config(lambda value: value.update(created="now"))

    assert difference(make_image({}), other).startswith("configuration: sha256:")


def test_differences_end_with_their_own_code():
    verify.require_equal([Comparison("one", "1 layer")])

    with pytest.raises(ReproError) as caught:
        verify.require_equal([Comparison("one", "1 layer"), Comparison("two", "", "a"),
                              Comparison("three", "", "b")])  # fmt: skip

    assert str(caught.value) == "two: a\nthree: b"
    assert caught.value.exit_code == 6


# A whole run, with a builder that gives what it is told to


@pytest.fixture
def rebuilt(checkout, tmp_path, put, make_image, monkeypatch):
    """Store a build of everything, and let a second one give the same, or something else."""
    kept = Store(checkout.root / "artifacts")
    plan = checkout.plan()
    for layer in plan.layers:
        put(kept, name=layer.name, tag=layer.tag, key=layer.key, content=None, with_image=True)
    entry = put(
        kept,
        key=plan.key,
        files={"bin/x": b"1", "bin/y": b"1"},
        with_image=True,
        with_bundle=b"1",
    )
    second = SimpleNamespace(plan=plan, kept=kept, entry=entry, differs=None,
                             content=b"other")  # fmt: skip

    def build(one, exports, work, **_):
        work.mkdir()
        images = {}
        for what in [*exports, one]:
            content = b"other" if second.differs == what.name else what.name.encode()
            made = make_image({"etc/name": content}, folder=work / what.name / "image")
            images[what.name] = oci.read(made.folder)
        packed = entry.artifact.archive
        (work / "tool/manifest.json").write_bytes((entry.folder / "manifest.json").read_bytes())
        if second.differs == "archive":
            other = put(Store(tmp_path / "other"), content=second.content,
                        files={"bin/x": b"1", "bin/y": b"2"})  # fmt: skip
            (work / "tool/tool.tar.zst").write_bytes(second.content)
            packed = other.artifact.archive
            (work / "tool/manifest.json").write_bytes((other.folder / "manifest.json").read_bytes())
        beside = entry
        if second.differs in {"bundled", "tests"}:
            beside = put(Store(tmp_path / "beside"), with_bundle=b"2")
        bundled = beside.artifact.bundled if second.differs != "tests" else entry.artifact.bundled
        tests = beside.artifact.tests if second.differs != "bundled" else entry.artifact.tests
        name = "manifest-bundled.json"
        (work / "tool" / name).write_bytes((beside.folder / name).read_bytes())
        return produce.Product(work, images, packed, bundled, tests, work / "log")

    monkeypatch.setattr(produce, "produce", build)
    monkeypatch.setattr(engine, "connect", None)
    monkeypatch.setattr(verify.shutil, "which", lambda _: None)
    workshop = Workshop(checkout.load(), Cache(tmp_path / "cache"), kept, fresh=True)
    second.verify = lambda: verify.verify(plan, workshop=workshop)
    return second


def test_second_build_of_the_same_is_reproduced(rebuilt):
    found = rebuilt.verify()

    assert [(one.name, one.difference) for one in found] == [
        ("rocbake/base:20261030T080801Z", None),
        ("rocbake/small:7.2.4", None),
        ("rocbake/sdk:7.2.4", None),
        ("rocbake/tool:gfx1201", None),
    ]
    assert found[-1].parts == "1 layer, archive, bundled archive, tests"
    assert list((rebuilt.kept.root / ".work").iterdir()) == []


@pytest.mark.parametrize(
    ("what", "told"),
    [
        ("sdk", "layer 0 (layer 0): etc/name: size 3, and again 5"),
        ("tool", "layer 0 (layer 0): etc/name: size 4, and again 5"),
        ("archive", "archive: bin/y: sha256 "),
        ("bundled", "bundled archive: lib/one: sha256 "),
        ("tests", "tests: sha256 "),
    ],
)
def test_second_build_of_something_else_is_told_and_kept(rebuilt, what, told):
    rebuilt.differs = what

    wrong = [one for one in rebuilt.verify() if one.difference]

    assert len(wrong) == 1
    assert wrong[0].difference.startswith(told)
    assert len(list((rebuilt.kept.root / ".work").iterdir())) == 1


@pytest.fixture
def diffoscope(tmp_path, monkeypatch):
    """Install a diffoscope that does what a test says, and let archives be real ones."""
    monkeypatch.setattr(unpacking, "unpack", unpack)
    monkeypatch.setattr(verify, "_DIFFOSCOPE_SECONDS", 0.5)

    def install(script):
        program = tmp_path / "bin/diffoscope"
        program.parent.mkdir()
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
        monkeypatch.setattr(verify.shutil, "which", lambda _: str(program))

    return install


def unpack(packed, destination):
    if b"broken" in packed.read_bytes():
        raise BuildError("damaged")
    destination.mkdir()  # as the real one: not its parents
    (destination / "tool/bin").mkdir(parents=True)
    (destination / "tool/bin/y").write_bytes(packed.read_bytes())


@pytest.mark.parametrize(
    ("script", "detail"),
    [
        ('shift 2; cat "$@"; exit 1', "archiveother"),
        ("echo oops >&2; exit 2", "no view from diffoscope: oops"),
        ("kill -SEGV $$", "no view from diffoscope: exit code -11"),
        ("sleep 60", "no view from diffoscope: took more than 0.5 s"),
    ],
)
def test_difference_is_told_whatever_becomes_of_diffoscope(rebuilt, diffoscope, script, detail):
    diffoscope(script)
    rebuilt.differs = "archive"

    (wrong,) = [one for one in rebuilt.verify() if one.difference]

    assert wrong.difference.startswith("archive: bin/y: sha256 ")
    assert wrong.detail.startswith(detail)


def test_difference_is_told_where_the_archive_cannot_be_unpacked(rebuilt, diffoscope):
    diffoscope("true")
    rebuilt.differs, rebuilt.content = "archive", b"broken"

    (wrong,) = [one for one in rebuilt.verify() if one.difference]

    assert wrong.difference.startswith("archive: bin/y: sha256 ")
    assert wrong.detail == "no view from diffoscope: damaged"


def test_nothing_to_compare_with_is_told(rebuilt, monkeypatch):
    monkeypatch.setattr(produce, "produce", None)
    base = rebuilt.plan.layers[0]
    (rebuilt.kept.folder(base.name, base.tag, base.key) / "artifact.json").unlink()

    with pytest.raises(UsageError, match=r"the store has no rocbake/base:.* of these locks"):
        rebuilt.verify()


def test_damaged_build_is_not_compared_with(rebuilt, monkeypatch):
    monkeypatch.setattr(produce, "produce", None)
    rebuilt.entry.archive_path.write_bytes(b"damaged")

    with pytest.raises(BuildError, match="damaged"):
        rebuilt.verify()
