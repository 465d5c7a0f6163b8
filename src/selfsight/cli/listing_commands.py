"""The commands that list what the package has: methods, recipes and studies."""

from pathlib import Path
from typing import Annotated, Any

import tyro

from selfsight.errors import UserError, escape, quote_word
from selfsight.options.option_types_and_ranges import File, Folder, Scale


def methods(
    name: Annotated[str, tyro.conf.arg(metavar="NAME", help_behavior_hint="")] = "",
    /,
    *,
    cite: bool = False,
    json: bool = False,
) -> Any:
    """List the methods, or one of them.

    Args:
        name: A method. If not given, all.
        cite: Print BibTeX of the papers of the method, and of this project.
        json: Print JSON instead of a table.
    """
    from selfsight import catalog
    from selfsight.cli import print_catalog

    rows = catalog.list_methods(name)
    if cite:
        from selfsight.cli import cite as citations

        entries = [*(citations.cite(name) if name else ()), citations.PROJECT]
        return entries if json else print(*entries, sep="\n\n")
    return rows if json else print_catalog.print_methods(rows)


def recipes(
    name: Annotated[str, tyro.conf.arg(metavar="NAME|WORD", help_behavior_hint="")] = "",
    /,
    *,
    save: File = None,
    json: bool = False,
) -> Any:
    """List the recipes, those with a word in their name, or every flag of one recipe.

    Args:
        name: A recipe, or a word such as a method or a data set. If not given, all.
        save: Write the recipe to FILE, such as my.json, which you can change and pass to
            pretrain --recipe.
        json: Print JSON instead of text.
    """
    from selfsight import catalog
    from selfsight.cli import print_catalog

    if save is not None:
        from selfsight.recipes.recipe_file import save_recipe

        save_recipe(catalog.build_recipe(name), Path(save))
        word = quote_word(str(save))
        print(escape(f"Wrote {save}. Train with: selfsight pretrain DATA --recipe {word}"))
        return None
    if "." in name:
        return catalog.list_flags(name) if json else print_catalog.print_flags(name)
    rows = catalog.list_recipes(name)
    return rows if json else print_catalog.print_recipes(rows)


def studies(
    name: Annotated[str, tyro.conf.arg(metavar="NAME|WORD", help_behavior_hint="")] = "",
    /,
    *,
    page: File = None,
    scale: Annotated[Scale | None, tyro.conf.arg(metavar="NAME", help_behavior_hint="")] = None,
    ledger: Folder = None,
    json: bool = False,
) -> Any:
    """List the papers' tables and claims, those with a word, or the arms of one.

    An arm is trained for the ledger with `selfsight study STUDY --arms ARM`, or as a run of your
    own with `selfsight pretrain DATA --recipe STUDY.ARM`.

    Args:
        name: A study, or a word such as a method. If not given, all.
        page: Write verdicts, figures and all runs of this study to an HTML file.
        scale: Data set of that page: small, cifar10, imagenette, stl10, imagenet100 or imagenet. If
            not given, cifar10.
        ledger: Folder with results for that page, in addition to the package's; results on other
            images take their place.
        json: Print JSON instead of text.
    """
    from selfsight import catalog
    from selfsight.cli import print_catalog
    from selfsight.studies import STUDIES

    if page is not None:
        written = str(_write_page(name, scale or "cifar10", ledger, Path(page)))
        return {"page": written} if json else print(written)
    if scale or ledger:
        flag = "--scale" if scale else "--ledger"
        raise UserError(f"{flag} is for --page, which was not given. Add it, or omit this flag.")
    if name in STUDIES:
        return catalog.list_arms(name) if json else print_catalog.print_study(name)
    rows = catalog.list_studies(name)
    return rows if json else print_catalog.print_studies(rows)


def _write_page(name: str, scale: Scale, ledger: str | Path | None, path: Path) -> Path:
    """Write the page of a study and return its path."""
    from selfsight.studies import find_study
    from selfsight.studies.judge_claims import arm_results
    from selfsight.studies.ledger import read_ledger, read_results
    from selfsight.studies.study_page import write_study_page
    from selfsight.terminal.console import open_console

    if not name:
        raise UserError("--page is of one study, and none is named: selfsight studies NAME --page.")
    study = find_study(name)
    if scale not in (known := sorted(study.scales)):
        raise UserError(f"{name} has no arms on {scale}. Give --scale {' or '.join(known)}.")
    entries = read_results(scale, ledger)
    if ledger:
        own = read_ledger([Path(ledger)])
        shown = [
            e for result in arm_results(study, scale, entries) for e in result.entries.values()
        ]
        if missing := len(own) - sum(entry in shown for entry in own):
            open_console(stderr=True).print(
                f"{missing} of {len(own)} results in {ledger} are not on the page: they are of "
                "other arms, of another scale or held-out images, or have other settings.",
                soft_wrap=True,
            )
    return write_study_page(study, scale, entries, path)
