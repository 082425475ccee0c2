import pytest

from rocbake.asked import Asked
from rocbake.errors import TargetError, UsageError


def test_what_is_typed_becomes_a_wish():
    wish = Asked(
        device_index="1", render_node="renderD129", memory="16", timeout="30", relax=["seccomp"]
    ).wish()

    assert (wish.device_index, wish.render_node) == (1, "renderD129")
    assert (wish.memory, wish.seconds) == (16 << 30, 30)
    assert wish.relax == ("seccomp",)
    assert wish.override is None


def test_nothing_typed_is_no_choice():
    wish = Asked().wish()

    assert wish.device_index is wish.render_node is wish.gpu_target is None
    assert wish.relax == ()


def test_number_0_is_a_choice():
    assert Asked(device_index="0").wish().device_index == 0


def test_relaxations_are_told_once_in_their_own_order():
    assert Asked(relax=["network", "privileged", "network"]).wish().relax == (
        "privileged",
        "network",
    )


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"device_index": "-1"}, "--device-index: expected a whole number from 0 to 1023"),
        ({"device_index": "٣"}, "--device-index"),
        ({"memory": "0"}, "--memory: expected a whole number from 1"),
        ({"memory": "16g"}, "got '16g'"),
        ({"timeout": ""}, "--timeout"),
        ({"timeout": "1e3"}, "--timeout"),
        ({"relax": ["everything"]}, "--relax: expected one of privileged, seccomp, ipc, network"),
        ({"host": True, "emulator": "tinygrad"}, "--host and --emulate exclude each other"),
        ({"emulator": "qemu"}, "--emulate: expected tinygrad or rocjitsu, got 'qemu'"),
    ],
)
def test_what_makes_no_sense_is_refused(given, reason):
    with pytest.raises(UsageError, match=reason):
        Asked(**given).wish()


def test_target_of_a_card_is_read_as_every_target():
    with pytest.raises(TargetError, match="gfx1201"):
        Asked(gpu_target="gfx12O1").wish()
