"""What a decoder has committed so far, and when it must stop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field


@dataclass
class Output:
    """Committed tokens of one prompt under the stop rules: the first stop token is kept and
    everything after it cut; never more than `limit` tokens, the prefill's token included.

    watch is called with all tokens after each one and ends the output by returning True.
    """

    limit: int
    stop_token_ids: frozenset[int]
    tokens: list[int] = field(default_factory=list)
    watch: Callable[[Sequence[int]], bool] | None = None
    ended: bool = False

    def commit(self, tokens: Sequence[int]) -> int:
        """Append what the rules allow of `tokens`; returns how many entered."""
        before = len(self.tokens)
        for token in tokens:
            if self.finished:
                break
            self.tokens.append(token)
            if self.watch is not None and self.watch(self.tokens):
                self.ended = True
        return len(self.tokens) - before

    @property
    def stopped(self) -> bool:
        """Whether the last token is a stop token, or `watch` ended the output."""
        return self.ended or (bool(self.tokens) and self.tokens[-1] in self.stop_token_ids)

    @property
    def finished(self) -> bool:
        """Whether nothing more may be committed."""
        return self.stopped or len(self.tokens) >= self.limit
