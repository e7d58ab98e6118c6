"""Temperature, top-k and top-p against Transformers' own processors and by hand."""

from __future__ import annotations

import pytest
import torch
from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from xpress_exp.law import ALL_TOKENS, Truncation, probabilities, processed

INF = float("inf")


def warped(logits: torch.Tensor, temperature: float, truncation: Truncation) -> torch.Tensor:
    """Transformers' chain, in the order of its generate."""
    rows = TemperatureLogitsWarper(temperature)(None, logits.flatten(0, -2))
    if truncation.top_k is not None:
        rows = TopKLogitsWarper(truncation.top_k)(None, rows)
    if truncation.top_p is not None:
        rows = TopPLogitsWarper(truncation.top_p)(None, rows)
    return rows.reshape(logits.shape)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("top_k", [None, 1, 3, 20, 99])
@pytest.mark.parametrize("top_p", [None, 0.05, 0.5, 0.9, 0.999])
def test_equal_to_transformers(dtype: torch.dtype, top_k: int, top_p: float) -> None:
    draw = torch.Generator().manual_seed(1)
    logits = 3 * torch.randn(2, 40, 20, generator=draw, dtype=dtype)
    truncation = Truncation(top_k, top_p)
    for temperature in (0.3, 1.0, 1.7):
        found = processed(logits, temperature, truncation)
        torch.testing.assert_close(found, warped(logits, temperature, truncation), rtol=0, atol=0)
        assert bool(found.isfinite().any(-1).all())
        # Every row has equal logits now. Which of them stay is left to an unstable sort there; how
        # many do must agree.
        tied = logits.round()
        found, expected = (f(tied, temperature, truncation) for f in (processed, warped))
        torch.testing.assert_close(found.sort(-1).values, expected.sort(-1).values, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("logits", "truncation", "kept"),
    [
        ([1.0, 3.0, 3.0, 0.0], Truncation(1), [1, 2]),  # ties with the k-th stay
        ([1.0, 3.0, 2.0, 0.0], Truncation(2), [1, 2]),
        ([0.0, 0.0, 0.0, 0.0], Truncation(None, 0.5), [2, 3]),  # of equal ones the higher ids
        ([9.0, 0.0, 0.0, 0.0], Truncation(None, 1e-9), [0]),  # never nothing
        # softmax .5 .25 .125 .125: .5 and .25 hold .75, not yet .8
        ([4.0, 3.0, 2.0, 2.0], Truncation(None, 0.8), [0, 1, 3]),
        # top-k first: of .4 .3 .2 .1 the best three become .444 .333 .222, and two hold .7
        ([4.0, 3.0, 2.0, 1.0], Truncation(3, 0.7), [0, 1]),
        ([4.0, 3.0, 2.0, 1.0], Truncation(None, 0.7), [0, 1]),
        ([4.0, 3.0, 2.0, 1.0], Truncation(None, 0.75), [0, 1, 2]),
        ([4.0, 3.0, 2.0, 1.0], Truncation(3, 0.75), [0, 1]),
        ([-INF, 3.0, -INF, 1.0], Truncation(3), [1, 3]),
    ],
)
def test_what_stays_by_hand(logits: list[float], truncation: Truncation, kept: list[int]) -> None:
    if truncation.top_p is not None and logits[0] == 4.0:
        shares = [0.5, 0.25, 0.125, 0.125] if logits[2:] == [2.0, 2.0] else [0.4, 0.3, 0.2, 0.1]
        logits = torch.tensor(shares).log().tolist()
    law = probabilities(torch.tensor(logits), 1.0, truncation)
    assert law.nonzero()[:, 0].tolist() == kept
    assert float(law.sum()) == pytest.approx(1.0)
    whole = torch.tensor(logits).softmax(-1)[kept]
    torch.testing.assert_close(law[kept], whole / whole.sum())


def test_the_temperature_comes_first() -> None:
    """At temperature 2 the mass spreads, so that top-p keeps more."""
    logits = torch.tensor([[3.0, 1.0, 0.0]])
    kept = [int((probabilities(logits, t, Truncation(None, 0.8)) > 0).sum()) for t in (1.0, 2.0)]
    assert kept == [1, 2]


def test_a_row_is_processed_alike_in_any_batch() -> None:
    """Plain decoding sees one row where verification sees a block."""
    logits = torch.randint(3, (64, 50), generator=torch.Generator().manual_seed(2)).float()
    for truncation in (Truncation(5, 0.5), Truncation(None, 0.3)):
        together = processed(logits[None], 0.9, truncation)[0]
        for row, alone in zip(together, logits, strict=True):
            assert torch.equal(row, processed(alone, 0.9, truncation))


def test_temperature_zero_leaves_the_logits_alone() -> None:
    logits = torch.tensor([[1.0, 2.0, 2.0]])
    assert torch.equal(processed(logits, 0.0, Truncation(1, 0.1)), logits)


def test_half_precision_is_widened_and_double_kept() -> None:
    logits = torch.tensor([[1.0, 2.0]])
    assert processed(logits.bfloat16(), 0.7, ALL_TOKENS).dtype == torch.float32
    assert probabilities(logits.double(), 0.7).dtype == torch.float64


@pytest.mark.parametrize(
    ("top_k", "top_p", "told"),
    [
        (0, None, r"top_k=0 keeps no token"),
        (None, 0.0, r"top_p=0.0 must"),
        (None, 1.0, "top_p=1.0"),
    ],
)
def test_values_out_of_range_are_refused(top_k: int, top_p: float, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        Truncation(top_k, top_p)
