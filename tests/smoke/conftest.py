"""Smoke tests by hand, of any image: `pytest tests/smoke --image NAME --target gfx1201`.

They need a GPU, and are skipped with the reason where there is none. `invoke smoke` does the same
for what is in the store, and keeps reports.
"""

from __future__ import annotations

import dataclasses
import os

import pytest

from rocbake import engine, gpu, passthrough, target


def pytest_addoption(parser):
    parser.addoption("--image", help="image to try, by its name in the engine")
    parser.addoption("--target", help="target set that it has code for: gfx1201")
    parser.addoption("--render-node", help="card to pass, by its render node")


@pytest.fixture(scope="session")
def plan(request):
    """How the image is run here."""
    image, wanted = request.config.getoption("--image"), request.config.getoption("--target")
    if not image or not wanted:
        pytest.skip("no image to try: pytest tests/smoke --image NAME --target gfx1201")
    found = gpu.discover()
    if found.absence:
        pytest.skip(f"no GPU: {found.absence.message}")
    return passthrough.make(
        found,
        engine.facts(),
        image=image,
        user=engine.user(image),
        targets=target.parse_target_set([wanted]).names,
        wish=passthrough.Wish(render_node=request.config.getoption("--render-node")),
        environment=os.environ,
    )


@pytest.fixture(scope="session")
def attempt(plan):
    """Run a command in the image, with the card."""

    def attempt(*command, seconds=plan.seconds):
        return engine.attempt(dataclasses.replace(plan, seconds=seconds), command)

    return attempt
