"""Tests of one image, as it would be delivered: `pytest tests/image --subject FILE`.

The file says what the image is (a container's or a recipe's), its name in the engine, where its
OCI layout lies, and the plan it was built from. `invoke build` runs these before it keeps an image.
"""

from __future__ import annotations

import json
import signal
from dataclasses import dataclass
from pathlib import Path

import pytest
import testinfra

from rocbake import engine, oci
from rocbake.plan import Layer, Plan
from rocbake.smoke_wish import SmokeCommand
from rocbake.store import BUNDLED_MANIFEST

STRANGER = 12345
# https://github.com/opencontainers/image-spec/blob/v1.1.1/layer.md#whiteouts
WHITEOUT = ".wh."


@dataclass(frozen=True)
class Subject:
    """The image under test: its name, its content, what it is, and its container layers."""

    reference: str
    layout: oci.Layout
    plan: Plan | Layer
    layers: tuple[Layer, ...]
    tried: str  # the image that the recipe's own commands run in
    commands: tuple[SmokeCommand, ...]

    @property
    def is_recipe(self):
        """Whether a recipe's product is in it."""
        return isinstance(self.plan, Plan)

    @property
    def has_files(self):
        """Whether it is made of files beside packages, such as AMD's ROCm, whole."""
        return any(layer.files_beside for layer in self.layers)


def pytest_addoption(parser):
    parser.addoption("--subject", type=Path, help="JSON file that says which image to test")


def pytest_configure(config):
    if config.getoption("--subject") is None:
        raise pytest.UsageError("tests/image needs --subject; invoke build runs it with one")
    # The default would end the process at once, and leave the container of the fixture running.
    signal.signal(signal.SIGTERM, lambda *_: pytest.exit("terminated", returncode=143))


@pytest.fixture(scope="session")
def subject(pytestconfig):
    told = json.loads(pytestconfig.getoption("--subject").read_text())
    model = Plan if told["kind"] == "recipe" else Layer
    return Subject(
        reference=told["reference"],
        layout=oci.read(Path(told["layout"])),
        plan=model.model_validate(told["plan"]),
        layers=tuple(Layer.model_validate(layer) for layer in told["layers"]),
        tried=told.get("tried", told["reference"]),
        commands=tuple(SmokeCommand.model_validate(one) for one in told.get("commands", ())),
    )


@pytest.fixture(scope="session")
def container(subject):
    with engine.started(subject.reference, ["sleep", "infinity"]) as running:
        yield running


@pytest.fixture(scope="session")
def host(container):
    """The image as its own user."""
    return testinfra.get_host(f"docker://{container.id}")


@pytest.fixture(scope="session")
def as_root(container):
    return testinfra.get_host(f"docker://root@{container.id}")


@pytest.fixture(scope="session")
def as_stranger(container):
    """The image as a user that no file in it knows."""
    return testinfra.get_host(f"docker://{STRANGER}@{container.id}")


def package_names(subject):
    return {deb.name for layer in subject.layers for deb in layer.packages}


@pytest.fixture(scope="session")
def sdk(subject):
    """The layer with the compiler; tests of one are left out for other images."""
    if "hipcc" not in package_names(subject):
        pytest.skip("not an SDK's image")
    return subject.plan


@pytest.fixture(scope="session")
def runtime(subject):
    """Anything that is delivered to run; tests of one are left out for other images."""
    if "hipcc" in package_names(subject) or not subject.plan.rocm:
        pytest.skip("not a runtime image")
    return subject.plan


LIBRARIES = "usr/lib/x86_64-linux-gnu/"


@pytest.fixture(scope="session")
def bundled(subject):
    """What of the SDK's ROCm is copied into the image, by path, and its digest."""
    path = subject.layout.folder.parent / BUNDLED_MANIFEST
    if not path.is_file():
        return {}
    return {
        LIBRARIES + entry["path"].removeprefix("lib/"): entry["sha256"]
        for entry in json.loads(path.read_text())["files"]
        if entry["path"].startswith("lib/") and entry["sha256"]
    }


@pytest.fixture(scope="session")
def tree(subject):
    """The image's file system as its layers make it: each path, and what the tar says of it."""
    found = {}
    for index in range(len(subject.layout.layers)):
        with subject.layout.open_layer(index) as tar:
            for member in tar:
                path = member.name.removeprefix("./").rstrip("/")
                folder, _, name = path.rpartition("/")
                if name.startswith(WHITEOUT):
                    gone = f"{folder}/{name.removeprefix(WHITEOUT)}".lstrip("/")
                    for one in [one for one in found if f"{one}/".startswith(f"{gone}/")]:
                        del found[one]
                elif path:
                    found[path] = member
    return found
