import json
import os
from pathlib import Path

import pytest

from rocbake import lock, target
from rocbake.errors import TargetError
from rocbake.lock import Recorded

GOLDEN = Path(__file__).parent.parent / "data" / "plan" / "plan.json"
SDK = "containers/sdk/lock.json"
TOOL = "recipes/tool/lock.json"


def text(made):
    return json.dumps(made.model_dump(mode="json", by_alias=True), indent=2) + "\n"


def test_plan_is_the_recorded_one(checkout):
    assert text(checkout.plan("gfx1201")) == GOLDEN.read_text()


def test_same_inputs_give_the_same_plan(checkout, make_checkout, tmp_path, monkeypatch):
    first = checkout.plan()

    monkeypatch.setenv("TZ", "Asia/Tokyo")
    monkeypatch.setenv("HOME", "/nowhere")
    before = os.umask(0o002)
    try:
        other = make_checkout(tmp_path / "another place")
    finally:
        os.umask(before)
    for path in other.root.rglob("*"):
        os.utime(path, (1, 1), follow_symlinks=False)

    assert text(other.plan()) == text(first)
    assert str(tmp_path) not in text(first)


def test_group_and_other_rights_do_not_count(checkout):
    before = checkout.plan().key

    (checkout.root / "recipes/tool/build.sh").chmod(0o700)
    (checkout.root / "recipes/tool/src/main.hip").chmod(0o664)

    assert checkout.plan().key == before


def test_files_of_editors_do_not_count(checkout):
    before = checkout.plan().key

    checkout.write("recipes/tool/src/main.hip~", "")
    checkout.write("recipes/tool/.git/HEAD", "")
    checkout.write("containers/sdk/notes.txt", "")
    checkout.write("containers/shared/readme.md", "")

    assert checkout.plan().key == before


def test_words_about_a_product_do_not_count(checkout):
    before = checkout.plan().key

    checkout.edit("recipes/tool/recipe.yaml", "A tool", "Another tool")

    assert checkout.plan().key == before


def changed(name, old, new):
    return lambda checkout: checkout.edit(name, old, new)


KEYS = {
    "version": changed("recipes/tool/recipe.yaml", "version: 1.10", "version: 1.1"),
    "content": changed("recipes/tool/src/main.hip", "main", "other"),
    "new file": lambda checkout: checkout.write("recipes/tool/src/new.hip", ""),
    "executable": lambda checkout: (checkout.root / "recipes/tool/build.sh").chmod(0o644),
    "link": lambda checkout: (checkout.root / "recipes/tool/src/link").symlink_to("main.hip"),
    "recipe Dockerfile": changed("recipes/tool/Dockerfile", "runtime", "runtime AS one"),
    "shared Dockerfile": changed("recipes/Dockerfile", "sdk", "sdk AS one"),
    "layer Dockerfile": changed("containers/sdk/Dockerfile", "base", "base AS one"),
    "shared script": changed("containers/shared/install.sh", "sh", "dash"),
    "shared script's mode": lambda checkout: (checkout.root / "containers/shared/install.sh").chmod(
        0o644
    ),
    "new shared script": lambda checkout: checkout.write("containers/shared/new.sh", ""),
    "package": changed(SDK, '"version": "4.0"', '"version": "4.1"'),
    "snapshot": changed(SDK, "20261030T080801Z", "20261031T080801Z"),
    "epoch": changed(SDK, "1793347681", "1793347682"),
    "release": changed(SDK, "0" * 64, "1" * 64),
    "source": changed(TOOL, '"size": ', '"size": 1'),
    "name": lambda checkout: (checkout.root / "recipes/tool").rename(
        checkout.root / "recipes/tool2"
    ),
}


@pytest.mark.parametrize("change", KEYS.values(), ids=KEYS)
def test_every_input_counts(checkout, change):
    before = checkout.plan().key

    change(checkout)
    (recipe,) = checkout.load().recipes

    assert checkout.plan(recipe=recipe).key != before


def test_everything_in_a_plan_counts(checkout):
    made = checkout.plan()
    layer = made.layers[-1]

    assert len(made.key) == len(layer.key) == 64
    keyless = made.model_copy(update={"key": ""})
    assert made.key == lock.digest.sha256_json(keyless.model_dump(mode="json", by_alias=True))


def test_targets_count_and_their_order_does_not(checkout):
    one, both = checkout.plan("gfx1201"), checkout.plan("gfx1201,gfx1100")

    assert both.targets == ("gfx1100", "gfx1201")
    assert both.key == checkout.plan("gfx1100", "gfx1201", "gfx1201").key
    assert both.key != one.key
    assert both.stem == "tool-1.10-rocm7.2.4-gfx1100_gfx1201-x86_64-linux-gnu"
    assert both.reference == f"rocbake/tool:{both.tag}"
    assert len({one.tag, both.tag, checkout.plan("gfx1100").tag}) == 3


def test_layers_serve_every_target_set(checkout):
    one, other = checkout.plan("gfx1201"), checkout.plan("gfx1100")

    assert one.layers == other.layers
    assert all(layer.targets == () for layer in one.layers)


def test_layer_counts_for_those_above_alone(checkout):
    before = {layer.name: layer.key for layer in checkout.plan().layers}

    checkout.write("containers/small/Dockerfile", "FROM base\n# changed\n")
    after = {layer.name: layer.key for layer in checkout.plan().layers}

    assert [name for name in before if before[name] != after[name]] == ["small"]

    checkout.write("containers/base/Dockerfile", "FROM scratch\n# changed\n")
    last = {layer.name: layer.key for layer in checkout.plan().layers}

    assert all(last[name] != after[name] for name in last)


def test_what_a_lock_records_does_not_count(checkout):
    before = checkout.plan().key
    container = checkout.load().containers["base"]
    recorded = {"x": Recorded(key="0" * 64, config="c", layers=())}
    one = lock.read_container(container).model_copy(
        update={"made_with": {"apt": "99"}, "recorded": recorded}
    )

    lock.write(one, container.folder)

    assert checkout.plan().key == before


def test_layers_come_from_below(checkout):
    made = checkout.plan()

    assert [layer.name for layer in made.chain("sdk")] == ["base", "sdk"]
    assert [layer.name for layer in made.layers] == ["base", "small", "sdk"]
    assert [layer.reference for layer in made.layers] == [
        "rocbake/base:20261030T080801Z",
        "rocbake/small:7.2.4",
        "rocbake/sdk:7.2.4",
    ]
    assert made.epoch == 1793347681
    assert made.snapshot == "20261030T080801Z"


def test_each_input_is_fetched_once(checkout):
    made = checkout.plan()
    twice = made.model_copy(update={"sources": made.sources * 2})

    assert len(made.inputs) == 6
    assert twice.inputs == made.inputs


def test_target_that_the_rocm_does_not_know_is_refused(checkout):
    for name in ("sdk", "small"):
        checkout.edit(f"containers/{name}/container.yaml", "7.2.4", "6.2")

    with pytest.raises(TargetError, match="gfx1201"):
        checkout.plan("gfx1201")

    assert checkout.plan("gfx1100").rocm == "6.2"


def test_recipe_without_rocm_has_none_in_its_name(checkout):
    checkout.edit("recipes/tool/recipe.yaml", "sdk: sdk", "sdk: base")
    checkout.edit("recipes/tool/recipe.yaml", "runtime: small", "runtime: base")

    made = checkout.plan("gfx1201")

    assert made.stem == "tool-1.10-gfx1201-x86_64-linux-gnu"
    assert [layer.name for layer in made.layers] == ["base"]
    assert made.targets == target.parse_target_set(["gfx1201"]).names
