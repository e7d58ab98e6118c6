import pytest

from xpress_exp.decode.output import Output


@pytest.mark.parametrize(
    ("tokens", "kept", "stopped"),
    [
        ([5, 6], [5, 6], False),
        ([5, 2, 6], [5, 2], True),
        ([2, 2], [2], True),
        ([5, 6, 7, 8, 9], [5, 6, 7, 8], False),
        ([5, 6, 7, 2, 9], [5, 6, 7, 2], True),
        ([5, 6, 7, 8, 2], [5, 6, 7, 8], False),
    ],
)
def test_commit_keeps_the_first_stop_token_and_the_limit(
    tokens: list[int], kept: list[int], stopped: bool
) -> None:
    output = Output(limit=4, stop_token_ids=frozenset({2}))
    assert output.commit(tokens) == len(kept)
    assert output.tokens == kept
    assert output.stopped is stopped
    assert output.finished is (stopped or len(kept) == 4)


def test_a_finished_output_takes_nothing_more() -> None:
    output = Output(limit=4, stop_token_ids=frozenset({2}))
    output.commit([2])
    assert output.commit([5]) == 0
    assert output.tokens == [2]
