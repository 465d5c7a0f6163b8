"""The cells of a paper's table as recipes: one function with arguments, and a claim for each."""

from collections.abc import Callable

from selfsight.recipe import Recipe


def cell(make: Callable[[], Recipe], summary: str, reference: str) -> Callable[[], Recipe]:
    """A recipe function like the written ones, for a module's GRID."""

    def recipe() -> Recipe:
        return make()

    recipe.__doc__ = f"{summary}\n\nReference: {reference}"
    return recipe
