"""Tables of a study from the ledger: as rows, and as Markdown for the pages."""

import statistics
from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from typing import Any

from selfsight.errors import UserError, count_noun
from selfsight.studies.judge_claims import ArmResult, arm_results, judge
from selfsight.studies.ledger import Entry
from selfsight.studies.rank_runs import list_regrets
from selfsight.studies.study_types import SIZES, SMALL_IMAGES, Arm, Measure, Scale, Study

MEASURES: dict[Measure, str] = {
    "knn_200": "kNN, k = 200",
    "knn": "kNN, k = 20",
    "linear": "linear",
}
DATA_SETS: dict[Scale, str] = {
    "imagenet": "ImageNet",
    "imagenet100": "ImageNet-100",
    "stl10": "STL-10",
    "imagenette": "Imagenette",
    "cifar10": "CIFAR-10",
    "small": "small CIFAR-10",
}
NOT_RUN = "not run"
VERDICTS = ("holds", "does not hold", "unclear", NOT_RUN)
TRANSFER = "The same frozen encoders on other images, linear accuracy in percent:"
SHARED = "shared GPU"  # in place of times, where all runs shared it with other processes


def name_images(scale: Scale, results: Sequence[ArmResult]) -> str:
    """The data set, or the number of the images if other ones were trained on."""
    expected = SMALL_IMAGES if scale == "small" else SIZES.get(scale, (0,))[0]
    counts = {entry.source_images for one in results for entry in one.entries.values()}
    is_other = expected and counts and expected not in counts
    return f"{max(counts):,} other images" if is_other else DATA_SETS[scale]


def list_results(study: Study, scale: str, entries: Sequence[Entry]) -> list[dict[str, Any]]:
    """A row for each arm: accuracy and spread, seeds, epochs, batch, time, speed, memory."""
    published = {arm.name: arm for arm in study.arms}
    rows = []
    for result in arm_results(study, scale, entries):
        arm, recipe = result.arm, result.recipe
        runs = [entry for entry in result.entries.values() if not entry.diverged]
        untimed = SHARED if runs else "-"
        row: dict[str, Any] = {
            "arm": arm.name,
            "epochs": recipe.epochs,
            "batch": recipe.batch_size,
            "published": format_published(published.get(arm.like, arm), scale),
            "seeds": len(result.entries),
            "training": _minutes(result.seconds()) or untimed,
            "in all": _minutes(result.seconds_in_all()) or untimed,
            "images/s": _mean_speed(result.alone()) or untimed,
            "memory": _largest_memory(runs),
            "dips": _mean_dips(runs),
        }
        rows.append(row | {measure: format_accuracy(result, measure) for measure in MEASURES})
    return rows


def list_judgments(study: Study, scale: str, entries: Sequence[Entry]) -> list[dict[str, Any]]:
    """A row for each claim: verdict, difference, seeds, and a note on what it is based on."""
    results = arm_results(study, scale, entries)
    rows = []
    for claim in study.claims_at(scale):
        found = judge(claim, results, entries)
        difference = "" if found.difference is None else f"{found.difference:+.1f}"
        if found.interval is not None:
            difference += f" [{found.interval[0]:+.1f}, {found.interval[1]:+.1f}]"
        if difference and claim.measure == "dips":
            difference += " dips"
        rows.append(
            {
                "claim": claim.text,
                "verdict": found.verdict,
                "difference": difference,
                "seeds": found.seeds,
                "note": found.reason,
            }
        )
    return rows


def tabulate_judgments(study: Study, scale: str, entries: Sequence[Entry]) -> list[dict[str, str]]:
    """The table of the claims, with a column of notes if there are any."""
    rows = list_judgments(study, scale, entries)
    has_notes = any(row["note"] for row in rows)
    return [
        {
            "claim": row["claim"],
            "verdict": row["verdict"],
            "difference in points": row["difference"] or "-",
            "seeds": str(row["seeds"] or "-"),
            **({"note": row["note"] or "-"} if has_notes else {}),
        }
        for row in rows
    ]


def list_transfer(study: Study, scale: str, entries: Sequence[Entry]) -> list[dict[str, str]]:
    """A row for each arm that was scored on other images: its linear accuracies on them."""
    rows = []
    for result in arm_results(study, scale, entries):
        found = defaultdict[str, list[dict[str, Any]]](list)
        for entry in result.entries.values():
            for name, scores in entry.transfer.items():
                found[name].append(scores["linear"])
        if found:
            rows.append({"arm": result.arm.name} | {n: _summarize(s) for n, s in found.items()})
    names = sorted({name for row in rows for name in row} - {"arm"})
    return [{"arm": row["arm"]} | {name: row.get(name, "-") for name in names} for row in rows]


def format_accuracy(result: ArmResult, measure: Measure) -> str:
    """Percent with the interval over test images of one seed, or the spread over several."""
    if not result.entries:
        return NOT_RUN
    values = result.values(measure)
    if not values:
        return "diverged"
    text = _summarize([result.entries[seed].results[measure] for seed in values])
    count = result.num_diverged
    return f"{text}, {count} of {len(result.entries)} diverged" if count else text


def _summarize(scores: Sequence[dict[str, Any]]) -> str:
    """Percent with the interval over test images of one seed, or the spread over several."""
    values = [100 * score["accuracy"] for score in scores]
    if len(values) > 1:
        return f"{statistics.fmean(values):.1f} ± {statistics.stdev(values):.1f}"
    (score,) = scores
    return f"{values[0]:.1f} [{100 * score['low']:.1f}, {100 * score['high']:.1f}]"


def format_published(arm: Arm, scale: str) -> str:
    """The published number with its metric, and its data set if that is another; or a dash."""
    where = "" if arm.scale == scale else f" on {DATA_SETS[arm.scale]}"
    return "-" if arm.published is None else f"{arm.published} {arm.metric}{where}"


def render_results(study: Study, scale: str, entries: Sequence[Entry]) -> str:
    """Markdown: the arms that were run, the verdicts, what was not run, and the devices."""
    every = list_results(study, scale, entries)
    cells = {arm.name for arm in study.arms_at(scale) if arm.cell}  # the heat map has them
    rows = [row for row in every if row["seeds"] and row["arm"] not in cells]
    columns = {
        "arm": lambda row: f"`{row['arm']}`",
        "epochs": lambda row: str(row["epochs"]),
        "batch": lambda row: str(row["batch"]),
        **{title: _column(measure) for measure, title in MEASURES.items()},
        "published": lambda row: row["published"],
        "seeds": lambda row: str(row["seeds"] or "-"),
        "training": lambda row: row["training"],
        "in all": lambda row: row["in all"],
        "images/s": lambda row: row["images/s"],
        "memory": lambda row: row["memory"],
    }
    if any(row["dips"] not in ("-", "0") for row in rows):
        columns["dips"] = lambda row: row["dips"]
    parts = []
    if rows:
        parts.append(_markdown([{t: get(row) for t, get in columns.items()} for row in rows]))
    if judged := tabulate_judgments(study, scale, entries):
        parts.append(_markdown([row | {"verdict": f"**{row['verdict']}**"} for row in judged]))
    if transfer := list_transfer(study, scale, entries):
        parts.append(TRANSFER + "\n")
        parts.append(_markdown([row | {"arm": f"`{row['arm']}`"} for row in transfer]))
    if absent := [f"`{row['arm']}`" for row in every if not row["seeds"]]:
        parts.append(f"Arms that were not run: {', '.join(absent)}.\n")
    parts.append(describe_runs(study, scale, entries))
    return "\n".join(parts)


def render_short(study: Study, scale: str, entries: Sequence[Entry], arms: Sequence[str]) -> str:
    """Markdown: the numbers of some arms, of "all", or of those that were "run"."""
    rows = list_results(study, scale, entries)
    unknown = set(arms) - {"all", "run"} - {row["arm"] for row in rows}
    if unknown:
        raise UserError(f"{study.name} has no arm {', '.join(sorted(unknown))} at {scale}.")
    chosen = [
        row
        for row in rows
        if "all" in arms or ("run" in arms and row["seeds"]) or row["arm"] in arms
    ]
    return _markdown(
        [
            {
                "": f"`{row['arm']}`",
                "kNN, k = 200": row["knn_200"],
                "linear": row["linear"],
                "published": row["published"],
                "training": row["training"],
            }
            for row in chosen
        ]
    )


def render_overview(
    studies: Sequence[Study], scales: Sequence[Scale], entries: Sequence[Entry]
) -> str:
    """Markdown: for each study and data set, arms and runs that were done, and verdicts."""
    rows = []
    for study in studies:
        for scale in scales:
            done, arms, runs = count_done(study, scale, entries)
            if not arms or (scale == "small" and not runs):
                continue
            verdicts = Counter(row["verdict"] for row in list_judgments(study, scale, entries))
            rows.append(
                {
                    "study": f"`{study.name}`",
                    "data": DATA_SETS[scale],
                    "arms run": f"{done} of {arms}",
                    "runs": str(runs),
                    **{verdict: str(verdicts[verdict] or "-") for verdict in VERDICTS},
                }
            )
    return _markdown(rows)


def render_regrets(scale: str, entries: Sequence[Entry], *, without: Collection[str] = ()) -> str:
    """Markdown: what choosing without labels among recipes of a network loses."""
    rows = [
        {
            "network": f"`{row.network}`",
            "epochs": str(row.epochs),
            "criterion": row.criterion,
            "recipes": str(row.recipes),
            "regret in points": f"{row.regret:.1f}",
            "of a random choice": f"{row.random:.1f}",
            "rank correlation": f"{row.correlation:.2f}",
        }
        for row in list_regrets(scale, entries, without=without)
    ]
    return _markdown(rows) if rows else f"{NOT_RUN}\n"


def describe_runs(study: Study, scale: str, entries: Sequence[Entry]) -> str:
    """A sentence on devices and commits of the runs, and how many arms were run."""
    results = arm_results(study, scale, entries)
    runs = [entry for result in results for entry in result.entries.values()]
    done = sum(bool(result.entries) for result in results)
    text = f"{done} of {len(results)} arms were run"
    if not runs:
        return f"{text}.\n"
    devices = sorted({run.device for run in runs})
    commits = sorted(
        {run.version.get("commit") or run.version.get("sources", "unknown") for run in runs}
    )
    return (
        f"{text}, {count_noun(len(runs), 'run')} in all; {', '.join(devices)}; "
        f"code: {', '.join(commits)}. `selfsight study {study.name} --scale {scale}`\n"
    )


def count_done(study: Study, scale: str, entries: Sequence[Entry]) -> tuple[int, int, int]:
    """Arms that were run, arms in all, and runs."""
    if not any(entry.scale == scale for entry in entries):  # the recipes need not be built
        return 0, len(study.arms_at(scale)), 0
    results = arm_results(study, scale, entries)
    runs = sum(len(result.entries) for result in results)
    return sum(bool(result.entries) for result in results), len(results), runs


def _column(measure: Measure) -> Any:
    return lambda row: row[measure]


def _markdown(rows: list[dict[str, str]]) -> str:
    lines = [list(rows[0]), ["---"] * len(rows[0]), *(list(row.values()) for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _minutes(seconds: float | None) -> str:
    if seconds is None:
        return ""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"


def _mean_speed(runs: Sequence[Entry]) -> str:
    speeds = [run.images_per_second for run in runs if run.images_per_second]
    return f"{sum(speeds) / len(speeds):,.0f}" if speeds else ""


def _largest_memory(runs: Sequence[Entry]) -> str:
    sizes = [run.peak_memory_gib for run in runs if run.peak_memory_gib]
    return f"{max(sizes):.1f} GiB" if sizes else "-"


def _mean_dips(runs: Sequence[Entry]) -> str:
    """Measurements of online_knn a point or more below the best before, per run."""
    counts = [column[-1] or 0 for run in runs if (column := run.curve.get("online_knn_dips"))]
    return f"{sum(counts) / len(counts):.2g}" if counts else "-"
