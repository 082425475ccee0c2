"""Smoke tests: what was built, tried on the GPU, and the proof that the GPU computed.

Probes go from cheap to dear; the first that fails ends the test, and says why. Nothing decides
here: `passthrough` plans, `probes` judges.
"""

from __future__ import annotations

import dataclasses
import functools
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from rocbake import (
    blas,
    emulate,
    engine,
    gpu,
    log,
    machine,
    oci,
    passthrough,
    probes,
    run,
    store,
    testimage,
    unpack,
)
from rocbake.errors import FitError, NoGpuError, SmokeError, UsageError
from rocbake.passthrough import Ended
from rocbake.report import WHERE, Probe, Report, Subject, exit_code

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from rocbake.gpu import Gpus
    from rocbake.kernel import KernelTest
    from rocbake.passthrough import RunPlan, Wish
    from rocbake.recipe import Recipe
    from rocbake.report import ProbeVerdict, Verdict, Where
    from rocbake.store import Entry

_HOST_SECONDS = 120.0
_EMULATOR_SECONDS = 3600.0
_PROVEN: dict[Where, str] = {
    "gpu": "computed on the GPU",
    "host": "computed on the host; nothing is shown of a GPU",
    "emulated": "the device code is right, emulated; nothing is shown of a GPU",
}


@dataclasses.dataclass(frozen=True)
class Place:
    """The machine that something is tried on.

    Attributes:
        root: Its root folder.
        gpus: What is found there.
        environment: Of the person who asks.
    """

    root: Path
    gpus: Gpus
    environment: Mapping[str, str]

    @classmethod
    def look(cls, environment: Mapping[str, str], root: Path = Path("/")) -> Place:
        """Look at what there is."""
        return cls(root, gpu.discover(root), environment)

    def require_gpu(self) -> None:
        """Check that there is something to compute on.

        Raises:
            NoGpuError: There is not.
        """
        if self.gpus.absence:
            raise NoGpuError(self.gpus.absence.message, hint=self.gpus.absence.remedy)


def no_gpu(place: Place) -> Report:
    """Return the report of a machine that has nothing to try an artifact on."""
    absence = place.gpus.absence
    assert absence is not None  # noqa: S101 - asked by the caller
    return _Writer(place, None).report("no-gpu", absence.message, remedy=absence.remedy)


def plan(entry: Entry, place: Place, wish: Wish) -> RunPlan:
    """Say how an artifact's image would be run here.

    Raises:
        NoGpuError: There is no GPU to pass.
        FitError: The artifact has no code for one that is here.
        EngineError: The engine does not answer, or cannot pass it.
        UsageError: A wish that cannot be met.
    """
    return passthrough.make(
        place.gpus,
        engine.facts(),
        image=entry.artifact.image.reference,
        user=str(oci.read(entry.folder / store.IMAGE).settings.get("User", "")),
        targets=entry.artifact.targets,
        wish=wish,
        environment=place.environment,
    )


def on_gpu(
    entry: Entry, recipe: Recipe, place: Place, wish: Wish, *, hip_probes: Sequence[Entry]
) -> Report:
    """Try an artifact on a GPU of this machine.

    Args:
        entry: The artifact.
        recipe: What it was built from, with its own commands.
        place: The machine.
        wish: Which card, and how.
        hip_probes: Artifacts of hip-probe, of which one may have code for the card.

    Raises:
        EngineError: The engine does not answer, or ends in the middle.
        UsageError: A wish that cannot be met.
    """
    writer = _Writer(place, entry)
    try:
        planned = plan(entry, place, wish)
    except NoGpuError as absent:
        return writer.report("no-gpu", str(absent), remedy=absent.hint)
    except FitError as misfit:
        return writer.report("misfit", str(misfit), remedy=misfit.hint)
    writer.plan = planned
    probe = _hip_probe(entry, hip_probes, passthrough.seen_as(planned))
    engine.reap()
    for one in filter(None, (entry, probe)):
        _bring(one)
    return writer.run(_gpu_probes(entry, recipe, place, planned, probe), "pass", "gpu")


def on_host(entry: Entry, recipe: Recipe, place: Place) -> Report:
    """Try an artifact on the processor, as far as its recipe allows; this is no proof of a GPU."""
    writer = _Writer(place, entry)
    _bring(entry)
    layout = oci.read(entry.folder / store.IMAGE)
    planned = passthrough.RunPlan(
        image=entry.artifact.image.reference,
        user=str(layout.settings.get("User", "")),
        card=None,
        seconds=_HOST_SECONDS,
    )
    return writer.run(_host_probes(entry, recipe, place, planned), "host", "host")


def emulated(entry: Entry, recipe: Recipe, place: Place, *, by: str) -> Report:
    """Run an artifact's device code on an emulator; this is no proof of a GPU either.

    Args:
        entry: The artifact.
        recipe: What it was built from, with the kernels to run.
        place: The machine.
        by: `tinygrad` runs single kernels, `rocjitsu` all of hip-probe.

    Raises:
        UsageError: The emulator is not here.
    """
    writer = _Writer(place, entry)
    assert entry.archive_path is not None  # noqa: S101 - only archives are tried
    with tempfile.TemporaryDirectory() as folder:
        unpack.unpack(entry.archive_path, Path(folder) / "archive")
        (root,) = (Path(folder) / "archive").iterdir()
        make = _under_rocjitsu if by == "rocjitsu" else _kernels_emulated
        return writer.run(make(entry, recipe, place, root), "emulated", "emulated")


def _kernels_emulated(
    entry: Entry, recipe: Recipe, place: Place, root: Path
) -> Iterator[tuple[str, Callable[[], Probe]]]:
    """Give a probe for each kernel that the recipe lists and each target there is code for."""
    value = place.environment.get("ROCBAKE_EMULATOR")
    checkout = Path(value) if value else None
    if reason := emulate.unavailable(checkout):
        raise UsageError(reason)
    assert checkout is not None  # noqa: S101 - it would not be available
    for target in entry.artifact.targets:
        for test in recipe.file.smoke.kernels:
            yield (
                f"{test.name} {target}",
                lambda test=test, target=target: _emulate(test, root, target, checkout),  # type: ignore[misc]
            )


def _emulate(test: KernelTest, root: Path, target: str, checkout: Path) -> Probe:
    (one,) = emulate.emulate([test], root, target, checkout=checkout)
    verdict: ProbeVerdict = "skipped" if one.ok is None else "passed" if one.ok else "failed"
    return Probe(
        name=f"{test.name} {target}",
        verdict=verdict,
        where=None if one.ok is None else "emulated",
        says=one.detail,
        seconds=one.seconds,
    )


def _under_rocjitsu(
    entry: Entry, _recipe: Recipe, _place: Place, root: Path
) -> Iterator[tuple[str, Callable[[], Probe]]]:
    """Give a probe of hip-probe for each target, with this machine's own ROCm."""
    if entry.artifact.name != probes.HIP_PROBE:
        return
    for target in entry.artifact.targets:
        words = emulate.rocjitsu(None, target, [str(root / "bin" / "hip-probe")])
        if words is None:
            raise UsageError(
                "rocjitsu is not on PATH; it comes with ROCm 10", hint="docs/emulator.md"
            )
        yield "compute", lambda words=words, target=target: _run_emulated(words, target)  # type: ignore[misc]


def _run_emulated(words: Sequence[str], target: str) -> Probe:
    begin = time.monotonic()
    result = run.run(words, timeout=_EMULATOR_SECONDS, check=False, error=SmokeError)
    ended = Ended(
        exit_code=result.returncode,
        stdout=result.stdout,
        stderr=result.stderr,
        seconds=time.monotonic() - begin,
    )
    return probes.judge_compute(ended, None, target=target)


def _gpu_probes(
    entry: Entry, recipe: Recipe, place: Place, planned: RunPlan, probe: Entry | None
) -> Iterator[tuple[str, Callable[[], Probe]]]:
    """Give each probe's name and how to make it, from cheap to dear."""
    card = planned.card
    assert card is not None  # noqa: S101 - a plan for a GPU has one
    nodes = (place.gpus.kfd, card.render)

    def attempt(command: Sequence[str], image: str = planned.image, seconds: float = 0) -> Ended:
        chosen = dataclasses.replace(planned, image=image, seconds=seconds or planned.seconds)
        return engine.attempt(chosen, command, root=place.root)

    yield (
        "nodes",
        lambda: Probe(
            name="nodes",
            verdict="passed",
            says=" and ".join(f"{one.path} {one.uid}:{one.gid} {one.mode:04o}" for one in nodes),
        ),
    )
    yield (
        "access",
        lambda: probes.judge_access(
            attempt(probes.open_nodes_command([one.path for one in nodes])),
            nodes,
            selinux_enforcing=machine.read(place.root).selinux == "enforcing",
        ),
    )
    target = passthrough.seen_as(planned)
    if probe is None:
        yield "device", lambda: _no_probe("device", target)
    else:
        image = probe.artifact.image.reference
        yield "device", lambda: probes.judge_devices(attempt(["hip-probe", "--list"], image), card)
    yield (
        "code",
        lambda: Probe(
            name="code",
            verdict="passed",
            says=f"code for {', '.join(entry.artifact.targets)}, which {target} runs",
        ),
    )
    yield "kernels", lambda: _kernels(entry, target)
    if probe is None:
        yield "compute", lambda: _no_probe("compute", target)
    else:
        yield (
            "compute",
            lambda: probes.judge_compute(attempt(["hip-probe"], image), card, target=target),
        )
    # Made by the first command that runs: none does where a cheaper probe has failed.
    tried = functools.cache(lambda: testimage.bring(entry))
    for command in (one for one in recipe.file.smoke.commands if one.run):
        yield (
            command.name,
            lambda command=command: probes.judge_command(  # type: ignore[misc]
                attempt(command.run, tried(), command.seconds), command, on_host=False
            ),
        )


def _host_probes(
    entry: Entry, recipe: Recipe, place: Place, planned: RunPlan
) -> Iterator[tuple[str, Callable[[], Probe]]]:
    """Give each probe that needs no GPU."""
    if entry.artifact.name == probes.HIP_PROBE:
        yield (
            "compute",
            lambda: probes.judge_host(
                engine.attempt(planned, ["hip-probe", "--host"], root=place.root)
            ),
        )
    commands = [one for one in recipe.file.smoke.commands if one.host]
    tried = testimage.bring(entry) if commands else planned.image
    for command in commands:
        chosen = dataclasses.replace(planned, image=tried, seconds=command.seconds)
        yield (
            command.name,
            lambda command=command, chosen=chosen: probes.judge_command(  # type: ignore[misc]
                engine.attempt(chosen, command.host, root=place.root), command, on_host=True
            ),
        )


def _hip_probe(entry: Entry, kept: Sequence[Entry], seen_as: str) -> Entry | None:
    """Return an artifact of hip-probe with code for a card: the one that is tried, if it is one."""
    if entry.artifact.name == probes.HIP_PROBE:
        return entry
    return next((one for one in kept if passthrough.has_code(one.artifact.targets, seen_as)), None)


def _no_probe(name: str, target: str) -> Probe:
    return Probe(
        name=name,
        verdict="skipped",
        says=f"the store has no hip-probe for {target}",
        remedy=f"invoke build --recipe hip-probe --target {target}",
    )


def _kernels(entry: Entry, target: str) -> Probe:
    """Say whether the image has BLAS kernels for a target, if the program asks for any."""
    needed = store.read_manifest(entry.folder)["needed"]
    if not blas.is_wanted(needed):
        return Probe(name="kernels", verdict="passed", says="the program uses no BLAS library")
    layout = oci.read(entry.folder / store.IMAGE)
    found = blas.coverage(oci.names(layout))
    libraries = found.of(target)
    if libraries:
        return Probe(
            name="kernels", verdict="passed", says=f"{' and '.join(libraries)} know {target}"
        )
    known = sorted(found.rocblas | found.hipblaslt)
    return Probe(
        name="kernels",
        verdict="failed",
        says=f"no BLAS library in the image has kernels for {target}; "
        f"there are some for {', '.join(known) or 'none'}",
        remedy=f"invoke build --recipe {entry.artifact.name} --target {target}",
    )


def _bring(entry: Entry) -> None:
    """See to it that the engine has an artifact's image, and that it is this one."""
    image = entry.artifact.image
    if engine.layers(image.reference) != image.layers:
        with log.step(f"Loading {image.reference} into the engine"):
            engine.load(oci.read(entry.folder / store.IMAGE), image.reference)


class _Writer:
    """What becomes a report: the time it began, the machine, the artifact, the plan."""

    def __init__(self, place: Place, entry: Entry | None) -> None:
        self._place = place
        self._entry = entry
        self._began = time.time()
        self._clock = time.monotonic()
        self.plan: RunPlan | None = None

    def run(
        self,
        tries: Iterator[tuple[str, Callable[[], Probe]]],
        good: Verdict,
        where: Where,
    ) -> Report:
        """Run probes until one fails, and report; the rest is listed as not tried."""
        done: list[Probe] = []
        broken: Probe | None = None
        for name, make in tries:
            if broken:
                done.append(
                    Probe(
                        name=name, verdict="skipped", says=f"not tried, since {broken.name} failed"
                    )
                )
                continue
            with log.step(f"{name}, {WHERE[where]}" if where != "gpu" else name):
                probe = make()
            done.append(probe)
            broken = probe if probe.verdict == "failed" else None
        if broken:
            return self.report("fail", f"{broken.name}: {broken.says}", broken.remedy, done)
        if not any(one.where == where for one in done):
            return self.report("fail", f"nothing was tried: {WHERE[where]}", _remedy(done), done)
        return self.report(good, _PROVEN[where], None, done)

    def report(
        self,
        verdict: Verdict,
        says: str,
        remedy: str | None = None,
        done: Sequence[Probe] = (),
    ) -> Report:
        """Put the report together."""
        facts = machine.read(self._place.root)
        messages = machine.kernel_messages(since=self._began) if verdict == "fail" else ()
        return Report(
            verdict=verdict,
            says=says,
            remedy=remedy,
            exit_code=exit_code(verdict, require_gpu=False),
            started_at=datetime.fromtimestamp(self._began, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            seconds=round(time.monotonic() - self._clock, 3),
            subject=self._subject(),
            card=dataclasses.asdict(self.plan.card) if self.plan and self.plan.card else None,
            machine=dataclasses.asdict(facts),
            plan=passthrough.to_json(self.plan) if self.plan else None,
            probes=tuple(done),
            kernel_log=tuple(messages),
        )

    def _subject(self) -> Subject | None:
        if self._entry is None:
            return None
        artifact = self._entry.artifact
        return Subject(
            name=artifact.name,
            version=artifact.version,
            targets=artifact.targets,
            key=artifact.key,
            image=artifact.image.reference,
            image_config=artifact.image.config,
            archive_sha256=artifact.archive.sha256 if artifact.archive else None,
        )


def _remedy(done: Sequence[Probe]) -> str | None:
    return next((one.remedy for one in done if one.remedy), None)
