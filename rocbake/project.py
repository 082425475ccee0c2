"""The project: a checkout with its containers and recipes, read and checked as a whole."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rocbake import container, recipe
from rocbake.container import Container  # noqa: TC001 - a field's type
from rocbake.document import DocumentError, Problem
from rocbake.errors import UsageError
from rocbake.recipe import Recipe  # noqa: TC001 - a field's type

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Project:
    """Everything that people wrote below one root folder."""

    root: Path
    containers: dict[str, Container]
    recipes: dict[str, Recipe]

    def choose(self, names: list[str]) -> list[Recipe]:
        """Return the recipes named, or those that are taken where none is.

        Raises:
            UsageError: A name that is none of them.
        """
        unknown = [name for name in names if name not in self.recipes]
        if unknown:
            raise UsageError(
                f"there is no recipe {', '.join(map(repr, unknown))}; "
                f"there are {', '.join(self.recipes) or 'none'}",
                hint="invoke list",
            )
        usual = [name for name, one in self.recipes.items() if one.file.default]
        return [self.recipes[name] for name in dict.fromkeys(names or usual)]


def load(root: Path = ROOT) -> Project:
    """Read every container and recipe below a root folder.

    Raises:
        DocumentError: Everything that is wrong with any of them, at once.
    """
    containers: dict[str, Container] | None = None
    recipes: dict[str, Recipe] = {}
    problems: list[Problem] = []
    try:
        containers = container.load_all(root)
    except DocumentError as wrong:
        problems += wrong.problems
    try:
        recipes = recipe.load_all(root, containers)
    except DocumentError as wrong:
        problems += wrong.problems
    if problems or containers is None:
        raise DocumentError(problems)
    return Project(root=root, containers=containers, recipes=recipes)
