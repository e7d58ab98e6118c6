"""Code families built around a short snippet that the prompt quotes."""

from __future__ import annotations

import random

from xpress_exp.data.family.bank import HELDOUT, TRAIN, Family, Fill, options

BUGGY = (
    (
        "def average(values):\n    total = 0\n    for v in values:\n        total = v\n"
        "    return total / len(values)"
    ),
    "def is_even(n):\n    return n % 2 == 1",
    "def last_item(items):\n    return items[len(items)]",
    (
        "def factorial(n):\n    result = 0\n    for i in range(1, n + 1):\n        result *= i\n"
        "    return result"
    ),
    "def add_item(item, items=[]):\n    items.append(item)\n    return items",
    "def count_words(text):\n    return len(text.split(','))",
    (
        "def maximum(values):\n    best = 0\n    for v in values:\n        if v > best:\n"
        "            best = v\n    return best"
    ),
    "def greet(name)\n    print('Hello ' + name)",
    (
        "def add_up(prices):\n    total = '0'\n    for p in prices:\n        total += p\n"
        "    return total"
    ),
    "def reverse(text):\n    out = ''\n    for ch in text:\n        out = out + ch\n    return out",
    "def countdown(n):\n    while n > 0:\n        print(n)\n    print('Go!')",
)

WORKING = (
    (
        "def f(items):\n    seen = set()\n    out = []\n    for x in items:\n"
        "        if x not in seen:\n            seen.add(x)\n            out.append(x)\n"
        "    return out"
    ),
    "def g(a, b):\n    while b:\n        a, b = b, a % b\n    return a",
    "def h(text):\n    t = text.lower().replace(' ', '')\n    return t == t[::-1]",
    (
        "def count(words):\n    result = {}\n    for w in words:\n"
        "        result[w] = result.get(w, 0) + 1\n    return result"
    ),
    (
        "def search(xs, target):\n    lo, hi = 0, len(xs) - 1\n    while lo <= hi:\n"
        "        mid = (lo + hi) // 2\n        if xs[mid] == target:\n            return mid\n"
        "        if xs[mid] < target:\n            lo = mid + 1\n        else:\n"
        "            hi = mid - 1\n    return -1"
    ),
    (
        "def p(n):\n    if n < 2:\n        return False\n"
        "    for d in range(2, int(n ** 0.5) + 1):\n"
        "        if n % d == 0:\n            return False\n    return True"
    ),
    "def swap(pairs):\n    return [(b, a) for a, b in pairs]",
    (
        "def sort(xs):\n    for i in range(len(xs)):\n        for j in range(len(xs) - 1 - i):\n"
        "            if xs[j] > xs[j + 1]:\n                xs[j], xs[j + 1] = xs[j + 1], xs[j]\n"
        "    return xs"
    ),
    "def chunks(xs, n):\n    return [xs[i:i + n] for i in range(0, len(xs), n)]",
    (
        "def digits(n):\n    total = 0\n    while n:\n        total += n % 10\n        n //= 10\n"
        "    return total"
    ),
)

# Quoted by a held-out family only, so that no training prompt contains them.
UNTYPED = (
    "def area(width, height):\n    return width * height",
    "def initials(names):\n    return [n[0].upper() for n in names]",
    "def lookup(table, key, default=None):\n    return table.get(key, default)",
    "def repeat(action, times):\n    for _ in range(times):\n        action()",
    "def longest(lines):\n    return max(lines, key=len, default='')",
    "def minmax(values):\n    return min(values), max(values)",
    "def load(path):\n    with open(path) as handle:\n        return handle.read().splitlines()",
    "def join(parts, sep=', '):\n    return sep.join(str(p) for p in parts)",
    (
        "def total_by_key(rows):\n    out = {}\n    for key, value in rows:\n"
        "        out[key] = out.get(key, 0) + value\n    return out"
    ),
    (
        "def first_even(values):\n    for v in values:\n        if v % 2 == 0:\n"
        "            return v\n    return None"
    ),
)

LOOPS = (
    "result = []\nfor x in {v}:\n    result.append(x * {k})",
    "result = []\nfor x in {v}:\n    if x > {k}:\n        result.append(x)",
    "result = []\nfor x in {v}:\n    if x % {k} == 0:\n        result.append(x ** 2)",
    "total = 0\nfor x in {v}:\n    if x < {k}:\n        total += x",
    "result = []\nfor i, x in enumerate({v}):\n    result.append(x + i * {k})",
)


def _family(name: str, fill: Fill, *variants: str, split: str = TRAIN) -> Family:
    return Family(name, "code", split, variants, fill)


def _loop(r: random.Random) -> dict[str, object]:
    names = ("numbers", "prices", "scores", "values", "ages", "lengths", "weights")
    return {"code": r.choice(LOOPS).format(v=r.choice(names), k=r.randint(2, 9))}


def _loop_output(r: random.Random) -> dict[str, object]:
    a, b, k = r.randint(1, 6), r.randint(8, 14), r.randint(2, 4)
    body = r.choice(("total += i", "total += i * i", "total -= i", "total = total * 2 + i"))
    code = f"total = 0\nfor i in range({a}, {b}, {k}):\n    {body}\nprint(total)"
    return {"code": code}


def _slice_output(r: random.Random) -> dict[str, object]:
    word = r.choice(("programming", "breakfast", "adventure", "keyboard", "telescope", "sunflower"))
    a, b = r.randint(0, 2), r.randint(4, 7)
    expr = r.choice((f"word[{a}:{b}]", f"word[{a}::2]", f"word[-{b}:]", f"word[:{b}][::-1]"))
    how = r.choice(("", ".upper()", ".replace('e', '3')"))
    return {"code": f"word = '{word}'\nprint({expr}{how})"}


_TESTABLE = (
    "is_palindrome(text)", "median(values)", "slugify(title)", "parse_price(text)",
    "roman_to_int(numeral)", "word_count(text)", "clamp(value, low, high)", "is_leap_year(year)",
    "unique(items)", "fizzbuzz(n)", "days_between(start, end)", "find_index(items, target)",
)  # fmt: skip

FAMILIES = (
    _family("fix_bug", options(code=BUGGY, ask=(
        "What is wrong, and how do I fix it?", "Find the mistake and write a corrected version.",
        "Explain the problem and show the fixed code.",
        "Please repair it and add one test that would have caught the problem.")),
        "This Python function does not work as expected:\n\n{code}\n\n{ask}",
        "I wrote the following code, but the result is wrong or it fails:\n\n{code}\n\n{ask}",
        "My classmate asked me to look at this function, and I think it has a bug.\n\n{code}\n\n"
        "{ask}"),
    _family("explain_snippet", options(code=WORKING, ask=(
        "Explain it line by line.", "Summarize its purpose in two sentences.",
        "Give an example input and output.", "Suggest a better name for it.")),
        "What does this Python function do?\n\n{code}\n\n{ask} Use simple words, please.",
        "I found this code in an old project and do not understand it:\n\n{code}\n\n{ask}",
        "Please help me read the following Python code.\n\n{code}\n\n{ask}"),
    _family("docstring", options(code=WORKING, style=(
        "in Google style", "in one sentence", "that gives an example", "that lists the arguments",
        "that mentions edge cases")),
        "Write a docstring {style} for the following Python function and suggest clearer variable "
        "names.\n\n{code}",
        "The function below has no documentation. Please add a docstring {style} and keep the code "
        "unchanged.\n\n{code}",
        "Document this function with a docstring {style}, then say when somebody would use it.\n\n"
        "{code}"),
    _family("comprehension", _loop,
        "Rewrite this loop as a single comprehension or generator expression in Python, and "
        "explain the new version:\n\n{code}",
        "Can this Python code be made shorter without losing clarity? Show how and say why.\n\n"
        "{code}",
        "Turn the following loop into more idiomatic Python and describe what changed.\n\n{code}"),
    _family("complexity", options(code=WORKING, ask=(
        "Could it be made faster?", "Explain your reasoning step by step.",
        "What happens when the input gets ten times larger?", "What about its memory use?")),
        "What is the time complexity of this Python function in big O notation?\n\n{code}\n\n{ask}",
        "Analyze how the running time of the following code grows with its input.\n\n{code}\n\n"
        "{ask}",
        "For the code below, give the best and the worst case running time.\n\n{code}\n\n{ask}"),
    _family("unit_tests", options(fn=_TESTABLE, tool=("pytest", "unittest", "plain asserts"),
        focus=("edge cases", "empty input", "invalid arguments", "typical use", "large inputs")),
        "Write three unit tests with {tool} for a Python function called {fn}. Pay special "
        "attention to {focus}.",
        "I have a Python function {fn} and want to test it with {tool}. Which cases should I "
        "cover? Write the tests and include {focus}.",
        "Show me a good set of tests for {fn} in Python using {tool}, with a focus on {focus}."),
    _family("loop_output", _loop_output,
        "What does this Python program print? Go through the loop step by step before you answer."
        "\n\n{code}",
        "Trace the following code by hand and show the value of total after every iteration."
        "\n\n{code}",
        "Without running it, tell me the output of this Python code and explain how range works "
        "here.\n\n{code}"),
    _family("slice_output", _slice_output,
        "What is printed by the following two lines of Python? Explain how the slice picks its "
        "characters.\n\n{code}",
        "I am confused by string slicing in Python. What does this code print, and why?\n\n{code}",
        "Predict the output of this short Python program, then describe each part of the "
        "expression.\n\n{code}", split=HELDOUT),
    _family("type_hints", options(code=UNTYPED, ask=(
        "Mention any type that is ambiguous.", "Use modern built-in generic types.",
        "Explain each annotation briefly.", "Say whether any import is needed.")),
        "Add type hints to this Python function without changing what it does. {ask}\n\n{code}",
        "I want to run a type checker on the code below. Please annotate it. {ask}\n\n{code}",
        "Here is an untyped function. Rewrite it with type annotations for the arguments and the "
        "result. {ask}\n\n{code}", split=HELDOUT),
)  # fmt: skip
