import pytest
import torch
from torch import nn

from sightline.evals.baselines import baselines
from sightline.evals.features import features
from sightline.evals.knn import KNN
from sightline.evals.label_free import LabelFree
from sightline.evals.linear import Linear
from sightline.evals.pictures import write_map, write_neighbours, write_views
from sightline.evals.splits import stratified
from sightline.runs import Run
from tests.evals.small import SPEC, VIEWS, Means, bright

pytestmark = pytest.mark.gpu


@pytest.fixture
def backbone():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 12, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten())


@pytest.mark.parametrize("resident", [True, False])
def test_evaluators_say_the_same_on_either_device(backbone, resident):
    here = bright(60)
    there = here.to("cuda") if resident else here
    split = stratified(here.labels)
    for evaluator in (KNN, Linear):
        expected = evaluator(train=here, spec=SPEC, split=split)(backbone.cpu())
        found = evaluator(train=there, spec=SPEC, split=split)(backbone.cuda())
        assert found == pytest.approx(expected, abs=0.01)
    expected = LabelFree(pictures=here, views=VIEWS)(backbone.cpu())
    found = LabelFree(pictures=there, views=VIEWS)(backbone.cuda())
    assert found == pytest.approx(expected, rel=0.02, abs=0.02)
    expected = baselines(KNN(train=here, spec=SPEC, split=split), Means())
    found = baselines(KNN(train=there, spec=SPEC, split=split), Means().cuda())
    assert found == pytest.approx(expected, abs=0.01)


def test_sheets_are_written_from_features_on_the_device(backbone, tmp_path):
    pictures, run = bright(30).to("cuda"), Run(tmp_path)
    found = features(backbone.cuda(), pictures, SPEC)
    assert found.h.is_cuda
    write_views(run, pictures, VIEWS, seed=0)
    write_map(run, pictures, found)
    write_neighbours(run, pictures, found)
    assert len(run.picture_json("map")["points"]) == 30
    assert len(run.picture_json("neighbours")["rows"]) == 12
    assert len(run.picture_json("views")["rows"]) == 8
