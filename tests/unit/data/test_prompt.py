"""The prompt generator: counts, determinism, split hygiene and surface grammar."""

from __future__ import annotations

import collections
import functools
import hashlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from xpress_exp.data import prompt as prompt_module
from xpress_exp.data.prompt import MAX_PER_FAMILY, families, generate, max_prompts, num_families

SPLITS = ("train", "heldout")
SOURCE = Path(prompt_module.__file__).resolve().parents[2]


@functools.cache
def _everything() -> tuple[prompt_module.Prompt, ...]:
    return tuple(p for split in SPLITS for p in generate(split, max_prompts(split), 0))


def test_family_counts_meet_the_promised_minimum() -> None:
    assert num_families() >= 72
    assert num_families("train") >= 60
    assert num_families("heldout") >= 12
    assert num_families("train") + num_families("heldout") == num_families()
    per_domain = collections.Counter(f.domain for f in families())
    assert set(per_domain) == {"math", "code", "chat"}
    assert min(per_domain.values()) >= 24
    held = collections.Counter(f.domain for f in families("heldout"))
    assert all(held[domain] >= 4 for domain in per_domain)


def test_family_keys_are_unique_and_never_in_both_splits() -> None:
    keys = [(f.domain, f.name) for f in families()]
    assert len(keys) == len(set(keys))
    train = {f.name for f in families("train")}
    assert train.isdisjoint(f.name for f in families("heldout"))


def test_every_family_has_several_distinct_phrasings() -> None:
    for family in families():
        assert 2 <= len(set(family.variants)) <= 4, family.name
        assert len(set(family.variants)) == len(family.variants), family.name


@pytest.mark.parametrize("seed", [0, 7])
def test_large_train_request_is_distinct_and_balanced(seed: int) -> None:
    prompts = generate("train", 3200, seed)
    assert len({p.text for p in prompts}) == 3200
    assert len({p.id for p in prompts}) == 3200
    assert {p.split for p in prompts} == {"train"}
    for size in (100, 257, 3200):
        counts = collections.Counter((p.domain, p.family) for p in prompts[:size])
        assert max(counts.values()) <= 0.03 * size, size
        domains = collections.Counter(p.domain for p in prompts[:size])
        assert max(domains.values()) - min(domains.values()) <= 1, size


@pytest.mark.parametrize("seed", [0, 1, 123456789])
@pytest.mark.parametrize("split", SPLITS)
def test_the_stated_maximum_is_reachable(split: str, seed: int) -> None:
    prompts = generate(split, max_prompts(split), seed)
    assert len({p.text for p in prompts}) == max_prompts(split)
    per_family = collections.Counter((p.domain, p.family) for p in prompts)
    assert len(per_family) == num_families(split)
    assert max(per_family.values()) <= MAX_PER_FAMILY


@pytest.mark.parametrize("split", SPLITS)
def test_a_short_request_is_a_prefix_of_a_long_one(split: str) -> None:
    long = generate(split, 900, 5)
    for size in (0, 1, 2, 50, 899):
        assert generate(split, size, 5) == long[:size]


def test_seeds_give_different_prompts() -> None:
    one = {p.text for p in generate("train", 600, 1)}
    two = {p.text for p in generate("train", 600, 2)}
    assert len(one & two) < 300


def test_result_does_not_depend_on_the_process_or_the_hash_seed() -> None:
    program = (
        "import hashlib, random; from xpress_exp.data.prompt import generate; random.seed({n});"
        "t = '\\n'.join(p.id + p.text for p in generate('train', 500, 11));"
        "print(hashlib.sha256(t.encode()).hexdigest())"
    )
    text = "\n".join(p.id + p.text for p in generate("train", 500, 11))
    expected = hashlib.sha256(text.encode()).hexdigest()
    for n in (1, 2):
        env = {**os.environ, "PYTHONHASHSEED": str(n), "PYTHONPATH": str(SOURCE)}
        command = [sys.executable, "-c", program.format(n=n)]
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
        assert done.stdout.strip() == expected


def test_held_out_texts_never_appear_in_training() -> None:
    train = {p.text for p in generate("train", max_prompts("train"), 3)}
    held = {p.text for p in generate("heldout", max_prompts("heldout"), 3)}
    assert train.isdisjoint(held)
    train_variants = {v for f in families("train") for v in f.variants}
    assert train_variants.isdisjoint(v for f in families("heldout") for v in f.variants)


@pytest.mark.parametrize(
    "pattern",
    [
        r"\{[a-z_0-9]+\}",  # an unfilled slot
        r"\S[ ]{2,}\S",  # a double space outside code indentation
        r"\b[Aa] (?=[aeiouAEIOU])(?!one|uni|use|euro)\w+",  # 'a apple'
        r"\b[Aa]n (?![aeiouAEIOU]|hour|honest|MRI)\w+",  # 'an pear'
        r"(?<![\d.,$:-])\b1 (?:\w+s)\b(?! as)",  # '1 hours'
        r"[.?!][.!?]|,,| [.,?!](?:\s|$)",  # doubled or floating punctuation
        r"-\d+ (?:people|meters|hours|dollars)",  # negative counts
    ],
)
def test_texts_have_no_surface_errors(pattern: str) -> None:
    bad = [(p.id, match.group()) for p in _everything() if (match := re.search(pattern, p.text))]
    assert not bad, bad[:5]


def test_texts_have_a_moderate_length_in_words() -> None:
    lengths = {p.id: len(p.text.split()) for p in _everything()}
    bad = {key: n for key, n in lengths.items() if not 15 <= n <= 80}
    assert not bad


def test_sampled_math_problems_have_whole_number_answers() -> None:
    by_family: dict[str, list[str]] = collections.defaultdict(list)
    for p in _everything():
        by_family[p.family].append(p.text)
    for text in by_family["heads_legs"]:
        small, large = sorted(int(n) for n in re.findall(r"(\d+) (?:heads|legs)", text))
        fours = large / 2 - small
        assert fours == int(fours) and 0 < fours < small, text
    for text in by_family["consecutive"]:
        total = int(re.search(r"(?:is|got) (\d+)", text).group(1))  # type: ignore[union-attr]
        assert total % (3 if "three" in text else 5) == 0, text
    for text in by_family["number_puzzle"]:
        k, add, result = (int(n) for n in re.findall(r"\d+", text))
        assert (result - add) % k == 0 and result > add, text


@pytest.mark.parametrize("split", ["test", "", "Train"])
def test_unknown_split_is_rejected(split: str) -> None:
    with pytest.raises(ValueError, match="split"):
        generate(split, 1, 0)
    with pytest.raises(ValueError, match="split"):
        families(split)


def test_out_of_range_request_names_the_argument_and_the_maximum() -> None:
    limit = max_prompts("heldout")
    with pytest.raises(ValueError, match=rf"num_prompts.*{limit}"):
        generate("heldout", limit + 1, 0)
    with pytest.raises(ValueError, match="num_prompts"):
        generate("train", -1, 0)
