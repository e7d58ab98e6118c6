import math
from fractions import Fraction

import numpy as np
import pytest

from xpress_exp.metric.bootstrap import divide, ratio_interval


def binomial_quantile(count: int, share: Fraction, level: float) -> int:
    """Smallest k with P(Binomial(count, share) <= k) >= level."""
    total = Fraction(0)
    for k in range(count + 1):
        total += math.comb(count, k) * share**k * (1 - share) ** (count - k)
        if float(total) >= level:
            return k
    return count


@pytest.mark.parametrize(("ones", "count"), [(10, 40), (30, 40), (5, 20)])
def test_zero_one_data_has_binomial_quantiles(ones: int, count: int) -> None:
    # The bootstrap law of the sum of zero-one data is exactly Binomial(n, ones / n).
    interval = ratio_interval([1.0] * ones + [0.0] * (count - ones), [1.0] * count)
    share = Fraction(ones, count)
    assert interval.low * count == pytest.approx(binomial_quantile(count, share, 0.025), abs=1)
    assert interval.high * count == pytest.approx(binomial_quantile(count, share, 0.975), abs=1)


def test_coverage_of_a_known_mean() -> None:
    generator, covered, trials = np.random.default_rng(0), 0, 200
    for _ in range(trials):
        interval = ratio_interval(generator.normal(3.0, 1.0, 40).tolist(), [1.0] * 40)
        covered += interval.low <= 3.0 <= interval.high
    # 95 % nominal; the percentile interval of 40 values covers about 94 %.
    assert 0.88 <= covered / trials <= 0.99


def test_same_data_same_interval_other_seed_another() -> None:
    values = [math.sqrt(prime) for prime in (2, 3, 5, 7, 11, 13, 17, 19, 23, 29)]
    first = ratio_interval(values, [1.0] * 10)
    assert ratio_interval(values, [1.0] * 10) == first
    assert ratio_interval(values, [1.0] * 10, seed=1) != first


def test_resamples_without_denominator_are_left_out() -> None:
    interval = ratio_interval([0.0, 4.0], [0.0, 2.0])
    assert (interval.low, interval.high) == (2.0, 2.0)
    assert math.isnan(ratio_interval([0.0, 0.0], [0.0, 0.0]).low)


def test_division_by_zero_is_nan() -> None:
    result = divide(np.array([1.0, 0.0, 6.0]), np.array([0.0, 0.0, 3.0]))
    assert np.isnan(result[:2]).all()
    assert result[2] == 2.0
