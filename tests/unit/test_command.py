import json

import pytest

from rocbake import build as building
from rocbake import cache as caches
from rocbake import command, engine, fetch, gpu, lock, mirror
from rocbake import verify as verifying
from rocbake.asked import Asked
from rocbake.build import Outcome
from rocbake.errors import BuildError, EngineError, LockError, ReproError, TargetError, UsageError
from rocbake.mirror import Mirrors
from rocbake.store import Store

BUILD = {"dry_run": False, "as_json": False, "offline": False, "force": False}

pytestmark = pytest.mark.usefixtures("own_checkout")


@pytest.fixture(autouse=True)
def _no_engine(monkeypatch):
    def silent():
        raise EngineError("a unit test asked for an engine")

    monkeypatch.setattr(engine, "connect", silent)


@pytest.fixture
def kept(checkout):
    return Store(checkout.root / "artifacts")


@pytest.fixture
def entry(kept, put, checkout):
    return put(kept, key=checkout.plan().key, files={"bin/x": b"1"}, with_image=True)


@pytest.fixture
def said(capsys):
    """Run a verb; return what it printed on stdout."""

    def said(verb, *words, **options):
        verb(*words, **options)
        return capsys.readouterr().out

    return said


def keep_out(*_, **__):
    raise AssertionError("work was started")


# build


def test_plan_is_shown_and_nothing_started(said, checkout, monkeypatch):
    monkeypatch.setattr(building, "build", keep_out)
    options = BUILD | {"dry_run": True}

    text = said(command.build, ["gfx1201"], [], **options)
    (told,) = json.loads(said(command.build, ["gfx1201"], [], **options | {"as_json": True}))

    made = checkout.plan()
    assert told == made.model_dump(mode="json", by_alias=True)
    assert f"key      {made.key}" in text
    assert "fetch    6 of 6 files" in text
    assert "built    rocbake/sdk:7.2.4   2 packages on base" in text


def test_plan_tells_what_is_there_already(said, entry, checkout, put, kept):
    layer = checkout.plan().layers[0]
    put(kept, name="base", tag=layer.tag, key=layer.key, content=None)
    cache = caches.Cache()
    for source in checkout.plan().inputs:
        path = checkout.write("of/cache", checkout.content(source.label).decode())
        cache.put(path)

    text = said(command.build, ["gfx1201"], [], **BUILD | {"dry_run": True})

    assert "fetch    nothing: all 6 files are in the cache" in text
    assert "reused   rocbake/base:" in text
    assert "built    rocbake/small:" in text
    assert "reused   rocbake/tool:gfx1201   on small" in text


def test_each_set_is_planned_for_each_recipe(said):
    options = BUILD | {"dry_run": True, "as_json": True}

    told = json.loads(said(command.build, ["gfx1201", "gfx1100,gfx1201"], ["tool"], **options))

    assert [one["targets"] for one in told] == [["gfx1201"], ["gfx1100", "gfx1201"]]


@pytest.mark.parametrize(
    ("targets", "recipes", "kind", "reason"),
    [
        ([], [], TargetError, "no GPU target was named"),
        (["gfx12O1"], [], TargetError, "'gfx12O1'"),
        (["gfx1201", ""], [], TargetError, "empty"),
        (["gfx1201"], ["none"], UsageError, "there is no recipe 'none'"),
    ],
)
def test_options_are_checked_before_any_work(monkeypatch, targets, recipes, kind, reason):
    monkeypatch.setattr(building, "build", keep_out)

    with pytest.raises(kind, match=reason):
        command.build(targets, recipes, **BUILD)


def test_target_is_checked_before_files_are_read(checkout):
    checkout.write("recipes/tool/recipe.yaml", "broken")

    with pytest.raises(TargetError):
        command.build(["gfx12O1"], [], **BUILD)


@pytest.mark.parametrize("verb", [command.build, command.verify])
def test_jobs_are_checked_before_files_are_read(checkout, verb):
    checkout.write("recipes/tool/recipe.yaml", "broken")
    options = BUILD if verb is command.build else {"as_json": False, "offline": False}

    with pytest.raises(UsageError, match=r"--jobs: expected a whole number .* got '0'"):
        verb(["gfx1201"], [], **options, jobs="0")


@pytest.mark.parametrize(("jobs", "expected"), [("3", 3), (None, None)])
def test_jobs_are_handed_on(monkeypatch, jobs, expected):
    seen = []

    def record(*_, workshop, **__):
        seen.append(workshop.jobs)
        return []

    monkeypatch.setattr(building, "build", record)
    monkeypatch.setattr(verifying, "verify", record)
    command.build(["gfx1201"], [], **BUILD, jobs=jobs)
    command.verify(["gfx1201"], [], as_json=False, offline=False, jobs=jobs)

    assert seen == [expected, expected]


def test_jobs_are_no_part_of_the_plan(said):
    options = BUILD | {"dry_run": True, "as_json": True}

    assert said(command.build, ["gfx1201"], [], **options, jobs="3") == said(
        command.build, ["gfx1201"], [], **options
    )


def test_stale_lock_stops_a_build(checkout, monkeypatch):
    monkeypatch.setattr(building, "build", keep_out)
    checkout.edit("containers/sdk/container.yaml", "hipcc", "clang")

    with pytest.raises(LockError, match="stale"):
        command.build(["gfx1201"], [], **BUILD)


def test_what_is_there_is_reused_without_an_engine(said, entry):
    told = json.loads(said(command.build, ["gfx1201"], [], **BUILD | {"as_json": True}))
    text = said(command.build, ["gfx1201"], [], **BUILD)

    assert [(one["state"], one["recorded"]) for one in told] == [("reused", "not recorded")]
    assert told[0]["archive"]["sha256"] == entry.artifact.archive.sha256
    assert told[0]["folder"] == str(entry.folder)
    assert "reused" in text
    assert text.endswith(f"{entry.archive_path}\n")


def test_damage_is_not_reused(entry):
    entry.archive_path.write_bytes(b"damaged")

    with pytest.raises(BuildError, match="damaged since it was stored"):
        command.build(["gfx1201"], [], **BUILD)


def test_damaged_image_is_not_reused(entry):
    (path, *_) = (entry.folder / "image/blobs/sha256").iterdir()
    path.write_bytes(b"damaged")

    with pytest.raises(BuildError, match="damaged since it was stored") as caught:
        command.build(["gfx1201"], [], **BUILD)

    assert caught.value.hint == "invoke build --recipe tool --force"


def test_recorded_digests_are_compared(said, entry, kept, put):
    said(command.lock, [], check=False, record=True, as_json=False)
    (told,) = json.loads(said(command.build, ["gfx1201"], [], **BUILD | {"as_json": True}))
    assert told["recorded"] == "reproduced"

    put(kept, key=entry.artifact.key, content=b"other", files={"bin/x": b"2"}, with_image=True)
    with pytest.raises(ReproError, match=r"archive: bin/x: expected sha256 .*, got ") as caught:
        command.build(["gfx1201"], [], **BUILD)

    assert caught.value.exit_code == 6


def test_difference_is_printed_before_it_is_an_error(entry, monkeypatch, capsys):
    outcome = Outcome(entry, "built", "differs", "archive: bin/x", 1.0)
    monkeypatch.setattr(building, "build", lambda *_, **__: [outcome])

    with pytest.raises(ReproError):
        command.build(["gfx1201"], [], **BUILD | {"as_json": True})

    assert json.loads(capsys.readouterr().out)[0]["difference"] == "archive: bin/x"


# --set


@pytest.fixture
def with_vmm(checkout):
    """Let the small project's SDK have one option."""
    path = checkout.root / "containers/sdk/container.yaml"
    text = """options:
  vmm:
    summary: virtual memory
    values: ["on", "off"]
    rules: [{ every: vmm, value: "on" }]
    otherwise: "off"
"""
    path.write_text(path.read_text() + text)
    return checkout


@pytest.mark.usefixtures("with_vmm")
def test_plan_says_what_each_option_is_and_why(said):
    options = BUILD | {"dry_run": True}

    assert "options  vmm=on: every target has vmm\n" in said(
        command.build, ["gfx1201"], [], **options
    )
    text = said(command.build, ["gfx1201"], [], **options, settings=["vmm=off"])
    assert "options  vmm=off: asked for\n" in text
    assert "rocbake/tool:gfx1201_vmm-off" in text
    (told,) = json.loads(
        said(
            command.build,
            ["gfx1201"],
            [],
            **options | {"as_json": True},
            settings=["vmm=off"],
        )
    )
    assert (told["options"], told["overridden"]) == ({"vmm": "off"}, {"vmm": "off"})


def test_plan_of_a_recipe_without_options_says_nothing_of_them(said):
    assert "options" not in said(command.build, ["gfx1201"], [], **BUILD | {"dry_run": True})


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        (["vmm"], "expected NAME=VALUE"),
        (["vmm=on", "vmm=off"], "expected one value"),
        (["vmm=maybe"], "vmm: expected on or off, got 'maybe' for tool"),
        (["vm=on"], "no recipe has an option 'vm'; did you mean 'vmm'"),
    ],
)
@pytest.mark.usefixtures("with_vmm")
def test_settings_are_checked_before_any_work(monkeypatch, settings, reason):
    monkeypatch.setattr(building, "build", keep_out)
    monkeypatch.setattr(lock, "require_fresh", keep_out)

    for verb in (
        lambda: command.build(["gfx1201"], [], **BUILD, settings=settings),
        lambda: command.verify(["gfx1201"], [], as_json=0, offline=0, settings=settings),
        lambda: command.show_(["gfx1201"], "", as_json=0, build_log=0, settings=settings),
        lambda: command.export(
            ["gfx1201"], "", "to", image=False, bundled=False, settings=settings
        ),
    ):
        with pytest.raises(UsageError, match=reason):
            verb()


def test_setting_is_read_before_files_are(checkout):
    checkout.write("recipes/tool/recipe.yaml", "broken")

    with pytest.raises(UsageError, match="expected NAME=VALUE"):
        command.build(["gfx1201"], [], **BUILD, settings=["vmm"])


def test_artifact_of_a_setting_is_found_by_it(said, with_vmm, kept, put, tmp_path):
    ruled, other = with_vmm.plan(), with_vmm.plan(vmm="off")
    options = {"as_json": False, "build_log": False}
    put(kept, key=ruled.key, content=b"on")

    text = said(command.show_, ["gfx1201"], "", **options)
    assert "option vmm           on: every target has vmm\n" in text
    with pytest.raises(UsageError, match="no rocbake/tool:gfx1201_vmm-off of") as caught:
        command.show_(["gfx1201"], "", **options, settings=["vmm=off"])
    assert caught.value.hint == "invoke build --recipe tool --target gfx1201 --set vmm=off"

    put(kept, key=other.key, tag=other.tag, content=b"off", overridden={"vmm": "off"})
    text = said(command.show_, ["gfx1201"], "", **options, settings=["vmm=off"])
    assert "option vmm           off: asked for\n" in text
    said(
        command.export,
        ["gfx1201"],
        "",
        str(tmp_path),
        image=False,
        bundled=False,
        settings=["vmm=off"],
    )
    assert (tmp_path / "tool.tar.zst").read_bytes() == b"off"


# lock


def test_record_writes_and_tells(said, entry, checkout):
    told = json.loads(said(command.lock, [], check=False, record=True, as_json=True))

    assert told == {"tool": [f"gfx1201: {entry.artifact.archive.sha256}"]}
    recipe = checkout.load().recipes["tool"]
    assert lock.read_recipe(recipe).recorded["gfx1201"].key == entry.artifact.key
    text = said(command.lock, [], check=False, record=True, as_json=False)
    assert text == f"tool:\n  gfx1201: {entry.artifact.archive.sha256}\n"


def test_check_and_record_exclude_each_other():
    with pytest.raises(UsageError, match="exclude"):
        command.lock([], check=True, record=True, as_json=False)


def test_unknown_name_is_told_before_the_archive_is_asked(monkeypatch):
    monkeypatch.setattr(mirror, "load", Mirrors)

    with pytest.raises(UsageError, match=r"there is no container or recipe 'x'; there are base"):
        command.lock(["x"], check=False, record=False, as_json=False)


# fetch


def test_fetch_brings_every_source_of_the_locks(said, monkeypatch):
    asked = {}

    def bring(sources, **options):
        asked.update(options, labels=[source.label for source in sources])
        return {source.sha256: None for source in sources}

    monkeypatch.setattr(fetch, "fetch", bring)
    monkeypatch.setattr(mirror, "load", Mirrors)

    told = json.loads(said(command.fetch, [], offline=True, as_json=True))

    assert told["files"] == 6
    assert set(told) == {"files", "bytes", "cache"}
    assert asked["offline"] is True
    assert asked["snapshot"] == "20261030T080801Z"
    assert "https://example.invalid/data.tar" in asked["labels"]


# list, show, export


def test_inventory_is_told(said, entry):
    told = json.loads(said(command.list_, targets=False, as_json=True))
    text = said(command.list_, targets=False, as_json=False)

    assert list(told) == ["recipes", "containers", "artifacts"]
    assert told["recipes"]["tool"]["version"] == "1.10"
    assert sorted(told["containers"]) == ["base", "sdk", "small"]
    assert told["artifacts"][0]["key"] == entry.artifact.key
    for word in ("tool", "1.10", "base", "7.2.4", "rocbake/tool:gfx1201", "2026-11-01 00:00:00"):
        assert word in text


def test_targets_are_told(said):
    told = json.loads(said(command.list_, targets=True, as_json=True))
    text = said(command.list_, targets=True, as_json=False)

    assert "gfx1201" in [one["target"] for one in told]
    assert all(one["target"] in text for one in told)


def test_artifact_is_shown(said, entry):
    options = {"build_log": False}
    told = json.loads(said(command.show_, ["gfx1201"], "", as_json=True, **options))
    text = said(command.show_, ["gfx1201"], "tool", as_json=False, **options)

    assert told["artifact"]["key"] == entry.artifact.key
    assert told["manifest"]["files"][0]["path"] == "bin/x"
    assert told["fit"]["fits"]
    assert "on this machine" in text
    for word in (entry.artifact.key, entry.artifact.archive.sha256, "bin/x", str(entry.folder)):
        assert word in text


def test_log_of_the_build_is_shown(said, entry):
    assert said(command.show_, ["gfx1201"], "", as_json=False, build_log=True) == (
        "log of the build\n\n"
    )


@pytest.mark.parametrize(
    ("targets", "recipe", "kind", "reason"),
    [
        ([], "", TargetError, "no GPU target was named"),
        (["gfx1201", "gfx1100"], "", UsageError, "name one target set"),
        (["gfx1100"], "", UsageError, "the store has no rocbake/tool:gfx1100 of these locks"),
        (["gfx1201"], "none", UsageError, "there is no recipe 'none'"),
    ],
)
@pytest.mark.usefixtures("entry")
def test_one_artifact_must_be_named(targets, recipe, kind, reason):
    with pytest.raises(kind, match=reason):
        command.show_(targets, recipe, as_json=False, build_log=False)
    with pytest.raises(kind, match=reason):
        command.export(targets, recipe, "to", image=False, bundled=False)


def test_artifact_of_older_locks_is_not_shown(entry, checkout):
    checkout.edit("recipes/tool/src/main.hip", "main", "other")

    with pytest.raises(UsageError, match="of these locks") as caught:
        command.show_(["gfx1201"], "", as_json=False, build_log=False)

    assert caught.value.hint == "invoke build --recipe tool --target gfx1201"


def test_export_tells_what_it_wrote(said, entry, tmp_path):
    text = said(command.export, ["gfx1201"], "", str(tmp_path / "to"), image=False, bundled=False)

    assert text.splitlines() == [
        str(tmp_path / "to" / name)
        for name in ("tool.tar.zst", "tool.tar.zst.sha256", "tool.manifest.json")
    ]


def test_export_needs_a_folder(entry):
    with pytest.raises(UsageError, match="no folder was named"):
        command.export(["gfx1201"], "", "", image=False, bundled=False)


def test_report_that_cannot_be_written_is_told_before_anything_is_tried(tmp_path, monkeypatch):
    monkeypatch.setattr(gpu, "discover", lambda *_: pytest.fail("looked at the machine"))

    with pytest.raises(UsageError, match="--junit: there is no folder"):
        command.smoke(
            Asked(),
            dry_run=False,
            print_run=False,
            junit=str(tmp_path / "none" / "x.xml"),
            as_json=False,
        )


def test_lock_without_what_cannot_be_had_ends_with_the_command_to_go_on(said, monkeypatch):
    from rocbake import resolve  # noqa: PLC0415 - replaced for this test alone
    from rocbake.errors import FetchError  # noqa: PLC0415 - as above

    class Resolver:
        unreached = {"tool": [FetchError("x: host not found")]}  # noqa: RUF012 - never changed

        def __init__(self, *about, targets, **more):
            assert [str(one) for one in targets] == ["gfx1100,gfx1201"]

        def __enter__(self):
            return self

        def __exit__(self, *about):
            pass

        def lock(self, names, *, write):
            return [resolve.Change("tool", ["new"])]

    monkeypatch.setattr(resolve, "Resolver", Resolver)

    with pytest.raises(FetchError) as caught:
        said(command.lock, [], ["gfx1201,gfx1100"], check=False, record=False, as_json=False)

    assert str(caught.value).splitlines()[1:] == ["  tool: x: host not found"]
    assert caught.value.hint == (
        "invoke lock --name tool --target gfx1100,gfx1201  where they can be reached"
    )


def test_build_of_what_no_lock_names_stops_before_any_work(checkout, own_checkout, monkeypatch):
    from rocbake import build  # noqa: PLC0415 - what must not be reached

    monkeypatch.setattr(build, "build", None)
    checkout.lock(unrecorded=["https://example.invalid/data.tar"])

    with pytest.raises(LockError, match="nobody has recorded them"):
        command.build(["gfx1201"], [], dry_run=False, as_json=False, offline=False, force=False)
