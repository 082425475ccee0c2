import copy
import json
import os

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rocbake import lock
from rocbake.errors import LockError
from rocbake.lock import Recorded

SDK = "containers/sdk/container.yaml"
TOOL = "recipes/tool/recipe.yaml"


@pytest.fixture(autouse=True)
def _in_checkout(checkout, monkeypatch):
    monkeypatch.chdir(checkout.root)


def fresh(checkout):
    recipe = checkout.load().recipes["tool"]
    return lock.require_fresh(recipe.containers, recipe)


def stale(checkout):
    with pytest.raises(LockError) as caught:
        fresh(checkout)
    assert caught.value.exit_code == 3
    return str(caught.value).splitlines(), caught.value.hint


def test_fresh_locks_are_read(checkout):
    locks, recipe_lock = fresh(checkout)

    assert list(locks) == ["base", "small", "sdk"]
    assert locks["sdk"].parent == locks["base"].digest
    assert [one.label for one in locks["sdk"].packages] == [
        "cmake 4.0 (amd64)",
        "hipcc 1:7.2.4-1 (amd64)",
    ]
    assert [one.file_name for one in recipe_lock.sources] == ["data.tar"]


@pytest.mark.parametrize(
    ("file", "old", "new", "reasons"),
    [
        (SDK, "cmake]", "cmake, ninja]", ["packages: ninja is wanted and not locked"]),
        (SDK, "hipcc, cmake", "hipcc", ["packages: cmake is locked and not wanted"]),
        (SDK, "hipcc, cmake", "hipcc, clang",
         ["packages: clang is wanted and not locked", "packages: cmake is locked and not wanted"]),
        (TOOL, "data.tar", "data2.tar",
         ["sources: https://example.invalid/data2.tar is wanted and not locked",
          "sources: https://example.invalid/data.tar is locked and not wanted"]),
    ],
)  # fmt: skip
def test_changed_wish_makes_a_lock_stale(checkout, file, old, new, reasons):
    checkout.edit(file, old, new)

    found, hint = stale(checkout)

    path = file.rpartition("/")[0]
    name = path.rpartition("/")[2]
    assert found == [f"{path}/lock.json: stale: {reason}" for reason in reasons]
    assert hint == f"invoke lock --name {name}"


@pytest.mark.parametrize(
    ("file", "old", "new", "reason"),
    [
        ("containers/base/keyring.asc", "keys", "other keys", "keyring changed"),
        ("containers/base/container.yaml", "sid", "testing", "archive changed"),
    ],
)
def test_root_wish_reaches_every_layer(checkout, file, old, new, reason):
    checkout.edit(file, old, new)

    found, hint = stale(checkout)

    assert found == [f"containers/base/lock.json: stale: {reason}"]
    assert hint == "invoke lock --name base --name small --name sdk"


def test_summary_and_order_of_packages_do_not_count(checkout):
    checkout.edit(SDK, "The compiler", "Another sentence")
    checkout.edit(SDK, "[hipcc, cmake]", "[cmake, hipcc, cmake]")
    checkout.edit(TOOL, "version: 1.10", "version: 1.11")

    fresh(checkout)


def test_order_of_sources_counts(checkout):
    one, two = (f"  - url: https://example.invalid/{name}\n" for name in ("one", "two"))
    checkout.edit(TOOL, "  - url: https://example.invalid/data.tar\n", one + two)
    checkout.lock()
    checkout.edit(TOOL, one + two, two + one)

    found, _ = stale(checkout)

    assert found == ["recipes/tool/lock.json: stale: sources: the order changed"]


def test_lock_stands_on_its_parents(checkout):
    loaded = checkout.load()
    base = lock.read_container(loaded.containers["base"])
    lock.write(base.model_copy(update={"epoch": 1}), loaded.containers["base"].folder)

    found, hint = stale(checkout)

    assert found == [
        f"containers/{name}/lock.json: stale: it stands on another lock of base"
        for name in ("small", "sdk")
    ]
    assert hint == "invoke lock --name small --name sdk"


def test_parent_that_is_gone_is_told(checkout):
    container = checkout.load().containers["base"]
    found = lock.read_container(container).model_copy(update={"parent": "0" * 64})

    assert lock.stale_container(container, {"base": found}) == [
        "it stands on a parent that is gone"
    ]


def test_every_fault_is_told_at_once(checkout):
    checkout.edit(SDK, "cmake]", "cmake, ninja]")
    (checkout.root / "containers/small/lock.json").unlink()
    checkout.write("recipes/tool/lock.json", "{")

    found, hint = stale(checkout)

    assert found == [
        "containers/small/lock.json: there is no lock for small",
        "containers/sdk/lock.json: stale: packages: ninja is wanted and not locked",
        "recipes/tool/lock.json:1:2: not JSON: Expecting property name enclosed in double quotes",
    ]
    assert hint == "invoke lock --name small --name sdk --name tool"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "lock.json:1:1: not JSON: Expecting value"),
        ('{\n  "schema": 1,\n}', "not JSON: "),
        ("[]", "not a lock of this kind: "),
        ("[" * 100_000, "not a lock of this kind: maximum recursion"),
        ("NaN", "not a lock of this kind: "),
        ("<<<<<<< HEAD\n{}", "lock.json:1:1: not JSON: "),
        ("{}", "not a lock of this kind: wish: Field required"),
        (b"\xff\xfe", "lock.json: cannot be read: "),
        ("1" * 5000, "not a lock of this kind"),
    ],
    ids=["empty", "comma", "list", "deep", "nan", "conflict", "object", "utf-16", "number"],
)
def test_unreadable_lock_is_explained(checkout, text, reason):
    path = checkout.write("recipes/tool/lock.json", "")
    path.write_bytes(text if isinstance(text, bytes) else text.encode())

    with pytest.raises(LockError) as caught:
        lock.read_recipe(checkout.load().recipes["tool"])

    assert str(caught.value).startswith("recipes/tool/lock.json")
    assert reason in str(caught.value)
    assert caught.value.hint == "invoke lock --name tool"


def test_lock_of_another_kind_or_format_is_refused(checkout):
    loaded = checkout.load()
    text = (checkout.root / "containers/base/lock.json").read_text()
    for old, new, what in (
        ('"kind": "container"', '"kind": "recipe"', "kind: "),
        ('"schema": 1', '"schema": 2', "schema: "),
        ('"epoch": ', '"epoch": -', "epoch: "),
        ('"path": "', '"path": "../', "packages.0.path: "),
        ('"made_with"', '"made_by"', "made_by: "),
    ):
        checkout.write("containers/base/lock.json", text.replace(old, new, 1))
        with pytest.raises(LockError, match=f"not a lock of this kind: {what}"):
            lock.read_container(loaded.containers["base"])


def test_what_is_written_is_read_again(checkout):
    container = checkout.load().containers["sdk"]
    recorded = Recorded(
        key="0" * 64, config="sha256:1", layers=("a",), archive="1" * 64, files={"bin/x": "2"}
    )
    one = lock.read_container(container).model_copy(update={"recorded": {"7.2.4": recorded}})

    lock.write(one, container.folder)

    assert lock.read_container(container) == one
    assert list(container.folder.glob(".lock-*")) == []


def test_lock_has_one_row_a_package(checkout):
    text = (checkout.root / "containers/sdk/lock.json").read_text()

    rows = [line for line in text.splitlines() if "hipcc_" in line or '"name": "hipcc"' in line]

    assert len(rows) == 1
    assert json.loads(rows[0].rstrip(","))["version"] == "1:7.2.4-1"
    assert text.endswith("}\n")
    assert json.loads(text)["packages"][1]["name"] == "hipcc"


def test_lock_has_the_same_mode_under_every_umask(checkout):
    container = checkout.load().containers["sdk"]
    before = os.umask(0o077)
    try:
        lock.write(lock.read_container(container), container.folder)
    finally:
        os.umask(before)

    assert (container.folder / "lock.json").stat().st_mode & 0o777 == 0o644


def test_failed_write_leaves_the_old_lock(checkout, monkeypatch):
    container = checkout.load().containers["sdk"]
    before = (container.folder / "lock.json").read_bytes()
    one = lock.read_container(container)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="No space"):
        lock.write(one, container.folder)

    assert (container.folder / "lock.json").read_bytes() == before
    assert sorted(path.name for path in container.folder.iterdir()) == [
        "Dockerfile",
        "container.yaml",
        "lock.json",
    ]


def test_digest_is_of_what_decides_about_bytes(checkout):
    one = lock.read_container(checkout.load().containers["sdk"])
    recorded = Recorded(key="0" * 64, config="c", layers=())

    same = one.model_copy(update={"made_with": {"apt": "9"}, "recorded": {"x": recorded}})
    others = [
        one.model_copy(update={name: value})
        for name, value in {
            "wish": {},
            "parent": None,
            "snapshot": "20270101T000000Z",
            "epoch": 1,
            "suites": (),
            "packages": (),
        }.items()
    ]

    assert same.digest == one.digest
    assert len({one.digest, *(other.digest for other in others)}) == 7


# Whatever stands in a lock, nothing but words comes of it

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(data=st.data())
def test_any_lock_is_read_or_explained(checkout, data):
    container = checkout.load().containers["base"]
    path = container.folder / "lock.json"
    good = json.loads(path.read_text()) if data.draw(st.booleans()) else {}
    value = copy.deepcopy(good)
    where = value
    while isinstance(where, (dict, list)) and where:
        key = data.draw(st.sampled_from(list(where) if isinstance(where, dict) else [0, -1]))
        if data.draw(st.booleans()):
            where[key] = data.draw(JSON)
            break
        where = where[key]
    text = json.dumps(value) if good else data.draw(st.text(max_size=30))
    other = path.with_name("other.json")
    other.write_text(text, encoding="utf-8")

    try:
        lock._read(other, lock.ContainerLock, "base")
    except LockError as wrong:
        assert wrong.hint == "invoke lock --name base"  # noqa: PT017 - both ways are right
