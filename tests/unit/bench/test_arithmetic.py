import pytest

from bench.arithmetic import compare, cpu_per_unit


def test_cpu_per_unit_is_in_microseconds() -> None:
    assert cpu_per_unit(1.0, 1.5, 1000) == pytest.approx(500)


def test_nothing_done_has_no_cost_per_unit() -> None:
    with pytest.raises(ValueError, match="nothing was done"):
        cpu_per_unit(1.0, 1.5, 0)


def test_the_ratio_is_of_medians_and_its_range_the_middle_half() -> None:
    found = compare([100.0, 200.0, 300.0, 400.0, 1000.0], [100.0] * 5)
    assert (found.median, found.fastest, found.slowest) == (300.0, 100.0, 1000.0)
    assert found.ratio == pytest.approx(3.0)
    assert found.low == pytest.approx(2.0)
    assert found.high == pytest.approx(4.0)


def test_the_range_pairs_what_ran_together() -> None:
    found = compare([200.0, 900.0, 2000.0], [100.0, 450.0, 1000.0])
    assert found.low == found.high == pytest.approx(2.0)


def test_a_single_repetition_is_its_own_range() -> None:
    found = compare([300.0], [100.0])
    assert found.low == found.ratio == found.high == pytest.approx(3.0)


def test_one_disturbed_repetition_moves_no_median() -> None:
    assert compare([200.0, 200.0, 9000.0], [100.0, 100.0, 100.0]).ratio == pytest.approx(2.0)


def test_repetitions_must_pair_up() -> None:
    with pytest.raises(ValueError, match="zip"):
        compare([1.0, 2.0], [1.0])
