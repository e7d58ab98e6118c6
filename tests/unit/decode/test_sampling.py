import torch

from xpress_exp.decode import random_stream, sample_token

CPU = torch.device("cpu")


def test_temperature_zero_is_argmax_with_the_lowest_index_on_ties() -> None:
    logits = torch.tensor([[0.0, 2.0, 2.0], [5.0, -1.0, 1.0]])
    assert sample_token(logits, 0.0, None).tolist() == [1, 0]


def test_frequencies_follow_the_tempered_softmax() -> None:
    logits, temperature, count = torch.tensor([0.0, 1.0, 2.0]), 0.5, 20_000
    drawn = sample_token(logits.expand(count, 3), temperature, random_stream(CPU, "frequencies"))
    law = torch.softmax(logits.double() / temperature, -1)
    seen = torch.bincount(drawn, minlength=3).double()
    chi_square = float(((seen - count * law) ** 2 / (count * law)).sum())
    assert chi_square < 20.7  # 2 degrees of freedom, tail probability 3e-5


def test_stream_depends_on_its_key_only() -> None:
    def draw(*key: object) -> list[float]:
        return torch.rand(4, generator=random_stream(CPU, *key)).tolist()

    first = draw(0, "prompt", 1.0, "arm")
    torch.manual_seed(99)
    assert draw(0, "prompt", 1.0, "arm") == first
    others = [
        draw(1, "prompt", 1.0, "arm"),
        draw(0, "prompt", 1.0, "arms"),
        draw(0, "p", 1.0, "arm"),
    ]
    assert all(other != first for other in others)
    assert draw("ab", "c") != draw("a", "bc")
