"""Retrieval against scikit-learn's average precision, image by image."""

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score
from sklearn.metrics.pairwise import cosine_similarity

from selfsight.errors import UserError
from selfsight.evals.retrieval import Retrieval, average_precision, rank_bank
from selfsight.evals.stratified_splits import Split, stratified
from tests.evals.small_networks import Means, bright, labeled
from tests.evals.test_knn import clouds


@pytest.mark.parametrize("chunk", [None, 7])
def test_each_query_has_the_average_precision_of_scikit_learn(chunk):
    (bank, bank_y), (queries, y) = clouds(120), clouds(50, seed=1)
    found, first_k = rank_bank(bank, bank_y, queries, y, ks=(1, 10), chunk=chunk)
    similarity = cosine_similarity(queries, bank)
    for i in range(50):
        relevant = (bank_y == y[i]).numpy()
        assert found[i].item() == pytest.approx(average_precision_score(relevant, similarity[i]))
        nearest = np.argsort(-similarity[i])[:10]
        assert first_k[0, i] == relevant[nearest[0]]
        assert first_k[1, i].item() == pytest.approx(relevant[nearest].mean())


def test_equal_similarities_count_as_in_scikit_learn():
    generator = torch.Generator().manual_seed(0)
    similarity = torch.randint(0, 5, (20, 40), generator=generator).float()
    relevant = torch.randint(0, 3, (20, 40), generator=generator) == 0
    found, _ = average_precision(similarity, relevant)
    expected = [average_precision_score(r, s) for r, s in zip(relevant, similarity, strict=True)]
    assert found.tolist() == pytest.approx(expected)


def test_leave_one_out_ranks_the_others():
    bank, y = clouds(60)
    found, _ = rank_bank(bank, y, bank, y, leave_one_out=True)
    for i in range(60):
        others = torch.arange(60) != i
        alone, _ = rank_bank(bank[others], y[others], bank[i : i + 1], y[i : i + 1])
        assert found[i].item() == pytest.approx(alone.item())


def test_a_collapsed_or_diverged_network_gets_the_share_of_the_class():
    _, y = clouds(100)
    for h in (torch.ones(100, 4), torch.full((100, 4), torch.nan)):
        found, _ = rank_bank(h, y, h[:10], y[:10])
        expected = [(y == y[i]).double().mean().item() for i in range(10)]
        assert found.tolist() == pytest.approx(expected)


def test_the_evaluator_scores_test_images_and_says_what_it_leaves_out():
    images = bright(60)
    found = Retrieval(data=labeled(images, split=stratified(images.labels)))
    scores = found(Means())
    assert (scores["map"], scores["precision_at_1"], scores["n"]) == (1.0, 1.0, 12)
    assert "precision_at_200" not in scores
    assert found.settings()["notes"] == ["Retrieval without k = 200: only 48 images are ranked."]
    alone = Retrieval(data=labeled(images), ks=(1,))(Means())
    assert (alone["map"], alone["n"]) == (1.0, 60)


def test_a_class_without_training_images_is_left_out():
    images = bright(9)
    first_two = (images.labels < 2).nonzero()[:, 0]
    split = Split(first_two, torch.arange(9))
    found = Retrieval(data=labeled(images, split=split), ks=(1,))
    assert "3 test images have no training image" in found.settings()["notes"][0]
    assert found(Means())["n"] == 6
    only = Split(torch.tensor([0, 1]), torch.tensor([2, 5]))
    with pytest.raises(UserError, match="nothing to retrieve"):
        Retrieval(data=labeled(images, split=only))


def test_with_each_image_left_out_the_only_one_of_a_class_is_not_scored():
    images = bright(4)  # of the classes 0, 1, 2 and 0
    found = Retrieval(data=labeled(images), ks=(1, 3, 4))
    scores = found(Means())
    assert (scores["map"], scores["precision_at_1"], scores["n"]) == (1.0, 1.0, 2)
    assert scores["precision_at_3"] == pytest.approx(1 / 3)
    assert found.effective_ks == (1, 3) and found.settings()["notes"] == [
        "Retrieval without k = 4: only 3 images are ranked.",
        "2 test images have no training image of their class: left out.",
    ]
