"""The commands that list what the package has: methods, recipes and studies."""

from typing import Annotated

import tyro

from selfsight.run_folder import print_json


def methods(*, json: bool = False) -> None:
    """List the methods.

    Args:
        json: Print JSON instead of a table.
    """
    from selfsight import catalog, print_catalog

    rows = catalog.list_methods()
    print_json(rows) if json else print_catalog.print_methods(rows)


def recipes(
    name: Annotated[str, tyro.conf.arg(metavar="NAME|WORD")] = "", /, *, json: bool = False
) -> None:
    """List the recipes, those with a word in their name, or every flag of one recipe.

    Args:
        name: A recipe, or a word such as a method or a data set.
        json: Print JSON instead of text.
    """
    from selfsight import catalog, print_catalog

    if "." in name:
        print_json(catalog.list_flags(name)) if json else print_catalog.print_flags(name)
    else:
        rows = catalog.list_recipes(name)
        print_json(rows) if json else print_catalog.print_recipes(rows)


def studies(
    name: Annotated[str, tyro.conf.arg(metavar="NAME|WORD")] = "", /, *, json: bool = False
) -> None:
    """List the papers' tables and claims, those with a word, or the arms of one.

    An arm is trained with `selfsight pretrain DATA --recipe STUDY.ARM`.

    Args:
        name: A study, or a word such as a method.
        json: Print JSON instead of text.
    """
    from selfsight import catalog, print_catalog
    from selfsight.studies import STUDIES

    if name in STUDIES:
        print_json(catalog.list_arms(name)) if json else print_catalog.print_study(name)
    else:
        rows = catalog.list_studies(name)
        print_json(rows) if json else print_catalog.print_studies(rows)
