import numpy as np
import pytest
import torch
from sklearn.neighbors import KNeighborsClassifier
from torch import nn

from selfsight.errors import UserError
from selfsight.evals.knn import KNN, knn_predict, nearest_neighbors
from selfsight.evals.linear_lbfgs import LinearProbe
from selfsight.evals.stratified_splits import stratified
from selfsight.terminal import progress
from tests.evals.small_networks import Means, bright, labeled


def predict(bank, y, queries, *, k, **settings):
    """The predictions for a single k."""
    return knn_predict(bank, y, queries, ks=(k,), **settings)[k]


def accuracy(guesses, y):
    return (guesses == y).double().mean().item()


def clouds(n, *, classes=5, dim=8, noise=1.5, seed=0):
    """Overlapping classes, so that some guesses are wrong."""
    center = torch.randn(classes, dim, generator=torch.Generator().manual_seed(99))
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, classes, (n,), generator=g)
    return center[y] + noise * torch.randn(n, dim, generator=g), y


@pytest.mark.parametrize("k", [1, 5, 20, 200])
@pytest.mark.parametrize("temperature", [0.07, 0.5])
def test_guesses_are_those_of_scikit_learn(k, temperature):
    bank, bank_y = clouds(300)
    queries, _ = clouds(200, seed=1)
    bank, queries = bank.double(), queries.double()

    def votes(distance):
        return np.exp((1 - distance) / temperature)

    judge = KNeighborsClassifier(k, metric="cosine", weights=votes, algorithm="brute")
    expected = judge.fit(bank.numpy(), bank_y.numpy()).predict(queries.numpy())
    found = predict(bank, bank_y, queries, k=k, temperature=temperature)
    assert found.tolist() == expected.tolist()
    assert 0.3 < accuracy(found, clouds(200, seed=1)[1]) < 0.9  # neither trivial nor noise


def test_leave_one_out_is_each_row_against_the_others():
    bank, y = clouds(60)
    found = predict(bank, y, bank, k=7, leave_one_out=True)
    for i in range(60):
        others = torch.arange(60) != i
        alone = predict(bank[others], y[others], bank[i : i + 1], k=7)
        assert found[i] == alone[0]


@pytest.mark.parametrize("chunk", [1, 7, 1000])
def test_guesses_do_not_depend_on_the_chunk(chunk):
    bank, y = clouds(100)
    queries, _ = clouds(50, seed=1)
    whole = predict(bank, y, queries, k=9)
    assert torch.equal(predict(bank, y, queries, k=9, chunk=chunk), whole)


def test_only_directions_count():
    bank, y = clouds(100)
    queries, _ = clouds(50, seed=1)
    scale = torch.rand(100, 1) + 0.1
    assert torch.equal(predict(scale * bank, y, 9 * queries, k=9), predict(bank, y, queries, k=9))


def test_equal_neighbors_are_taken_from_the_front():
    bank = torch.eye(4)[[0, 1, 0, 0, 1, 0]]
    query = torch.eye(4)[:1]
    for k, rows in ((1, [0]), (2, [0, 2]), (3, [0, 2, 3]), (5, [0, 2, 3, 5, 1])):
        values, found = nearest_neighbors(bank, query, k=k)
        assert found.tolist() == [rows]
        assert values.tolist() == [[1.0] * min(k, 4) + [0.0] * max(0, k - 4)]


def test_many_equals_do_not_fool_the_border():
    bank = torch.ones(5000, 4)
    _, found = nearest_neighbors(bank, bank[:3], k=4)
    assert found.tolist() == [[0, 1, 2, 3]] * 3


def test_equal_votes_go_to_the_lowest_class():
    bank = torch.tensor([[1.0, 0.1], [1.0, -0.1], [1.0, 0.1], [1.0, -0.1]])
    for labels in ([2, 1, 1, 2], [1, 2, 2, 1]):
        guess = predict(bank, torch.tensor(labels), torch.tensor([[1.0, 0.0]]), k=4)
        assert guess.tolist() == [1]


def test_a_low_temperature_does_not_overflow():
    bank, y = clouds(50)
    queries, _ = clouds(20, seed=1)
    nearest = predict(bank, y, queries, k=1)
    assert torch.equal(predict(bank, y, queries, k=20, temperature=1e-4), nearest)


def test_a_diverged_network_scores_as_one_that_knows_nothing():
    y = torch.tensor([0, 1, 2, 3] * 5)
    lost = torch.full((20, 3), torch.nan)
    assert accuracy(predict(lost, y, lost, k=4, leave_one_out=True), y) <= 0.3


def test_k_must_fit_the_bank():
    bank, y = clouds(10)
    with pytest.raises(UserError, match="k is 11, but only 10"):
        predict(bank, y, bank, k=11)
    with pytest.raises(UserError, match="k is 10, but only 9"):
        predict(bank, y, bank, k=10, leave_one_out=True)


def test_evaluator_is_the_function_on_the_features():
    train, test = bright(60), bright(30, seed=1)
    evaluator = KNN(data=labeled(train, test=test), ks=(5,))
    backbone = Means()
    assert evaluator(backbone)["accuracy"] == 1.0  # brightness of channels is all there is
    blind = nn.Sequential(nn.Flatten(), nn.Linear(192, 4))
    nn.init.zeros_(blind[1].weight)
    assert evaluator(blind)["accuracy"] == pytest.approx(1 / 3)


def test_evaluator_without_a_test_set_leaves_each_image_out():
    # Twins of opposite classes: an image that could vote for itself would be right.
    pixels = bright(20, classes=2)
    evaluator = KNN(data=labeled(pixels), ks=(1,))
    features, none = evaluator.data.features(Means())
    assert none is None
    twins = features._replace(h=torch.eye(20)[torch.arange(20) // 2])
    assert evaluator.score(twins, None)["accuracy"] == 0.0


def test_evaluator_with_a_split_scores_its_test_side():
    images = bright(60)
    split = stratified(images.labels)
    evaluator = KNN(data=labeled(images, split=split), ks=(3,))
    train, test = evaluator.data.features(Means())
    assert len(train.h) == 48
    assert len(test.h) == 12
    found = evaluator(Means())
    assert (found["accuracy"], found["accuracy_k3"], found["n"]) == (1.0, 1.0, 12)


def test_a_k_without_enough_voters_is_left_out_with_a_note():
    few = KNN(data=labeled(bright(9)))
    assert few.settings()["k"] == [8]
    assert "without k = 20 and 200: only 8" in few.settings()["note"]
    assert few(Means())["accuracy_k8"] == 1.0
    some = KNN(data=labeled(bright(60)))
    assert some.settings()["k"] == [20]
    assert set(some(Means())["per_image"].values) == {"accuracy", "accuracy_k20"}
    assert "note" not in KNN(data=labeled(bright(60)), ks=(20,)).settings()


def test_several_k_at_once_are_each_alone():
    bank, y = clouds(100)
    queries, _ = clouds(50, seed=1)
    together = knn_predict(bank, y, queries, ks=(20, 1, 7))
    for k, guesses in together.items():
        assert torch.equal(guesses, predict(bank, y, queries, k=k))


def test_the_first_k_gives_the_accuracy():
    data = labeled(bright(60, classes=6), split=stratified(bright(60, classes=6).labels))
    found = KNN(data=data, ks=(48, 2), temperature=1e9)(Means())  # all vote, and alike
    assert found["accuracy"] == found["accuracy_k48"] != found["accuracy_k2"]


def test_shuffled_labels_give_chance():
    bank, y = clouds(1000)
    queries, query_y = clouds(2000, seed=1)
    order = torch.randperm(1000, generator=torch.Generator().manual_seed(0))
    guesses = predict(bank, y[order], queries, k=20)
    assert accuracy(guesses, query_y) == pytest.approx(0.2, abs=0.05)


@pytest.mark.parametrize("settings", [{"ks": ()}, {"ks": (0,)}, {"temperature": 0.0}])
def test_settings_without_meaning_are_refused(settings):
    with pytest.raises(UserError, match=r"k is|temperature is"):
        KNN(data=labeled(bright()), **settings)


def test_long_votes_and_long_solutions_show_their_progress(monkeypatch, capsys):
    monkeypatch.setattr(progress, "DELAY", 0.0)
    monkeypatch.setattr(progress, "LINE_EVERY", 0.0)
    h, y = clouds(40)
    data = labeled(bright(60), test=bright(30, seed=1), progress=True)
    KNN(data=data, ks=(3,))(Means())
    LinearProbe(data=data)(Means())
    told = capsys.readouterr().err
    assert "neighbors: 1/1, 0 s left" in told
    assert "linear probe, at most: 1/1000" in told
    knn_predict(h, y, h, ks=(1,), chunk=10, progress="votes")
    assert "votes: 4/4, 0 s left" in capsys.readouterr().err


@pytest.mark.parametrize("leave_one_out", [False, True])
def test_blocks_of_the_bank_give_the_neighbors_of_the_whole(monkeypatch, leave_one_out):
    """Few directions, so that many rows tie within blocks and across them."""
    g = torch.Generator().manual_seed(0)
    bank = torch.randint(0, 2, (101, 6), generator=g).double()
    y = torch.randint(0, 5, (101,), generator=g)
    queries = bank if leave_one_out else torch.randint(0, 2, (40, 6), generator=g).double()
    settings = {"ks": (1, 7, 30), "leave_one_out": leave_one_out, "chunk": 9}
    whole = knn_predict(bank, y, queries, **settings)
    similarity = torch.nn.functional.normalize(queries) @ torch.nn.functional.normalize(bank).T
    if leave_one_out:
        similarity.fill_diagonal_(-torch.inf)
    order = similarity.nan_to_num(0).sort(dim=1, descending=True, stable=True)
    for block in (4, 25, 64, 200):
        monkeypatch.setattr("selfsight.evals.knn.BLOCK", block)
        found = knn_predict(bank, y, queries, **settings)
        for k in settings["ks"]:
            assert torch.equal(found[k], whole[k])
            votes = torch.zeros(len(queries), 5).double()
            weights = ((order.values[:, :k] - order.values[:, :1]) / 0.07).exp()
            votes.scatter_add_(1, y[order.indices[:, :k]], weights)
            assert torch.equal(found[k], votes.argmax(dim=1))
