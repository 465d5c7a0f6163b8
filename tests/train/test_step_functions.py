from tests.train.count_functions import count


def test_a_step_of_moco_runs_through_at_most_50_functions_in_23_files():
    """Numbers for docs/architecture.md; raise the limits only with a reason."""
    _, functions = next(count("moco.cifar10_r18_200ep"))
    assert 30 < len(functions) <= 50
    assert len({file for file, _ in functions}) <= 23
