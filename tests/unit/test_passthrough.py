import dataclasses
import json
import shlex
import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rocbake import passthrough
from rocbake.errors import EngineError, FitError, NoGpuError, UsageError
from rocbake.gpu import Absence, Card, DeviceNode, Gpus, NodeKind, Stranger
from rocbake.passthrough import COSTS, EngineFacts, RunPlan, Wish

RENDER_GROUP = 992
DOCKER = EngineFacts("docker", "26.1.5", "unix:///var/run/docker.sock")
PODMAN = EngineFacts("podman", "5.4.2", "unix:///run/podman/podman.sock", runtime="crun")
ROOTLESS_PODMAN = dataclasses.replace(PODMAN, rootless=True)
ROOTLESS_DOCKER = dataclasses.replace(DOCKER, rootless=True)
REMAPPED_DOCKER = dataclasses.replace(DOCKER, remapped=True)


def node(path, mode=0o660, *, uid=0, gid=RENDER_GROUP):
    return DeviceNode(path, NodeKind.CHARACTER, mode, uid, gid, 226, 128)


def card(index, target, *, is_apu=False, minor=None, **more):
    facts = {
        "kfd_node": index + 1,
        "product": f"Radeon of {target}",
        "memory": 16 << 30,
        "compute_units": 32,
        "render": node(f"/dev/dri/renderD{128 + index if minor is None else minor}"),
        "pci": f"0000:0{index + 3}:00.0",
        "by_path": f"/dev/dri/by-path/pci-0000:0{index + 3}:00.0-render",
    }
    return Card(index=index, target=target, is_apu=is_apu, **(facts | more))


# The graphics processor in the CPU comes first, as where its render node has the lower number.
APU = card(0, "gfx1103", is_apu=True)
RX_9070 = card(1, "gfx1201", uuid="GPU-1d5e2c6b0f3a9c47")


def gpus(*cards, kfd=None, **more):
    return Gpus(kfd or node("/dev/kfd"), cards, **more)


def with_nodes(mode=0o660, **owner):
    """Return a machine with one card, both of whose nodes have a mode and owner."""
    render = node("/dev/dri/renderD128", mode, **owner)
    return gpus(card(0, "gfx1201", render=render), kfd=node("/dev/kfd", mode, **owner))


def make(found=None, engine=DOCKER, *, targets=("gfx1201",), user="1000", shell=None, **wish):
    return passthrough.make(
        found or gpus(APU, RX_9070),
        engine,
        image="rocbake/hip-probe:1",
        user=user,
        targets=targets,
        wish=Wish(**wish),
        environment=shell or {},
    )


def hidden(plan):
    return {one.card.target: one.why for one in plan.hidden}


def notes(plan):
    return "\n".join(plan.notes)


def test_a_card_beside_an_igpu_is_passed_and_nothing_else():
    plan = make()

    assert plan.devices == ("/dev/kfd", "/dev/dri/renderD129")
    assert plan.card == RX_9070
    assert plan.groups == (RENDER_GROUP,)
    assert hidden(plan) == {"gfx1103": "the artifact has no code for gfx1103"}
    assert plan.user == "1000"
    assert plan.environment == {}
    assert not plan.keep_groups
    assert plan.user_namespace is None
    assert plan.relaxed == plan.notes == ()


@pytest.mark.parametrize(
    ("cards", "targets", "chosen", "why"),
    [
        pytest.param(
            [APU, RX_9070], ["gfx1103"], 0, "the artifact has no code for gfx1201", id="apu"
        ),
        pytest.param([APU, RX_9070], ["gfx1103", "gfx1201"], 1, "not chosen", id="discrete first"),
        pytest.param([APU, RX_9070], [], 1, "not chosen", id="image that is not ours"),
        pytest.param(
            [RX_9070, card(0, "gfx1201")], ["gfx1201"], 0, "not chosen", id="lowest number first"
        ),
        pytest.param(
            [APU, RX_9070],
            ["gfx11-generic"],
            0,
            "the artifact has no code for gfx1201",
            id="generic target",
        ),
        pytest.param(
            [
                card(0, "gfx1201", render=DeviceNode("/dev/dri/renderD128", NodeKind.MISSING)),
                RX_9070,
            ],
            ["gfx1201"],
            1,
            "/dev/dri/renderD128 is no device node: missing",
            id="without a node",
        ),
    ],
)
def test_default_is_the_first_card_that_the_artifact_has_code_for(cards, targets, chosen, why):
    plan = make(gpus(*cards), targets=targets)

    assert plan.card.index == chosen
    assert [one.why for one in plan.hidden] == [why]


@pytest.mark.parametrize(
    ("targets", "target", "has"),
    [
        (("gfx1201",), "gfx1201", True),
        (("gfx1200",), "gfx1201", False),
        (("gfx12-generic",), "gfx1200", True),
        (("gfx11-generic",), "gfx1201", False),
        (("gfx9-generic",), "gfx90a", False),
        (("gfx90a:xnack+",), "gfx90a", True),
        (("gfx9-4-generic:xnack-",), "gfx942", True),
        (("gfx1100", "gfx1201"), "gfx1201", True),
        (("gfx803",), "gfx803", True),
        (("gfx120",), "gfx1201", False),
        ((), "gfx1201", False),
    ],
)
def test_code_fits_its_own_processor_and_members_of_a_generic_one(targets, target, has):
    assert passthrough.has_code(targets, target) is has


@pytest.mark.parametrize(
    "wish",
    [
        {"device_index": 0},
        {"render_node": "/dev/dri/renderD128"},
        {"render_node": "renderD128"},
        {"render_node": "/dev/dri/by-path/pci-0000:03:00.0-render"},
        {"render_node": "pci-0000:03:00.0-render"},
        {"gpu_target": "gfx1103"},
        {"device_index": 0, "render_node": "renderD128", "gpu_target": "gfx1103"},
    ],
)
def test_a_card_can_be_chosen(wish):
    plan = make(targets=("gfx1103", "gfx1201"), **wish)

    assert plan.card == APU
    assert hidden(plan) == {"gfx1201": "not chosen"}


def test_a_target_with_features_chooses_its_processor():
    plan = make(gpus(card(0, "gfx90a")), targets=("gfx90a",), gpu_target="gfx90a:xnack+")

    assert plan.card.target == "gfx90a"


@pytest.mark.parametrize(
    ("wish", "said"),
    [
        ({"device_index": 2}, "--device-index 2: no card is that"),
        ({"render_node": "/dev/dri/card0"}, "--render-node /dev/dri/card0: no card is that"),
        ({"render_node": ""}, "--render-node : no card is that"),
        ({"gpu_target": "gfx1100"}, "--gpu-target gfx1100: no card is that"),
    ],
)
def test_a_choice_that_meets_no_card_names_what_there_is(wish, said):
    with pytest.raises(UsageError) as caught:
        make(**wish)

    assert str(caught.value) == (
        f"{said}; there is card 0 (gfx1103, Radeon of gfx1103, /dev/dri/renderD128), "
        "card 1 (gfx1201, Radeon of gfx1201, /dev/dri/renderD129)"
    )


def test_a_node_of_a_device_that_cannot_compute_is_told_with_the_reason():
    old = Stranger(
        "0000:0a:00.0",
        "Radeon HD 7970",
        "amdgpu",
        node("/dev/dri/renderD130"),
        "KFD does not know it",
    )

    with pytest.raises(UsageError) as caught:
        make(gpus(RX_9070, strangers=(old,)), render_node="renderD130")

    said = "Radeon HD 7970 at 0000:0a:00.0 cannot compute: KFD does not know it"
    assert said in str(caught.value)


def test_choices_that_disagree_are_refused():
    with pytest.raises(UsageError) as caught:
        make(device_index=0, gpu_target="gfx1201")

    assert str(caught.value).startswith(
        "these choices exclude each other: --device-index 0 is card 0"
    )
    assert "and --gpu-target gfx1201 is card 1" in str(caught.value)


def test_two_cards_of_a_target_are_told_apart_by_another_choice():
    twin = card(2, "gfx1201")

    assert make(gpus(RX_9070, twin), gpu_target="gfx1201", device_index=2).card == twin


def test_a_chosen_card_without_a_node_is_no_gpu():
    lost = card(0, "gfx1201", render=DeviceNode("/dev/dri/renderD128", NodeKind.FOLDER))

    with pytest.raises(NoGpuError, match="/dev/dri/renderD128 is no device node: folder"):
        make(gpus(lost, RX_9070), device_index=0)


def test_nothing_to_compute_on_is_said_as_it_was_found():
    absence = Absence("no-driver", "no driver is loaded", "modprobe amdgpu")

    with pytest.raises(NoGpuError) as caught:
        make(gpus(absence=absence), dataclasses.replace(DOCKER, is_local=False))

    assert (str(caught.value), caught.value.hint) == ("no driver is loaded", "modprobe amdgpu")


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        (
            {"is_local": False, "address": "ssh://far"},
            "the engine at ssh://far is not on this machine",
        ),
        (
            {"is_local": False, "address": "tcp://10.0.0.2:2376"},
            "the engine at tcp://10.0.0.2:2376",
        ),
        ({"is_desktop": True}, "Docker Desktop runs containers in a virtual machine"),
    ],
)
def test_an_engine_that_has_other_devices_is_refused(facts, said):
    with pytest.raises(EngineError) as caught:
        make(engine=dataclasses.replace(DOCKER, **facts))

    assert said in str(caught.value)
    assert "docker context use default" in caught.value.hint


@pytest.mark.parametrize(
    ("cards", "targets", "hint"),
    [
        pytest.param([RX_9070], ["gfx1100"], "invoke build --target gfx1201", id="another major"),
        pytest.param(
            [APU],
            ["gfx1100", "gfx1201"],
            "invoke build --target gfx1103, or, without AMD's support, --override 11.0.0",
            id="the same instructions",
        ),
        pytest.param(
            [card(0, "gfx942")], ["gfx906:xnack-"], "invoke build --target gfx942", id="same major"
        ),
        pytest.param(
            [card(0, "gfx1030")], ["gfx1010"], "invoke build --target gfx1030", id="other minor"
        ),
        pytest.param(
            [card(0, "gfx908")], ["gfx900"], "invoke build --target gfx908", id="no generic"
        ),
        pytest.param([card(0, "gfx803")], ["gfx900"], None, id="card that nothing is built for"),
        pytest.param(
            [APU, RX_9070], ["gfx906"], "invoke build --target gfx1201", id="discrete card first"
        ),
        pytest.param(
            [RX_9070],
            ["gfx11-generic"],
            "invoke build --target gfx1201",
            id="generic code stands in for nothing",
        ),
    ],
)
def test_a_misfit_names_both_sides_and_what_would_fit(cards, targets, hint):
    with pytest.raises(FitError) as caught:
        make(gpus(*cards), targets=targets)

    assert caught.value.hint == hint
    assert f"the artifact has code for {', '.join(targets)}, and there is card" in str(caught.value)
    assert all(f"({one.target}, {one.product}" in str(caught.value) for one in cards)


def test_a_misfit_of_the_chosen_card_is_not_mended_by_another_card():
    with pytest.raises(FitError) as caught:
        make(device_index=0)

    assert "gfx1103" in str(caught.value)
    assert "card 1" not in str(caught.value)
    assert caught.value.hint == "invoke build --target gfx1103"


@pytest.mark.parametrize(
    ("target", "targets", "noted"),
    [
        ("gfx90a", ["gfx90a:xnack+"], "gfx90a:xnack+"),
        ("gfx90a", ["gfx90a:xnack+", "gfx90a:xnack-"], "gfx90a:xnack+, gfx90a:xnack-"),
        ("gfx90a", ["gfx90a", "gfx1201:xnack+"], None),
        ("gfx942", ["gfx942:xnack+", "gfx9-4-generic"], None),
        ("gfx942", ["gfx9-4-generic:xnack+"], "gfx9-4-generic:xnack+"),
    ],
)
def test_features_fit_with_a_note(target, targets, noted):
    plan = make(gpus(card(0, target)), targets=targets)

    said = f"{noted} runs only where the driver has set these features so: not seen here"
    assert plan.notes == ((said,) if noted else ())


def test_unknown_code_is_not_compared_and_noted():
    assert "what the image has code for is not known" in notes(make(targets=()))


@pytest.mark.parametrize(
    ("mode", "gid", "groups"),
    [
        (0o660, 992, (992,)),
        (0o666, 992, ()),
        (0o662, 992, (992,)),
        (0o664, 992, (992,)),
        (0o060, 44, (44,)),
    ],
)
def test_a_group_is_added_where_not_everybody_may(mode, gid, groups):
    assert make(with_nodes(mode, gid=gid)).groups == groups


def test_groups_of_both_nodes_are_added_once_and_in_order():
    render = node("/dev/dri/renderD128", gid=105)

    assert make(gpus(card(0, "gfx1201", render=render))).groups == (105, 992)
    assert make(with_nodes()).groups == (992,)
    mixed = gpus(card(0, "gfx1201", render=render), kfd=node("/dev/kfd", 0o666))
    assert make(mixed).groups == (105,)


@pytest.mark.parametrize(
    ("mode", "user", "uid"),
    [
        pytest.param(0o600, "1000", 0, id="owner only"),
        pytest.param(0o640, "1000", 0, id="group may read"),
        pytest.param(0o620, "1000", 0, id="group may write"),
        pytest.param(0o600, "rocbake", 0, id="user of unknown number"),
        pytest.param(0o600, "", 7, id="root owns it not"),
        pytest.param(0o060, "1000", 1000, id="owner may less than the group"),
    ],
)
def test_a_node_that_no_group_opens_is_no_gpu(mode, user, uid):
    with pytest.raises(NoGpuError) as caught:
        make(with_nodes(mode, uid=uid), user=user)

    assert f"/dev/kfd is {uid}:992 {mode:04o}" in str(caught.value)
    assert 'KERNEL=="kfd", GROUP="render", MODE="0660"' in caught.value.hint


def test_the_rule_for_a_render_node_is_for_render_nodes():
    render = node("/dev/dri/renderD128", 0o600)

    with pytest.raises(NoGpuError) as caught:
        make(gpus(card(0, "gfx1201", render=render)))

    assert 'KERNEL=="renderD*"' in caught.value.hint
    assert "kfd" not in caught.value.hint


def test_the_group_of_root_is_added_and_noted():
    render = node("/dev/dri/renderD128")

    plan = make(gpus(card(0, "gfx1201", render=render), kfd=node("/dev/kfd", gid=0)))

    assert plan.groups == (0, 992)
    assert "/dev/kfd belongs to group 0, root's own" in notes(plan)
    assert "renderD" not in notes(plan)


@pytest.mark.parametrize(
    ("user", "uid", "mode", "groups"),
    [
        ("", 0, 0o660, (992,)),
        ("root", 0, 0o660, (992,)),
        ("0:0", 0, 0o660, (992,)),
        ("1000", 1000, 0o660, (992,)),
        ("1000", 1000, 0o600, ()),
        ("root", 0, 0o600, ()),
    ],
)
def test_an_owner_proves_nothing_and_gets_the_groups_all_the_same(user, uid, mode, groups):
    plan = make(with_nodes(mode, uid=uid), user=user)

    assert plan.groups == groups
    assert f"the image's user, {user or 'root'}, owns /dev/kfd and" in notes(plan)


@pytest.mark.parametrize(("user", "uid"), [("1000", 0), ("rocbake", 0), ("", 7), ("10000", 1000)])
def test_a_user_who_owns_no_node_is_not_noted(user, uid):
    assert make(with_nodes(uid=uid), user=user).notes == ()


@pytest.mark.parametrize(
    ("user", "namespace"),
    [
        ("1000", "keep-id:uid=1000,gid=1000"),
        ("1000:50", "keep-id:uid=1000,gid=50"),
        ("1000:users", "keep-id:uid=1000,gid=1000"),
        ("rocbake", None),
        ("", None),
        ("0", None),
    ],
)
def test_rootless_podman_keeps_the_caller_s_groups(user, namespace):
    plan = make(engine=ROOTLESS_PODMAN, user=user)

    assert plan.keep_groups
    assert plan.groups == ()
    assert plan.user_namespace == namespace
    assert plan.devices == ("/dev/kfd", "/dev/dri/renderD129")
    assert "992 must be among them: id -G" in notes(plan)
    assert "as su and gosu do" in notes(plan)
    assert ("may copy the image" in notes(plan)) is (namespace is not None)
    assert "owns" not in notes(plan)


@pytest.mark.parametrize(
    ("version", "maps"),
    [("4.2.1", False), ("4.3.0", True), ("4.10.0-rc1", True), ("10.0", True), ("3.4.4", False)],
)
def test_a_podman_too_old_to_map_its_user_is_not_asked_to(version, maps):
    plan = make(engine=dataclasses.replace(ROOTLESS_PODMAN, version=version))

    assert (plan.user_namespace is not None) is maps
    assert plan.keep_groups


def test_rootless_podman_needs_crun():
    with pytest.raises(EngineError) as caught:
        make(engine=dataclasses.replace(ROOTLESS_PODMAN, runtime="runc"))

    assert "its runtime is runc" in str(caught.value)
    assert 'runtime = "crun"' in caught.value.hint
    assert "containers.conf" in caught.value.hint


def test_crun_may_be_named_by_its_path():
    assert make(engine=dataclasses.replace(ROOTLESS_PODMAN, runtime="/usr/bin/crun")).keep_groups


def test_a_node_for_its_owner_only_is_closed_to_rootless_podman():
    with pytest.raises(NoGpuError, match="/dev/kfd is 1000:992 0600"):
        make(with_nodes(0o600, uid=1000), ROOTLESS_PODMAN)


@pytest.mark.parametrize("runtime", ["runc", "crun"])
@pytest.mark.parametrize("engine", [ROOTLESS_PODMAN, ROOTLESS_DOCKER, REMAPPED_DOCKER])
def test_nodes_that_everybody_may_open_need_no_group(engine, runtime):
    plan = make(with_nodes(0o666), dataclasses.replace(engine, runtime=runtime))

    assert (plan.groups, plan.keep_groups, plan.user_namespace) == ((), False, None)
    assert dict(passthrough.describe(plan))["groups"] == "none is needed"


@pytest.mark.parametrize(
    ("engine", "said", "choices"),
    [
        (ROOTLESS_DOCKER, "Docker without root", ["Docker with root", "Podman with crun"]),
        (REMAPPED_DOCKER, "Docker with userns-remap", ["no userns-remap"]),
    ],
)
def test_engines_that_lose_groups_cannot_pass_closed_nodes(engine, said, choices):
    with pytest.raises(EngineError) as caught:
        make(with_nodes(), engine)

    assert str(caught.value) == (
        f"{said} gives a container none of the host's groups, and /dev/kfd is 0:992 0660 and "
        "/dev/dri/renderD128 is 0:992 0660"
    )
    rules = ['KERNEL=="kfd", MODE="0666"', 'KERNEL=="renderD*", MODE="0666"']
    assert all(one in caught.value.hint for one in [*rules, *choices])


def test_rootful_podman_is_given_numbers_like_docker():
    plan = make(engine=dataclasses.replace(PODMAN, runtime="runc"))

    assert (plan.groups, plan.keep_groups, plan.user_namespace) == ((992,), False, None)


@pytest.mark.parametrize("engine", [DOCKER, PODMAN, ROOTLESS_PODMAN])
def test_the_only_render_node_inside_is_number_0_with_every_engine(engine):
    plan = make(engine=engine)

    assert "ROCR_VISIBLE_DEVICES" not in plan.environment
    assert dict(passthrough.describe(plan))["visible as"].startswith("number 0, the only one")


@pytest.mark.parametrize(
    ("chosen", "visible"),
    [
        (RX_9070, "GPU-1d5e2c6b0f3a9c47"),
        (card(1, "gfx1201"), "1"),
        (card(1, "gfx1201", uuid="GPU-1d5e2c6b0f3a9c47", partition=0), "1"),
    ],
)
def test_where_all_nodes_are_inside_the_others_are_hidden_by_name(chosen, visible):
    plan = make(gpus(APU, chosen), relax=("privileged",))

    assert plan.environment == {"ROCR_VISIBLE_DEVICES": visible}
    assert "hides the others" in dict(passthrough.describe(plan))["visible as"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "gfx1100",
        "11.0",
        "11.0.0.0",
        "11.0.0 ",
        "11.0.0\n",
        "-1.0.0",
        "11.0.x",
        "\u0661\u0661.0.0",
        "111.0.0",
    ],
)
def test_an_override_is_three_numbers(text):
    with pytest.raises(UsageError, match=r"--override: expected three numbers such as 11\.0\.0"):
        make(override=text)


def test_an_override_that_is_no_target_is_refused():
    with pytest.raises(
        UsageError, match=r"--override: 11\.0\.9 would be gfx1109, which is no target"
    ):
        make(override="11.0.9")


@pytest.mark.parametrize(
    ("target", "targets", "override", "own"),
    [
        ("gfx1201", ["gfx1201"], "11.0.0", "12.0.1"),
        ("gfx1201", ["gfx1100"], "11.0.0", "12.0.1"),
        ("gfx1151", ["gfx1151"], "12.0.1", "11.5.1"),
        ("gfx1100", ["gfx1030"], "10.3.0", "11.0.0"),
        ("gfx90a", [], "10.3.0", "9.0.10"),
    ],
)
def test_an_override_across_major_versions_is_refused_naming_both(target, targets, override, own):
    with pytest.raises(UsageError) as caught:
        make(gpus(card(0, target)), targets=targets, override=override)

    assert f"HSA_OVERRIDE_GFX_VERSION {override} makes a runtime take {target}" in str(caught.value)
    assert f"another major version than its own {own}" in str(caught.value)


def test_an_override_left_over_from_another_card_does_not_change_the_choice():
    with pytest.raises(UsageError, match="take gfx1201 for gfx1100"):
        make(targets=("gfx1201", "gfx1100"), override="11.0.0")


def test_an_override_within_the_major_version_is_passed_with_a_note():
    plan = make(targets=("gfx1100",), override="11.0.0")

    assert plan.card == APU
    assert plan.environment == {"HSA_OVERRIDE_GFX_VERSION": "11.0.0"}
    assert passthrough.seen_as(plan) == "gfx1100"
    assert "take gfx1103 for gfx1100: AMD does not support that" in notes(plan)


@pytest.mark.parametrize(
    ("targets", "override", "noted"),
    [
        (["gfx1103", "gfx1100"], "11.0.0", "which needs none: the artifact has code for it"),
        (["gfx1103"], "11.0.3", "is gfx1103 itself: it changes nothing"),
        (["gfx11-generic"], "11.0.0", "which needs none"),
    ],
)
def test_an_override_that_is_not_needed_is_noted(targets, override, noted):
    plan = make(gpus(APU), targets=targets, override=override)

    assert plan.environment["HSA_OVERRIDE_GFX_VERSION"] == override
    assert noted in notes(plan)


@pytest.mark.parametrize(
    ("targets", "hint"),
    [
        (["gfx1103"], "leave out --override"),
        (["gfx1102"], "invoke build --target gfx1103, and leave out --override"),
    ],
)
def test_an_override_needs_code_for_what_it_makes_of_the_card(targets, hint):
    with pytest.raises(FitError) as caught:
        make(gpus(APU), targets=targets, override="11.0.0")

    assert "take gfx1103 for gfx1100, and the artifact has code for" in str(caught.value)
    assert caught.value.hint == hint


def test_features_are_noted_for_what_an_override_makes_of_the_card():
    plan = make(gpus(card(0, "gfx909", is_apu=True)), targets=("gfx900:xnack-",), override="9.0.0")

    assert "gfx900:xnack- runs only where" in notes(plan)


def test_a_card_is_seen_as_itself_without_an_override():
    assert passthrough.seen_as(make()) == "gfx1201"


def test_nothing_of_the_shell_is_passed_on_and_what_leads_astray_is_noted():
    shell = {
        "HSA_OVERRIDE_GFX_VERSION": "10.3.0",
        "HSA_ENABLE_SDMA": "",
        "HIP_VISIBLE_DEVICES": "1",
        "LD_LIBRARY_PATH": "/opt/rocm/lib:" + "x" * 100,
        "ROCM_PATH": "/opt/rocm\n",
        "PATH": "/usr/bin",
        "XHSA_THING": "1",
    }

    plan = make(shell=shell)

    assert plan.environment == {}
    assert plan.notes == (
        "HIP_VISIBLE_DEVICES is '1' in this shell; it is not passed on",
        "HSA_ENABLE_SDMA is '' in this shell; it is not passed on",
        "HSA_OVERRIDE_GFX_VERSION is '10.3.0' in this shell; it is not passed on",
        f"LD_LIBRARY_PATH is '/opt/rocm/lib:{'x' * 46}'... in this shell; it is not passed on",
        r"ROCM_PATH is '/opt/rocm\n' in this shell; it is not passed on",
    )


@pytest.mark.parametrize(
    "name",
    ["ROCR_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "HIP_PATH", "ROCM_PATH"],
)
def test_every_left_over_variable_is_noted(name):
    assert f"{name} is '0' in this shell" in notes(make(shell={name: "0"}))


@pytest.mark.parametrize(
    ("name", "option"),
    [
        ("privileged", "--privileged"),
        ("seccomp", "--security-opt=seccomp=unconfined"),
        ("ipc", "--ipc=host"),
        ("network", "--network=host"),
    ],
)
def test_a_protection_is_given_up_by_name_alone_and_its_cost_is_told(name, option):
    plan = make(relax=(name,))
    line = passthrough.command_line(plan, "docker", [])

    assert plan.relaxed == (name,)
    assert f"{name}: {COSTS[name]}" in plan.notes
    assert option in shlex.split(line.replace("\\\n", ""))
    assert option not in passthrough.command_line(make(), "docker", [])
    assert passthrough.to_json(plan)["relaxed"] == {name: COSTS[name]}


def test_protections_given_up_are_listed_once_in_one_order():
    assert make(relax=("network", "ipc", "network")).relaxed == ("ipc", "network")


def test_limits_of_the_wish_are_the_plan_s():
    plan = make(memory=3 << 30, shm=5 << 20, seconds=7.5)

    assert (plan.memory, plan.shm, plan.seconds) == (3 << 30, 5 << 20, 7.5)


def test_docker_s_line_is_this():
    line = passthrough.command_line(make(), "docker", ["hip-probe", "--list"])

    assert line == (
        "docker run --rm --init --read-only \\\n"
        "    --device=/dev/kfd \\\n"
        "    --device=/dev/dri/renderD129 \\\n"
        "    --group-add=992 \\\n"
        "    --tmpfs=/tmp:exec,mode=1777,size=1g \\\n"
        "    --cap-drop=ALL \\\n"
        "    --security-opt=no-new-privileges \\\n"
        "    --network=none \\\n"
        "    --ipc=private \\\n"
        "    --shm-size=1g \\\n"
        "    --memory=8g \\\n"
        "    --memory-swap=8g \\\n"
        "    --pids-limit=4096 \\\n"
        "    rocbake/hip-probe:1 hip-probe --list"
    )


def test_rootless_podman_s_line_keeps_groups_and_gives_no_number():
    line = passthrough.command_line(make(engine=ROOTLESS_PODMAN), "podman", [])

    words = shlex.split(line.replace("\\\n", ""))
    assert words[:2] == ["podman", "run"]
    assert [word for word in words if "group-add" in word] == ["--group-add=keep-groups"]
    assert "--userns=keep-id:uid=1000,gid=1000" in words
    assert "--http-proxy=false" in words


def test_docker_s_line_for_a_plan_of_rootless_podman_gives_numbers():
    line = passthrough.command_line(make(engine=ROOTLESS_PODMAN), "docker", [])

    assert "--group-add=992 " in line
    assert "keep-" not in line
    assert "http-proxy" not in line


def test_the_host_s_shared_memory_is_not_resized():
    line = passthrough.command_line(make(relax=("ipc",)), "podman", [])

    assert "--shm-size" not in line


WORDS = st.text(st.characters(codec="utf-8", exclude_characters="\0"))
NAMES = st.text("ABC_", min_size=1, max_size=6)
# An image's name cannot begin with what an option begins with.
IMAGES = WORDS.map(lambda word: f"i{word}")
NODES = st.builds(
    node,
    WORDS.map(lambda word: f"/dev/{word}"),
    st.sampled_from([0o600, 0o660, 0o666]),
    gid=st.integers(0, 2**32 - 1),
)
PLANS = st.builds(
    RunPlan,
    image=IMAGES,
    user=WORDS,
    card=st.none(),
    nodes=st.lists(NODES, max_size=3).map(tuple),
    groups=st.lists(st.integers(0, 2**32 - 1), max_size=3, unique=True).map(tuple),
    keep_groups=st.booleans(),
    user_namespace=st.none() | WORDS,
    environment=st.dictionaries(NAMES, WORDS, max_size=3),
    relaxed=st.lists(st.sampled_from(list(COSTS)), unique=True).map(tuple),
    memory=st.integers(1, 2**45),
    shm=st.integers(1, 2**45),
    tmpfs=st.dictionaries(WORDS.map(lambda word: f"/{word}"), NAMES, max_size=2),
)
UNITS = {"g": 1 << 30, "m": 1 << 20}


def read_back(line):
    """Return what a shell makes of a line: the program, and its arguments."""
    script = 'docker() { printf "%s\\0" docker "$@"; }; podman() { printf "%s\\0" podman "$@"; }\n'
    ran = subprocess.run(
        ["bash", "--norc", "-eu"],
        input=(script + line).encode(),
        capture_output=True,
        check=True,
        env={"LC_ALL": "C.UTF-8"},
    )
    return ran.stdout.decode().split("\0")[:-1]


def bytes_of(text):
    return int(text[:-1]) * UNITS[text[-1]] if text[-1] in UNITS else int(text)


@settings(max_examples=40, deadline=None)
@given(
    plan=PLANS, program=st.sampled_from(["docker", "podman"]), command=st.lists(WORDS, max_size=3)
)
def test_a_shell_reads_the_plan_back_from_its_line(plan, program, command):
    line = passthrough.command_line(plan, program, command)

    words = read_back(line)
    end = words.index(plan.image)
    options = words[2:end]
    values = {
        name: [word.partition("=")[2] for word in options if word.startswith(f"--{name}=")]
        for name in {word[2:].partition("=")[0] for word in options}
    }
    assert words[:2] == [program, "run"]
    assert words[end + 1 :] == command
    assert {"--rm", "--init", "--read-only"} < set(options)
    assert values.get("device", []) == list(plan.devices)
    if not plan.keep_groups:
        assert values.get("group-add", []) == [str(one) for one in plan.groups]
    elif program == "podman":
        assert values["group-add"] == ["keep-groups"]
    assert values.get("env", []) == [
        f"{one}={plan.environment[one]}" for one in sorted(plan.environment)
    ]
    assert values.get("tmpfs", []) == [f"{one}:{plan.tmpfs[one]}" for one in sorted(plan.tmpfs)]
    assert ("--privileged" in options) is ("privileged" in plan.relaxed)
    assert values["cap-drop"] == ["ALL"]
    assert values["security-opt"] == list(plan.security_options)
    assert values["network"] == ["host" if "network" in plan.relaxed else "none"]
    assert values["ipc"] == ["host" if "ipc" in plan.relaxed else "private"]
    assert bytes_of(values["memory"][0]) == plan.memory
    assert values["memory"] == values["memory-swap"]
    if "ipc" not in plan.relaxed:
        assert bytes_of(values["shm-size"][0]) == plan.shm
    assert not any(
        "card" in word for word in values.get("device", []) if word.startswith("/dev/dri")
    )


@pytest.mark.parametrize("program", ["docker", "podman"])
@pytest.mark.parametrize("engine", [DOCKER, ROOTLESS_PODMAN])
def test_bash_accepts_the_line(engine, program):
    line = passthrough.command_line(make(engine=engine), program, ["echo", "it's $HOME; `id`"])

    subprocess.run(["bash", "-n"], input=line, text=True, check=True)
    assert read_back(line)[-2:] == ["echo", "it's $HOME; `id`"]


def test_a_plan_is_told_in_rows():
    plan = make(
        targets=("gfx1100",),
        override="11.0.0",
        user="",
        shell={"HIP_PATH": "/x"},
        relax=("network",),
    )

    rows = passthrough.describe(plan)

    assert rows == [
        ("image", "rocbake/hip-probe:1"),
        ("user", "root"),
        (
            "card",
            f"Radeon of gfx1103, gfx1103, APU, 16 GiB of its own, at 0000:03:00.0, {APU.by_path}",
        ),
        ("node", "/dev/kfd, 0:992 0660"),
        ("node", "/dev/dri/renderD128, 0:992 0660"),
        ("groups", "992"),
        ("visible as", "number 0, the only one whose render node is inside"),
        ("variable", "HSA_OVERRIDE_GFX_VERSION=11.0.0"),
        (
            "hidden",
            f"card 1 (gfx1201, Radeon of gfx1201, {RX_9070.render.path}): {plan.hidden[0].why}",
        ),
        ("files", "read-only"),
        ("writable", "/tmp (exec,mode=1777,size=1g)"),
        ("rights", "no capability, no-new-privileges"),
        ("network", "host"),
        ("shared memory", "1 GiB, its own"),
        ("memory", "8 GiB, no swap"),
        ("processes", "4096 at most"),
        ("time", "120 s for each probe"),
        ("relaxed", "network"),
        *(("note", note) for note in plan.notes),
    ]
    assert len(plan.notes) == 4


def test_rows_tell_what_is_kept_mapped_and_given_up():
    plan = make(gpus(card(0, "gfx942", partition=3)), ROOTLESS_PODMAN, targets=("gfx942",))

    rows = dict(passthrough.describe(plan))
    relaxed = dict(passthrough.describe(make(relax=("privileged", "ipc"))))

    assert rows["groups"] == "those of whoever runs Podman (keep-groups)"
    assert rows["user namespace"] == "keep-id:uid=1000,gid=1000"
    assert "discrete" in rows["card"]
    assert "partition 3" in rows["card"]
    assert relaxed["rights"] == "all (privileged)"
    assert relaxed["shared memory"] == "host"
    assert relaxed["relaxed"] == "privileged, ipc"


def test_a_plan_without_a_card_passes_nothing():
    plan = RunPlan(image="i", user="1000", card=None)

    rows = dict(passthrough.describe(plan))

    assert rows["card"] == "none: it computes on the host's processor"
    assert not {"node", "groups", "visible as"} & set(rows)
    assert passthrough.to_json(plan)["card"] is None
    assert "--device" not in passthrough.command_line(plan, "docker", [])


def test_json_is_plain_and_its_keys_are_these():
    plan = make()

    told = passthrough.to_json(plan)

    assert json.loads(json.dumps(told)) == told
    assert {type(one["kind"]) for one in told["nodes"]} == {str}
    assert type(told["card"]["render"]["kind"]) is str
    assert set(told) == {
        *("schema", "image", "user", "card", "nodes", "groups", "keep_groups", "user_namespace"),
        *("environment", "hidden", "read_only", "tmpfs", "cap_drop", "security_options"),
        *("privileged", "network", "ipc", "memory", "shm", "pids", "seconds", "relaxed", "notes"),
    }
    assert told["schema"] == 1
    assert told["groups"] == [992]
    assert told["card"]["target"] == "gfx1201"
    assert told["card"]["render"]["path"] == "/dev/dri/renderD129"
    assert [one["path"] for one in told["nodes"]] == ["/dev/kfd", "/dev/dri/renderD129"]
    assert told["nodes"][0]["mode"] == 0o660
    assert told["hidden"][0]["card"]["target"] == "gfx1103"
    assert told["hidden"][0]["why"] == "the artifact has no code for gfx1103"
    assert (told["network"], told["ipc"], told["privileged"]) == ("none", "private", False)
    assert (told["cap_drop"], told["pids"]) == (["ALL"], 4096)
    assert told["security_options"] == ["no-new-privileges"]
    assert told["relaxed"] == {}
