"""Gather the numbers of a run folder that its verdict is based on."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

from selfsight.run_files.json_files import is_finite
from selfsight.run_files.run_results import put_main_first
from selfsight.train.collapse import RECENT, Measures

Json = Mapping[str, Any]
Z95 = 1.96  # half of a 95 % interval, in standard errors
LABELED = {"knn": "kNN accuracy", "linear": "linear accuracy"}
# Settings that must agree for two results to be of the same images, seen in the same way.
CONDITIONS = ("fingerprint", "train", "transform")
ONLINE = {"online_knn": "online_knn accuracy (on training images)"}


@dataclass(frozen=True, kw_only=True)
class LabeledScore:
    """Accuracy of one protocol, trained and untrained, on the same test images."""

    name: str
    accuracy: float
    untrained: float
    gain_low: float  # 95 % interval of accuracy - untrained
    gain_high: float
    images: int
    settings: Json = field(default_factory=dict, repr=False)

    @property
    def gain(self) -> float:
        """Gain over the untrained network."""
        return self.accuracy - self.untrained

    @property
    def z(self) -> float:
        """The gain in its standard errors; 0 if every image has the same outcome in both."""
        error = (self.gain_high - self.gain_low) / (2 * Z95)
        return self.gain / error if error > 0 else 0.0


@dataclass(frozen=True, kw_only=True)
class RunEvidence:
    """The numbers that a verdict is based on; None if a run does not have them."""

    records: int = 0
    diverged: bool = False  # the last loss is not a number
    steps: int = 0
    skipped_steps: int = 0  # skipped because their gradient was not finite
    first_skipped: int | None = None  # step
    collapsed_at: int | None = None  # step of the last alarm during training
    recovered_at: int | None = None  # step at which that collapse was over
    loss: float | None = None
    first_loss: float | None = None
    chance_loss: float | None = None  # of guessing
    feature_std: float | None = None
    effective_rank: float | None = None
    embedding_std: float | None = None
    embedding_rank: float | None = None
    highest: Json = field(default_factory=dict)  # of these four, during training
    embedding_dim: int | None = None
    classes: int | None = None  # that the run was trained to tell apart, if it used labels
    batch_size: int | None = None  # samples that each rank is computed from
    trained_rank: float | None = None  # of the same images as untrained_rank
    untrained_rank: float | None = None
    # kNN first, then linear; of an evaluation, or else online_knn, on training images.
    labeled: tuple[LabeledScore, ...] = ()
    not_counted: tuple[LabeledScore, ...] = ()  # of other images, or of another image size
    knn_dips: int | None = None  # measurements of online_knn a point or more below the best before
    knn_measurements: int = 0
    chance: float | None = None  # accuracy of always predicting the most common class
    pixels: float | None = None  # kNN accuracy on raw pixels, of the same images
    retrieval: float | None = None
    untrained_retrieval: float | None = None
    retrieval_images: int | None = None
    retrieval_gain: tuple[float, float] | None = None  # 95 % interval of its difference
    rank_ends: tuple[float, float] | None = None  # 95 % interval of trained_rank
    predictor: bool | None = None  # only of methods that collapse without one
    queue_steps: float | None = None  # age of the oldest key
    queue_epochs: float | None = None
    teacher_steps: float | None = None  # 1 / (1 - momentum), the time constant of its average


def gather_evidence(
    records: Sequence[Json], results: Json, recipe: Json, events: Sequence[Json] = ()
) -> RunEvidence:
    """Gather the numbers from log records, results by name, the recipe, and events."""
    method, batch = recipe.get("method") or {}, _number(recipe.get("batch_size"))
    last = records[-1] if records else {}
    step, epoch = _number(last.get("step")), _number(last.get("epoch"))
    queue, momentum = _number(method.get("queue_size")), _number(method.get("momentum"))
    keys_per_image = 2 if method.get("symmetric") else 1
    queue_steps = queue / (keys_per_image * batch) if queue and batch else None
    if queue_steps is not None and step is not None:
        queue_steps = min(queue_steps, step)  # no key is older than the run
    per_epoch = step / epoch if step and epoch else None
    # An evaluation on labeled images counts more than one on training images.
    results, main = put_main_first(results, str((recipe.get("data") or {}).get("path", "")))
    evaluated = _labeled(results, LABELED)
    labeled, not_counted = _select_alike(evaluated or _labeled(results, ONLINE), recipe)
    if main:
        labeled = tuple(replace(score, name=f"{score.name} on {main}") for score in labeled)
        not_counted += _labeled(results, _name_others(results))
    baselines = results.get("baselines" if evaluated else "online_baselines") or {}
    if labeled and not _are_alike(labeled[0].settings, _settings(baselines)):
        baselines = {}
    label_free = results.get("label_free") or {}
    rank = label_free.get("effective_rank") or {}
    retrieval = label_free.get("retrieval") or {}
    count = _number((label_free.get("settings") or {}).get("images"))
    classes = _number(recipe.get("num_classes"))
    measures, dim = Measures(records), _number(method.get("dim"))
    dips = _values(records, "online_knn_dips")
    collapses, recoveries = _steps(events, "collapsed"), _steps(events, "recovered")
    return RunEvidence(
        first_skipped=min(_steps(events, "skipped"), default=None),
        collapsed_at=max(collapses, default=None),
        recovered_at=max((s for s in recoveries if s > max(collapses, default=s)), default=None),
        records=len(_values(records, "loss")),
        diverged=bool(records) and _number(last.get("loss")) is None,
        steps=int(step or 0),
        skipped_steps=int(_number(last.get("skipped_steps")) or 0),
        loss=_current(records, "loss"),
        first_loss=_first(records, "loss"),
        chance_loss=_current(records, "chance_loss"),
        **measures.current,
        highest=measures.highest,
        embedding_dim=None if dim is None else int(dim),
        classes=None if classes is None else int(classes),
        batch_size=None if batch is None else int(batch),
        trained_rank=_number(rank.get("trained")),
        untrained_rank=_number(rank.get("untrained")),
        labeled=labeled,
        not_counted=not_counted,
        knn_dips=None if not dips else int(dips[-1]),
        knn_measurements=len(_values(records, "online_knn")),
        chance=_number(baselines.get("chance")),
        pixels=_number(baselines.get("pixels")),
        retrieval=_number(retrieval.get("trained")),
        untrained_retrieval=_number(retrieval.get("untrained")),
        retrieval_images=None if count is None else int(count),
        retrieval_gain=_ends(retrieval.get("difference"), "low", "high"),
        rank_ends=_ends(rank, "trained_low", "trained_high"),
        # With negatives, embeddings do not collapse without a predictor.
        predictor=method.get("predictor") if _current(records, "chance_loss") is None else None,
        queue_steps=queue_steps,
        queue_epochs=queue_steps / per_epoch if queue_steps and per_epoch else None,
        teacher_steps=1 / max(1 - momentum, 1e-9) if momentum is not None else None,
    )


def _name_others(results: Json) -> dict[str, str]:
    """Names of the accuracies on other data sets than the main one."""
    protocols = {key: key.split(" on ", 1) for key in results if " on " in key}
    return {
        key: f"{LABELED[protocol]} on {data}"
        for key, (protocol, data) in protocols.items()
        if protocol in LABELED
    }


def _labeled(results: Json, names: Mapping[str, str]) -> tuple[LabeledScore, ...]:
    """Scores of these results that were measured for the untrained network too."""
    scores = []
    for key, name in names.items():
        result = results.get(key) or {}
        difference = (result.get("differences") or {}).get("untrained") or {}
        gain = difference.get("accuracy") or {}
        values = (result.get("accuracy"), result.get("untrained_accuracy"))
        ends = (gain.get("low"), gain.get("high"))
        found = [n for value in (*values, *ends) if (n := _number(value)) is not None]
        if len(found) == 4 and isinstance(result.get("n"), int):
            now, before, low, high = found
            scores.append(
                LabeledScore(
                    name=name,
                    accuracy=now,
                    untrained=before,
                    gain_low=low,
                    gain_high=high,
                    images=result["n"],
                    settings=_settings(result),
                )
            )
    return tuple(scores)


def _select_alike(
    scores: Sequence[LabeledScore], recipe: Json
) -> tuple[tuple[LabeledScore, ...], tuple[LabeledScore, ...]]:
    """Split the scores into those with the same images and transform, and the others.

    Scores at the image size of training are preferred, else those of kNN. Another size is named.
    """
    views = recipe.get("views") or [{}]
    trained = _number(views[0].get("size"))
    at_size = [s for s in scores if image_size(s.settings) in (None, trained)]
    first = (at_size or list(scores))[:1]
    sides: tuple[list[LabeledScore], list[LabeledScore]] = ([], [])
    for score in scores:
        size = image_size(score.settings)
        name = score.name if size in (None, trained) else f"{score.name} at {size:.0f} px"
        sides[not _are_alike(first[0].settings, score.settings)].append(replace(score, name=name))
    return tuple(sides[0]), tuple(sides[1])


def _are_alike(a: Json, b: Json) -> bool:
    """Whether results of these settings can be compared; missing settings of old files match."""
    return all(a[key] == b[key] for key in CONDITIONS if key in a and key in b)


def _settings(result: Json) -> Json:
    settings = result.get("settings")
    return settings if isinstance(settings, Mapping) else {}


def image_size(settings: Json) -> float | None:
    """Side of the images that an encoder saw, if the settings of a result say it."""
    transform = settings.get("transform")
    return _number(transform.get("size")) if isinstance(transform, Mapping) else None


def _ends(numbers: Any, low: str, high: str) -> tuple[float, float] | None:
    """The ends of an interval, if both are known."""
    if not isinstance(numbers, Mapping):
        return None
    ends = (_number(numbers.get(low)), _number(numbers.get(high)))
    return None if ends[0] is None or ends[1] is None else (ends[0], ends[1])


def _values(records: Sequence[Json], key: str) -> list[float]:
    """Finite values of one key, oldest first."""
    return [v for record in records if (v := _number(record.get(key))) is not None]


def _steps(events: Sequence[Json], kind: str) -> list[int]:
    """Steps of the events of one kind."""
    found = (_number(event.get("step")) for event in events if event.get("event") == kind)
    return [int(step) for step in found if step is not None]


def _current(records: Sequence[Json], key: str) -> float | None:
    """Median of the last few values, so that one unusual batch does not decide."""
    recent = _values(records, key)[-RECENT:]
    return median(recent) if recent else None


def _first(records: Sequence[Json], key: str) -> float | None:
    """Median of the first few values."""
    first = _values(records, key)[:RECENT]
    return median(first) if first else None


def _number(value: Any) -> float | None:
    """Convert to a finite float, or None for anything else."""
    return float(value) if is_finite(value) else None
