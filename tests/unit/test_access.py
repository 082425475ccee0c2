import errno
import os
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocbake import access
from rocbake.gpu import DeviceNode, NodeKind

KFD = DeviceNode("/dev/kfd", NodeKind.CHARACTER, 0o660, 0, 992, 235, 0)
RENDER = DeviceNode("/dev/dri/renderD129", NodeKind.CHARACTER, 0o660, 0, 992, 226, 129)
MISSING = DeviceNode("/dev/kfd", NodeKind.MISSING)


def node(mode, uid=0, gid=992):
    return DeviceNode("/dev/kfd", NodeKind.CHARACTER, mode, uid, gid, 235, 0)


def explain(error, where=KFD, *, uid=1000, groups=(1000, 44), enforcing=False, **more):
    return access.explain(where, error, uid=uid, groups=groups, selinux_enforcing=enforcing, **more)


@pytest.mark.parametrize(
    ("mode", "owner", "uid", "groups", "may"),
    [
        pytest.param(0o660, 0, 1000, (992,), True, id="by its group"),
        pytest.param(0o660, 0, 1000, (44, 109), False, id="by no group of these"),
        pytest.param(0o660, 0, 1000, (), False, id="by no group"),
        pytest.param(0o666, 0, 1000, (), True, id="as anybody"),
        pytest.param(0o640, 0, 1000, (992,), False, id="for reading only"),
        pytest.param(0o620, 0, 1000, (992,), False, id="for writing only"),
        pytest.param(0o600, 1000, 1000, (), True, id="as its owner"),
        pytest.param(0o066, 1000, 1000, (992,), False, id="as its owner who may less than others"),
        pytest.param(0o606, 0, 1000, (992,), False, id="by its group that may less than others"),
        pytest.param(0o660, 7, 0, (), True, id="as root"),
    ],
)
def test_mode_lets_whom_posix_says(mode, owner, uid, groups, may):
    assert access.may_open(node(mode, uid=owner), uid, groups) is may


def test_root_without_capabilities_is_a_user_like_others():
    assert not access.may_open(node(0o660, uid=7), 0, (), capabilities=False)
    assert access.may_open(node(0o660, uid=0), 0, (), capabilities=False)
    assert access.may_open(node(0o660, uid=7), 0, (992,), capabilities=False)


def test_nobody_opens_what_is_not_there():
    assert not access.may_open(MISSING, 0, (0,))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make nodes and become others")
@pytest.mark.parametrize("mode", [0o660, 0o606, 0o066, 0o640, 0o600, 0o000])
@pytest.mark.parametrize(("uid", "groups"), [(1000, [992]), (1000, [44]), (1001, [44])])
def test_mode_is_read_as_the_kernel_reads_it(make_tree, mode, uid, groups):
    tree = make_tree(real=True)
    path = tree.kfd(mode=mode, uid=1001, gid=992)

    # Seen from its own folder: those above belong to the tests' own user.
    done = subprocess.run(
        ["sh", "-c", ": <>kfd"],
        cwd=path.parent,
        user=uid,
        group=groups[0],
        extra_groups=groups,
        stderr=subprocess.DEVNULL,
        check=False,
    )

    may = access.may_open(node(mode, uid=1001), uid, groups)
    assert may is (done.returncode == 0)


def test_denial_tells_who_may_not_open_what():
    found = explain(errno.EACCES)

    assert found == access.Explanation(
        "kfd-denied",
        "/dev/kfd cannot be opened for reading and writing: Permission denied; "
        "/dev/kfd is 0:992 0660, the process is user 1000 with groups 44, 1000",
        "run it with the group that owns the node, as a number: --group-add 992",
    )


def test_denial_without_groups_says_so():
    assert explain(errno.EACCES, groups=()).message.endswith("is user 1000 without groups")


def test_denial_outside_of_a_container_joins_the_group():
    found = explain(errno.EACCES, in_container=False)

    assert found.remedy == (
        'sudo usermod -aG "$(getent group 992 | cut -d: -f1)" "$USER"; then log in again'
    )


@pytest.mark.parametrize("where", [node(0o600), node(0o640), node(0o660, gid=0)])
def test_denial_that_no_group_can_mend_is_mended_by_udev(where):
    found = explain(errno.EACCES, where)

    assert "/etc/udev/rules.d/" in found.remedy
    assert 'KERNEL=="kfd", GROUP="render", MODE="0660"' in found.remedy
    assert "--group-add" not in found.remedy


def test_udev_rule_is_for_every_render_node():
    where = DeviceNode(RENDER.path, NodeKind.CHARACTER, 0o600, 0, 0, 226, 129)

    assert 'KERNEL=="renderD*"' in explain(errno.EACCES, where).remedy


def test_selinux_is_named_where_mode_and_groups_allow_it():
    found = explain(errno.EACCES, groups=(992,), enforcing=True)

    assert found.message.endswith("mode and groups allow it, SELinux does not")
    assert found.remedy == "on the host: setsebool -P container_use_dri_devices=1"


def test_selinux_is_not_named_where_mode_denies():
    found = explain(errno.EACCES, enforcing=True)

    assert "SELinux" not in found.message
    assert found.remedy.endswith("--group-add 992")


def test_something_else_is_looked_for_where_selinux_is_not():
    found = explain(errno.EACCES, groups=(992,))

    assert found.message.endswith("mode and groups allow it, something else does not")
    assert "AppArmor" in found.remedy
    assert "user namespace" in found.remedy
    assert "setsebool" not in found.remedy


def test_group_that_a_user_namespace_hides_is_kept():
    found = explain(errno.EACCES, node(0o660, uid=65534, gid=65534))

    assert "--group-add keep-groups" in found.remedy
    assert "65534:65534" in found.message


def test_root_that_was_refused_has_no_capability():
    found = explain(errno.EACCES, node(0o660, uid=7), uid=0, groups=(0,), enforcing=True)

    assert found.remedy.endswith("--group-add 992")


def test_denied_node_that_is_not_seen_here_is_to_be_looked_at():
    found = explain(errno.EACCES, MISSING)

    assert "/dev/kfd is not seen from here" in found.message
    assert found.remedy == "ls -l /dev/kfd, there and on the host"


@pytest.mark.parametrize(
    ("error", "reason", "why", "remedy"),
    [
        (errno.EPERM, "denied", "the container's device rules forbid it", "not as a volume"),
        (errno.ENOENT, "missing", "it is not in the container", "--device /dev/kfd"),
        (errno.EISDIR, "not-a-device", "a volume mount of a missing node", "rmdir /dev/kfd"),
        (errno.ENOMEM, "refused", "has no GPU that it can use", "dkms status"),
        (errno.EINVAL, "refused", "refuses this process", "dmesg"),
        (errno.EAGAIN, "refused", "is locked while a GPU is reset", "try again"),
        (errno.ENODEV, "refused", "no driver stands behind the node", "modprobe amdgpu"),
        (errno.ENXIO, "refused", "no driver stands behind the node", "modprobe amdgpu"),
        (errno.EIO, "refused", "Input/output error", "dmesg"),
        (0, "refused", "nobody said why", "dmesg"),
    ],
)
def test_every_error_has_its_meaning(error, reason, why, remedy):
    found = explain(error)

    assert found.reason == f"kfd-{reason}"
    assert found.message.startswith("/dev/kfd cannot be opened for reading and writing: ")
    assert why in found.message
    assert remedy in found.remedy


def test_errors_that_people_confuse_are_told_apart():
    errors = (errno.EACCES, errno.EPERM, errno.ENOENT, errno.ENOMEM, errno.EINVAL)
    found = [explain(error) for error in errors]

    assert len({one.message for one in found}) == len({one.remedy for one in found}) == 5


@pytest.mark.parametrize(
    ("error", "why", "remedy"),
    [
        (errno.EPERM, "the process's control group", "outside of the service"),
        (errno.ENOENT, "no driver made it", "modprobe amdgpu"),
    ],
)
def test_outside_of_a_container_nothing_is_said_of_one(error, why, remedy):
    found = explain(error, in_container=False)

    assert why in found.message
    assert remedy in found.remedy
    assert "--device" not in found.remedy


def test_render_node_is_named_as_such():
    found = explain(errno.EPERM, RENDER)

    assert found.reason == "render-denied"
    assert found.remedy.endswith("--device /dev/dri/renderD129")


@given(
    error=st.sampled_from(sorted(set(errno.errorcode) - {errno.EACCES})),
    uid=st.integers(0, 70000),
    groups=st.lists(st.integers(0, 70000)),
    enforcing=st.booleans(),
    in_container=st.booleans(),
)
def test_groups_are_advised_for_denial_by_mode_alone(error, uid, groups, enforcing, in_container):
    found = explain(error, uid=uid, groups=groups, enforcing=enforcing, in_container=in_container)

    for advice in ("group-add", "usermod", "video", "setsebool", "{"):
        assert advice not in found.remedy
    assert os.strerror(error) in found.message
