"""Math families about people, money and counts; every answer is a whole number."""

from __future__ import annotations

import random

from xpress_exp.data.family.bank import (
    HELDOUT,
    TRAIN,
    Family,
    Fill,
    person,
    two_items,
    two_people,
)

Slots = dict[str, object]


def _ages(r: random.Random) -> Slots:
    k, young, years = r.randint(2, 4), r.randint(4, 14), r.randint(2, 12)
    word = {2: "twice", 3: "three times", 4: "four times"}[k]
    return {**two_people(r), "k": word, "y": years, "total": (k + 1) * young + 2 * years}


def _shopping(r: random.Random) -> Slots:
    n, p, m, q = r.randint(2, 9), r.randint(2, 6), r.randint(2, 8), r.randint(1, 5)
    paid = (n * p + m * q) // 20 * 20 + 20
    return {**person(r), **two_items(r), "n": n, "p": p, "m": m, "q": q, "paid": paid}


def _discount(r: random.Random) -> Slots:
    thing = r.choice(("jacket", "lamp", "backpack", "bicycle helmet", "coffee maker", "desk chair"))
    price, pct = 20 * r.randint(2, 12), 5 * r.randint(2, 9)
    return {**person(r), "thing": thing, "price": price, "pct": pct, "coupon": r.randint(2, 8)}


def _wages(r: random.Random) -> Slots:
    job = r.choice(("a bakery", "a bookstore", "a garden center", "a bike shop", "a bank"))
    rate = 2 * r.randint(5, 12)
    extra = rate * 3 // 2
    hours = {"h": r.randint(36, 40), "o": r.randint(2, 9)}
    return {**person(r), **hours, "rate": rate, "extra": extra, "job": job}


def _fractions(r: random.Random) -> Slots:
    (part, d), (rest, e) = r.sample((("half", 2), ("one third", 3), ("one quarter", 4),
                                     ("one fifth", 5)), 2)  # fmt: skip
    where = r.choice(("community choir", "chess club", "hiking group", "camp", "dance group"))
    first, second = r.choice((("adults", "teenagers"), ("girls", "beginners"),
                              ("left-handed", "wearing glasses")))  # fmt: skip
    return {"total": d * e * r.randint(2, 9), "part": part, "rest": rest, "where": where,
            "first": first, "second": second}  # fmt: skip


def _sharing(r: random.Random) -> Slots:
    kids, each, left = r.randint(4, 9), r.randint(3, 12), r.randint(1, 3)
    eaten = r.randint(3, 12)
    thing = r.choice(("candies", "marbles", "stickers", "crackers", "cookies"))
    verb = "eats" if thing in ("candies", "crackers", "cookies") else "gives away"
    return {**person(r), "kids": kids, "total": kids * each + left + eaten, "eaten": eaten,
            "thing": thing, "verb": verb}  # fmt: skip


def _savings(r: random.Random) -> Slots:
    goal = r.choice(("a guitar", "a tablet", "a pair of skates", "a telescope", "a camera"))
    weekly, weeks, start = r.randint(6, 25), r.randint(4, 15), r.randint(10, 60)
    return {**person(r), "goal": goal, "w": weekly, "start": start, "cost": start + weekly * weeks}


def _average(r: random.Random) -> Slots:
    scores = [r.randint(70, 95) for _ in range(3)]
    mean = (sum(scores) + r.randint(75, 98)) // 4
    subject = r.choice(("spelling", "science", "history", "geography", "algebra"))
    return {**person(r), "a": scores[0], "b": scores[1], "c": scores[2], "mean": mean,
            "subject": subject}  # fmt: skip


def _heads_legs(r: random.Random) -> Slots:
    four = r.choice(("cows", "goats", "sheep", "pigs"))
    two = r.choice(("chickens", "ducks", "geese", "turkeys"))
    n, m = r.randint(4, 25), r.randint(4, 25)
    return {"four": four, "two": two, "heads": n + m, "legs": 4 * n + 2 * m}


def _tickets(r: random.Random) -> Slots:
    adult, child = r.randint(8, 15), r.randint(3, 7)
    n, m = r.randint(20, 90), r.randint(15, 80)
    event = r.choice(("a school play", "a puppet show", "a museum exhibit", "a local concert"))
    return {"event": event, "adult": adult, "child": child, "num": n + m,
            "money": n * adult + m * child}  # fmt: skip


def _interest(r: random.Random) -> Slots:
    return {**person(r), "sum": 100 * r.randint(5, 60), "pct": r.randint(2, 8),
            "years": r.randint(2, 6)}  # fmt: skip


def _marbles(r: random.Random) -> Slots:
    red, blue, green = r.sample(range(3, 15), 3)
    thing = r.choice(("marbles", "beads", "buttons", "tokens"))
    box = r.choice(("bag", "jar", "box"))
    return {"red": red, "blue": blue, "green": green, "thing": thing, "box": box}


def _puzzle(r: random.Random) -> Slots:
    n, k, add = r.randint(3, 30), r.randint(2, 9), r.randint(3, 40)
    return {**person(r), "k": k, "add": add, "result": n * k + add}


def _collect(r: random.Random) -> Slots:
    k, base, more = r.randint(2, 5), r.randint(10, 30), r.randint(3, 15)
    thing = r.choice(("stamps", "seashells", "coins", "trading cards", "postcards"))
    return {**two_people(r), "k": ("twice", "three times", "four times", "five times")[k - 2],
            "base": base, "more": more, "thing": thing}  # fmt: skip


def _consecutive(r: random.Random) -> Slots:
    start, count = r.randint(5, 90), r.choice((3, 5))
    word = {3: "three", 5: "five"}[count]
    return {"count": word, "sum": count * (start + count // 2),
            "which": r.choice(("smallest", "largest", "middle"))}  # fmt: skip


def _phone_plan(r: random.Random) -> Slots:
    low, rate, months = r.randint(10, 20), r.randint(2, 5), r.randint(4, 10)
    return {**person(r), "low": low, "rate": rate, "flat": low + rate * months,
            "unit": r.choice(("gigabyte of data", "hour of calls", "call abroad"))}  # fmt: skip


def _bus(r: random.Random) -> Slots:
    start, off, on = r.randint(24, 48), r.randint(4, 11), r.randint(2, 12)
    kind = r.choice(("bus", "tram", "ferry", "shuttle"))
    return {"kind": kind, "start": start, "off": off, "on": on, "off2": r.randint(3, 10)}


def _family(name: str, fill: Fill, *variants: str, split: str = TRAIN) -> Family:
    return Family(name, "math", split, variants, fill)


FAMILIES = (
    _family("ages", _ages,
        "{name} is {k} as old as {other}. In {y} years, the sum of their ages will be {total}. "
        "How old is {name} now?",
        "In {y} years, {name} and {other} will have a combined age of {total}. Right now {name} "
        "is {k} as old as {other}. What is each person's current age?",
        "Right now {name} is {k} as old as {other}, and {y} years from now their ages will add "
        "up to {total}. Find the current age of {other} and show your steps."),
    _family("shopping", _shopping,
        "{name} buys {n} {item} at ${p} each and {m} {item2} at ${q} each. {He} pays with "
        "${paid}. How much change does {he} get back?",
        "At the store, {item} cost ${p} each and {item2} cost ${q} each. If {name} takes {n} "
        "{item} and {m} {item2}, how much of {his} ${paid} is left?"),
    _family("discount", _discount,
        "A {thing} normally costs ${price}, but today it is {pct}% off. {name} also has a "
        "${coupon} coupon to use after the discount. How much does {he} pay?",
        "{name} wants to buy a {thing} priced at ${price}. The shop takes {pct}% off and then "
        "subtracts ${coupon} for members. What is the final price for a member?"),
    _family("wages", _wages,
        "{name} works at {job} and earns ${rate} per hour for {h} regular hours. {He} then "
        "works {o} overtime hours at ${extra} per hour. What is {his} total pay for the week?",
        "Last week {name} worked {h} hours at {job} for ${rate} an hour, plus {o} extra hours "
        "at ${extra} an hour. How much money did {he} earn in all?"),
    _family("fractions", _fractions,
        "There are {total} people in a {where}. Exactly {part} of them are {first}, and {rest} "
        "of the {total} people are {second}. What is the difference between these two numbers?",
        "A {where} has {total} participants. If {part} of them are {first} and {rest} of them are "
        "{second}, how many people belong to each of these two groups?"),
    _family("sharing", _sharing,
        "{name} has {total} {thing}. {He} {verb} {eaten} of them and shares the rest equally "
        "among {kids} friends. How many does each friend get, and how many are left over?",
        "A bag holds {total} {thing}. After {name} {verb} {eaten}, the remaining {thing} are "
        "split evenly between {kids} children. Find each child's share and the remainder."),
    _family("savings", _savings,
        "{name} wants to buy {goal} that costs ${cost}. {He} already has ${start} and saves "
        "${w} every week. In how many weeks will {he} have enough money?",
        "To pay for {goal} priced at ${cost}, {name} puts aside ${w} a week on top of the "
        "${start} {he} already saved. How many weeks does {he} need?"),
    _family("average", _average,
        "{name} scored {a}, {b} and {c} on {his} first three {subject} tests. What must {he} "
        "score on the fourth test to have an average of exactly {mean}?",
        "After three {subject} quizzes, {name} has scores of {a}, {b} and {c}. Which score on "
        "the next quiz would make {his} average {mean}?"),
    _family("heads_legs", _heads_legs,
        "A farmer keeps {four} and {two}. Altogether the animals have {heads} heads and {legs} "
        "legs. How many {four} and how many {two} are on the farm?",
        "In a barn there are only {four} and {two}. If you count {heads} heads and {legs} legs "
        "in total, how many {two} are in the barn? Explain each step.",
        "Somebody counted {legs} legs and {heads} heads in a field with {four} and {two} only. "
        "Set up equations and find the number of each animal."),
    _family("tickets", _tickets,
        "For {event}, adult tickets cost ${adult} and child tickets cost ${child}. A total of "
        "{num} tickets were sold for ${money}. How many adult tickets were sold?",
        "The organizers of {event} sold {num} tickets and collected ${money}. Adults paid "
        "${adult} and children paid ${child}. Work out the number of children who came."),
    _family("interest", _interest,
        "{name} puts ${sum} in a savings account that pays {pct}% simple interest per year. "
        "How much money will be in the account after {years} years?",
        "A bank lends {name} ${sum} at {pct}% simple annual interest. How much interest does "
        "{he} owe after {years} years, and what is the total to repay?"),
    _family("marbles", _marbles,
        "A {box} contains {red} red, {blue} blue and {green} green {thing}. If you pick one "
        "without looking, what is the probability that it is not red?",
        "There are {red} red, {blue} blue and {green} green {thing} in a {box}. Find the "
        "probability of drawing a blue one, and write it as a simplified fraction."),
    _family("number_puzzle", _puzzle,
        "{name} thinks of a number, multiplies it by {k}, and then adds {add}. The result is "
        "{result}. What number did {he} start with?",
        "When a secret number is multiplied by {k} and {add} is added to the product, the answer "
        "is {result}. Help {name} find the secret number."),
    _family("collection", _collect,
        "{other} has {base} {thing}, and {name} has {k} as many. If {name} gives {more} of {his} "
        "{thing} to a cousin, how many do {name} and {other} have together?",
        "{name} owns {k} as many {thing} as {other}, who owns {base}. Then {other} finds {more} "
        "more. How many {thing} do the two friends have in total?"),
    _family("bus_riders", _bus,
        "A {kind} leaves the first stop with {start} passengers. At the second stop {off} get off "
        "and {on} get on. At the third stop {off2} get off. How many passengers remain?",
        "There are {start} people on a {kind}. First {off} of them leave and {on} others board, "
        "and later {off2} more leave. How many people are still on the {kind}?"),
    _family("consecutive", _consecutive,
        "The sum of {count} consecutive whole numbers is {sum}. What is the {which} of these "
        "numbers? Show how you found it.",
        "Someone added {count} whole numbers in a row and got {sum}. Find the {which} number and "
        "check your answer by adding them all again.", split=HELDOUT),
    _family("phone_plan", _phone_plan,
        "{name} compares two phone plans. Plan A costs ${flat} a month. Plan B costs ${low} a "
        "month plus ${rate} for each {unit}. At what usage do both plans cost the same?",
        "One plan charges a flat ${flat} per month, while another charges ${low} plus ${rate} per "
        "{unit}. For what usage does {name} pay the same with either plan?", split=HELDOUT),
)  # fmt: skip
