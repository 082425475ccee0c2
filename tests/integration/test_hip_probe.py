"""The real thing: hip-probe on the HIP SDK, in this checkout, as the README's commands make it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rocbake import engine

pytestmark = pytest.mark.timeout(1800)


def build(here, *targets):
    options = [word for target in targets for word in ("--target", target)]
    done = here.invoke("build", "--recipe", "hip-probe", "--json", *options)
    return {one["tag"]: one for one in json.loads(done.stdout) if one["name"] == "hip-probe"}


def manifest(built):
    return json.loads((Path(built["folder"]) / "manifest.json").read_text())


def code_objects(built):
    return {
        name
        for file in manifest(built)["files"]
        for name, count in file["code_objects"].items()
        if count
    }


def test_gfx1201_is_what_the_lock_recorded(here):
    built = build(here, "gfx1201")["gfx1201"]

    assert built["recorded"] == "reproduced"
    assert code_objects(built) == {"gfx1201"}


def test_two_options_are_two_archives_and_one_list_is_one(here):
    built = build(here, "gfx1100", "gfx1201", "gfx1201,gfx1100")

    assert set(built) == {"gfx1100", "gfx1201", "gfx1100_gfx1201"}
    assert [code_objects(built[tag]) for tag in ("gfx1100", "gfx1201", "gfx1100_gfx1201")] == [
        {"gfx1100"},
        {"gfx1201"},
        {"gfx1100", "gfx1201"},
    ]
    assert manifest(built["gfx1100_gfx1201"])["targets"] == ["gfx1100", "gfx1201"]


def test_without_a_gpu_the_image_says_so(here):
    reference = build(here, "gfx1201")["gfx1201"]["image"]["reference"]

    ended = engine.run_container(reference, ["hip-probe"], timeout=120)

    assert ended.exit_code == 10
    told = json.loads(ended.stdout)
    assert (told["verdict"], told["error"]["reason"]) == ("no-gpu", "kfd-missing")
    assert told["compiled_for"] == ["gfx1201"]


def test_the_image_computes_on_the_host_and_never_calls_it_a_pass(here):
    reference = build(here, "gfx1201")["gfx1201"]["image"]["reference"]

    ended = engine.run_container(reference, ["hip-probe", "--host"], timeout=120)

    assert ended.exit_code == 0
    told = json.loads(ended.stdout)
    assert (told["verdict"], told["computed_on"]["kind"]) == ("host", "host")
    assert all(check["ok"] for check in told["checks"])


def test_the_probe_needs_no_user_of_the_image(here):
    reference = build(here, "gfx1201")["gfx1201"]["image"]["reference"]

    ended = engine.run_container(
        reference, ["hip-probe", "--list"], timeout=120, user="12345:12345"
    )

    assert ended.exit_code == 10


def test_the_archive_is_exported_with_its_checksum(here, tmp_path):
    built = build(here, "gfx1201")["gfx1201"]

    here.invoke("export", "--target", "gfx1201", "--recipe", "hip-probe", "--into", str(tmp_path))

    name = built["archive"]["file_name"]
    assert (tmp_path / f"{name}.sha256").read_text() == f"{built['archive']['sha256']}  {name}\n"
    assert (tmp_path / name).stat().st_size == built["archive"]["size"]
