import pytest

from bench.arithmetic import compare, cpu_per_unit


def test_cpu_per_unit_is_in_microseconds() -> None:
    assert cpu_per_unit(1.0, 1.5, 1000) == pytest.approx(500)


def test_nothing_done_has_no_cost_per_unit() -> None:
    with pytest.raises(ValueError, match="nothing was done"):
        cpu_per_unit(1.0, 1.5, 0)


def test_the_ratio_is_of_medians_and_its_range_of_single_repetitions() -> None:
    found = compare([200.0, 900.0, 330.0], [100.0, 300.0, 110.0])
    assert (found.median, found.fastest, found.slowest) == (330.0, 200.0, 900.0)
    assert found.ratio == pytest.approx(3.0)
    assert found.lowest == pytest.approx(2.0)
    assert found.highest == pytest.approx(3.0)


def test_one_disturbed_repetition_moves_no_median() -> None:
    assert compare([200.0, 200.0, 9000.0], [100.0, 100.0, 100.0]).ratio == pytest.approx(2.0)


def test_repetitions_must_pair_up() -> None:
    with pytest.raises(ValueError, match="zip"):
        compare([1.0, 2.0], [1.0])
