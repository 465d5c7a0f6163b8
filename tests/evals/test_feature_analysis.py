"""The analysis of features, from made images."""

import math
from dataclasses import fields
from pathlib import Path

import pytest
import torch
from torch import nn

from selfsight.data import read_batches
from selfsight.errors import UserError
from selfsight.evals import feature_statistics
from selfsight.evals.feature_analysis import EPOCH, AnalysisSettings, FeatureAnalysis
from selfsight.evals.feature_statistics import alignment, effective_rank
from selfsight.methods import METHODS
from selfsight.nn import Backbone, Encoder, Teacher
from selfsight.run_files.json_files import read_json
from selfsight.run_files.run_folder import Run
from selfsight.views import View
from tests.evals.small_networks import VIEWS, Means, bright, from_pixels
from tests.methods.small import Tiny, make

STILL = View(size=8, scale=(1.0, 1.0), ratio=(1.0, 1.0), flip=0.0, jitter_p=0.0, gray=0.0, blur=0.0)
NUMBERS = {
    "feature_std",
    "effective_rank",
    "lidar",
    "alpha",
    "alignment",
    "uniformity",
    "similarity",
    "variance",
}
BOUNDS = {
    "information_bound",
    "gradient_norm",
    "gradient_norm_std",
    "gradient_norm_bound",
    "gradient_norm_expected_bound",
}
SETTINGS = {field.name for field in fields(AnalysisSettings)}


def analysis(**given):
    settings = AnalysisSettings(**{"num_views": 4} | {k: given.pop(k) for k in SETTINGS & {*given}})
    return FeatureAnalysis(**{"images": bright(40), "views": VIEWS} | given, analysis=settings)


def encoder():
    torch.manual_seed(0)
    return Encoder(Tiny(), nn.Linear(12, 5))


def test_a_backbone_gives_its_own_numbers_and_a_student_its_projector_s_too():
    assert set(analysis()(Means())) == NUMBERS
    both = {*NUMBERS, *(f"projector_{name}" for name in NUMBERS), *BOUNDS}
    assert set(analysis(views=(View(size=16),))(encoder())) == both


@pytest.mark.parametrize("name", METHODS)
def test_a_whole_method_can_be_looked_at_and_is_left_as_it_was(name):
    method = make(name).train()
    before = {k: v.clone() for k, v in method.state_dict().items()}
    found = analysis(views=(View(size=16),), max_images=12)(method)
    assert all(math.isfinite(found[name]) for name in ("lidar", "projector_lidar", *BOUNDS))
    assert method.training
    assert all(torch.equal(v, before[k]) for k, v in method.state_dict().items())


def test_views_that_change_nothing_agree_wholly():
    found = analysis(views=(STILL,))(Means())
    assert found["similarity"] == pytest.approx(1) and found["variance"] == pytest.approx(0)
    assert found["alignment"] == pytest.approx(0, abs=1e-10)


def test_similarity_and_variance_keep_jcl_s_identity():
    for network, prefix, dim in ((Means(), "", 3), (encoder(), "projector_", 5)):
        found = analysis(views=(View(size=16),))(network)
        assert found[prefix + "similarity"] + dim * found[prefix + "variance"] == pytest.approx(1)


def test_numbers_are_the_pure_functions_of_the_rows():
    setting = analysis()
    embedded = setting.embed(Means())
    rows = embedded.backbone.rows
    assert rows.first.shape == (40, 3) and embedded.projector is None
    found = setting(Means())
    assert found["effective_rank"] == effective_rank(rows.first).item()
    assert found["alignment"] == alignment(rows.first, rows.second).item()


def test_keys_are_the_teacher_s():
    class Pair(nn.Module):
        def __init__(self):
            super().__init__()
            self.student = encoder()
            self.teacher = Teacher(self.student)
            nn.init.zeros_(self.teacher.net.projector.weight)

    setting = analysis(views=(View(size=16),))
    pair = Pair()
    rows = setting.embed(pair)
    torch.testing.assert_close(rows.keys, pair.teacher.net.projector.bias.expand_as(rows.keys))
    own = setting.embed(pair.student)
    torch.testing.assert_close(own.keys, own.projector.rows.second)


def test_numbers_depend_on_the_seed_and_not_on_the_batch():
    one, two = analysis(batch_size=7)(Means()), analysis(batch_size=40)(Means())
    assert one == pytest.approx(two, rel=1e-4, nan_ok=True)
    assert analysis(seed=1)(Means())["alignment"] != pytest.approx(one["alignment"], rel=1e-4)


def test_numbers_of_batches_are_those_of_all_views_at_once(monkeypatch):
    """Views are reduced in batches of 7 images, and pairs of images in blocks of 3 rows."""
    setting = analysis(views=(View(size=16),), num_negatives=(8, 39), batch_size=7)
    network = encoder()
    with monkeypatch.context() as patch:
        patch.setattr(feature_statistics, "MAX_ELEMENTS", 3 * 40)
        found = setting.measure(network)
    batch = [(EPOCH, setting._sample_index())]
    (raw,) = read_batches(setting.images, batch, torch.device("cpu"))
    with torch.no_grad():
        network.eval()
        z = torch.stack([network(x)[1] for x in setting._sample_views(raw)], dim=1).double()
    unit = torch.nn.functional.normalize(z, dim=2)
    # JCL: all pairs of views of each image, and the diagonal of its covariance.
    similarity = torch.stack([(rows @ rows.T).mean() for rows in unit])
    variance = torch.stack([torch.cov(rows.T, correction=0).diagonal().mean() for rows in unit])
    direct = {
        "projector_similarity": similarity.mean(),
        "projector_variance": variance.mean(),
        "projector_lidar": feature_statistics.lidar(z),
        "projector_uniformity": torch.pdist(unit[:, 0]).pow(2).mul(-2).exp().mean().log(),
    }
    for name, value in direct.items():
        assert found.numbers[name] == pytest.approx(value.item(), rel=1e-4), name
    whole = setting.measure(network)  # one block
    assert found.numbers == pytest.approx(whole.numbers, rel=1e-5)
    for one, other in zip(found.figures["gradients"], whole.figures["gradients"], strict=True):
        assert one | {"alpha": 0} == pytest.approx(other | {"alpha": 0}, rel=1e-5)


def test_memory_does_not_grow_with_images_times_views():
    """The rows that are kept have the size of four views in float32, however many there are."""
    embedded = analysis(num_views=12, batch_size=20).embed(Means())
    kept = [*embedded.backbone.rows, embedded.backbone.within]
    assert sum(x.untyped_storage().nbytes() for x in kept) == 4 * 40 * (4 * 3 + 2) + 8 * 3 * 3


def test_negatives_are_those_of_the_queue_up_to_its_size():
    method = make("moco")
    size = len(method.queue.keys)
    setting = analysis(views=(View(size=16),), num_negatives=(4, 65536), negatives="queue")
    found = setting.measure(method).figures["gradients"]
    assert [row["num_negatives"] for row in found] == [4, 4, size, size]
    settings = setting.settings(method)
    assert settings["num_negatives"] == [4, size]
    assert settings["notes"] == [f"The queue has {size} keys, not 65536."]
    # Once all keys of the queue are equal, more of them change nothing under EqCo's rule.
    method.queue.keys.copy_(method.queue.keys[:1].expand_as(method.queue.keys))
    _, few, _, all_of_them = setting.measure(method).figures["gradients"]
    assert few["mean"] == pytest.approx(all_of_them["mean"], rel=1e-4)
    with pytest.raises(UserError, match="needs a method with a queue"):
        setting.measure(encoder())


def test_gradients_of_kept_epochs_are_those_of_the_networks_alone(tmp_path):
    setting, run = analysis(views=(View(size=16),), num_negatives=(4,)), Run(Path(tmp_path))
    first, second = make("moco"), make("simo")
    setting.write(run, first, kept=[(1, second), (5, first)])
    figures = read_json(run.images / "analysis.json")
    assert [record["epoch"] for record in figures["epochs"]] == [1, 5]
    assert figures["epochs"][0]["gradients"] == setting.measure(second).figures["gradients"]
    assert figures["epochs"][1]["gradients"] == figures["gradients"]


def test_fewer_negatives_than_were_asked_for_are_said():
    assert "notes" not in analysis(num_negatives=(39,)).settings()
    settings = analysis(num_negatives=(8, 65536)).settings()
    assert settings["num_negatives"] == [8, 39]
    assert "40 images have 39 negatives each, not 65536" in settings["notes"][0]


def test_results_and_figures_are_written(tmp_path):
    run = Run(Path(tmp_path))
    numbers = analysis(views=(View(size=16),), num_negatives=(8, 500)).write(run, encoder())
    saved = run.result("analysis")
    assert saved["lidar"] == numbers["lidar"]
    assert saved["settings"]["num_negatives"] == [8, 39]
    figures = read_json(run.images / "analysis.json")
    assert sum(figures["projector"]["similarity"]["counts"]) == 40
    rows = [(g["num_negatives"], g["alpha"]) for g in figures["gradients"]]
    assert rows == [(8, None), (8, 65536.0), (39, None), (39, 65536.0)]
    assert all(g["mean"] <= g["bound"] for g in figures["gradients"])


def test_a_number_that_does_not_exist_is_written_as_none(tmp_path):
    run = Run(Path(tmp_path))
    analysis().write(run, Means())  # three directions have no decay from the third on
    assert run.result("analysis")["alpha"] is None


def in_processes(count):
    torch.manual_seed(0)

    class Net(Backbone):
        dim = 16

        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Flatten(), nn.Linear(192, 16))

        def forward(self, x):
            return self.net(x)

    return FeatureAnalysis(
        images=bright(count),
        views=VIEWS,
        analysis=AnalysisSettings(num_views=3),
        batch_size=4,
        distributed=True,
    )(Net())


@pytest.mark.parametrize("count", [10, 13])
def test_two_processes_find_what_one_finds(count, two_processes):
    alone = in_processes(count)
    for found in two_processes(in_processes, count):
        assert found == pytest.approx(alone, rel=1e-5)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"images": from_pixels(torch.zeros(1, 3, 4, 4, dtype=torch.uint8))}, "1 images"),
        ({"num_views": 1}, "num_views is 1"),
        ({"temperature": 0.0}, "temperature is 0.0"),
    ],
)
def test_what_cannot_be_analyzed_is_a_sentence(settings, message):
    with pytest.raises(UserError, match=message):
        analysis(**settings)


@pytest.mark.gpu
def test_a_gpu_finds_what_the_cpu_finds():
    setting = analysis(views=(View(size=16),))
    here, there = setting(encoder()), setting(encoder().cuda())
    assert there == pytest.approx(here, rel=1e-2, abs=1e-3)
