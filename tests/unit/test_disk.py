import os
from types import SimpleNamespace

import pytest

from rocbake import disk, engine
from rocbake.errors import EngineError

WANTED = {"engine": 1_000, "store": 200, "cache": 30}
PLENTY = 10**15


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Let each folder be a file system of its own or share one, with this much room."""
    places = {name: tmp_path / name for name in WANTED}
    for path in places.values():
        path.mkdir()
    rooms = dict.fromkeys(WANTED, (PLENTY, PLENTY, PLENTY))
    shares = {name: number for number, name in enumerate(WANTED)}
    real = type(tmp_path).stat

    def name_of(path):
        return next(name for name, place in places.items() if place in (path, *path.parents))

    def stat(self, **options):
        found = real(self, **options)
        if self in places.values():
            return SimpleNamespace(st_dev=shares[name_of(self)], st_mode=found.st_mode)
        return found

    def statvfs(path):
        free, files, free_files = rooms[name_of(path)]
        return SimpleNamespace(f_bavail=free, f_frsize=1, f_files=files, f_favail=free_files)

    monkeypatch.setattr(type(tmp_path), "stat", stat)
    monkeypatch.setattr(os, "statvfs", statvfs)
    monkeypatch.setattr(engine, "root_dir", lambda: places["engine"])
    return SimpleNamespace(places=places, rooms=rooms, shares=shares)


def problems(machine, wanted=WANTED, **paths):
    places = machine.places | paths
    return disk.problems(wanted, store=places["store"], cache=places["cache"])


def test_enough_room_is_no_problem(machine):
    machine.rooms |= {name: (size, 0, 0) for name, size in WANTED.items()}

    assert problems(machine) == []


def test_too_little_room_is_told_for_each_place(machine):
    wanted = {"engine": 3 * 10**9, "store": 2 * 10**9, "cache": 10**9}
    machine.rooms |= {name: (size - 10**8, 0, 0) for name, size in wanted.items()}

    assert problems(machine, wanted) == [
        f"engine ({machine.places['engine']}): about 3.0 GB needed, 2.9 GB free",
        f"store ({machine.places['store']}): about 2.0 GB needed, 1.9 GB free",
        f"cache ({machine.places['cache']}): about 1.0 GB needed, 0.9 GB free",
    ]


def test_places_on_one_file_system_share_its_room(machine):
    machine.shares["cache"] = machine.shares["engine"]
    machine.rooms |= dict.fromkeys(("engine", "cache"), (1_029, 0, 0))

    (problem,) = problems(machine)

    assert problem.startswith(f"engine ({machine.places['engine']}), cache (")
    machine.rooms |= dict.fromkeys(("engine", "cache"), (1_030, 0, 0))
    assert problems(machine) == []


def test_too_few_inodes_are_told(machine):
    machine.rooms["store"] = (PLENTY, 10_000_000, 199_999)

    (problem,) = problems(machine)

    assert problem.endswith("200000 inodes needed, 199999 free")


def test_file_system_without_inodes_has_enough(machine):
    machine.rooms["store"] = (PLENTY, 0, 0)

    assert problems(machine) == []


def test_folder_that_is_not_there_yet_is_on_its_parents_file_system(machine):
    machine.rooms["store"] = (199, 0, 0)
    path = machine.places["store"] / "not" / "yet"

    (problem,) = problems(machine, store=path)

    assert problem.startswith(f"store ({path})")


def test_engine_on_another_machine_is_left_out(machine, monkeypatch):
    monkeypatch.setattr(engine, "root_dir", lambda: None)
    machine.rooms["engine"] = (0, 0, 0)

    assert problems(machine) == []


def test_room_is_required_for_the_plan(machine, checkout):
    made = checkout.plan()
    size = sum(source.size for source in made.inputs)
    need = disk.needs(made.inputs)

    assert need["engine"] > need["store"] > need["cache"] > size
    disk.require_room(made, store=machine.places["store"], cache=machine.places["cache"])
    machine.rooms["engine"] = (need["engine"] - 1, 0, 0)
    with pytest.raises(EngineError, match="too little room to build") as caught:
        disk.require_room(made, store=machine.places["store"], cache=machine.places["cache"])
    assert "invoke clean" in caught.value.hint
