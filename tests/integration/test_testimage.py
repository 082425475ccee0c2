"""A test image on the real engine: the product as it is, and over it what only its tests need."""

from __future__ import annotations

import pytest

from rocbake import archive, engine, testimage

pytestmark = pytest.mark.docker


@pytest.fixture
def image(built):
    return built["hip-probe"].artifact.image.reference


@pytest.fixture
def tests(tmp_path):
    """A tar as a build leaves it."""
    folder = tmp_path / "content"
    (folder / "bin").mkdir(parents=True)
    program = folder / "bin" / "answer"
    program.write_text("#!/bin/sh\necho 42\n")
    program.chmod(0o755)
    archive.write_archive(folder, tmp_path / "tests.tar.zst", prefix="tests", epoch=1)
    return tmp_path / "tests.tar.zst"


@pytest.fixture
def made(image, tests):
    name = testimage.make(image, tests)
    yield name
    engine.untag(name)


def settings(reference):
    with engine.connect() as client:
        config = client.images.get(reference).attrs["Config"]
    return {name: config.get(name) for name in ("User", "Cmd", "Entrypoint", "WorkingDir", "Env")}


def test_what_tests_need_is_over_the_product(made, image):
    assert made == f"{image}-test"
    assert engine.run_container(made, ["/opt/tests/bin/answer"], timeout=60).stdout == "42\n"
    assert engine.run_container(made, ["hip-probe", "--version"], timeout=60).exit_code == 0


def test_the_product_itself_stays_without_it(made, image):
    assert engine.run_container(image, ["ls", "/opt/tests"], timeout=60).exit_code != 0


def test_it_runs_as_the_product_does(made, image):
    assert settings(made) == settings(image)


@pytest.mark.usefixtures("made")
def test_no_container_is_left_of_making_it():
    with engine.connect() as client:
        labels = [one.labels for one in client.containers.list(all=True)]

    assert not [one for one in labels if one.get(engine.LABEL) == "overlay"]


def test_image_that_is_not_there_is_an_error(tests):
    with pytest.raises(engine.EngineError, match="No such image"):
        testimage.make("rocbake/nothing:here", tests)
