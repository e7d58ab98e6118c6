"""Math families about distance, time, geometry, mixtures and units."""

from __future__ import annotations

import random

from xpress_exp.data.family.bank import (
    CITIES,
    HELDOUT,
    TRAIN,
    Family,
    Fill,
    clock,
    person,
    two_people,
)

Slots = dict[str, object]


def _travel(r: random.Random) -> Slots:
    start = r.choice(("home", "the airport", "the office", "a campsite", "the harbor"))
    end = r.choice(("the coast", "the mountains", "the lake", "the border", "the capital"))
    v, h, w, g = 5 * r.randint(8, 14), r.randint(2, 4), 5 * r.randint(8, 14), r.randint(1, 4)
    hours = "1 hour" if g == 1 else f"{g} hours"
    return {**person(r), "start": start, "end": end, "v": v, "h": h, "w": w, "g": hours}


def _fence(r: random.Random) -> Slots:
    width = r.randint(4, 20)
    place = r.choice(("vegetable garden", "playground", "dog park", "parking lot", "flower bed"))
    return {"place": place, "w": width, "more": r.randint(2, 12), "cost": r.randint(4, 18)}


def _tank(r: random.Random) -> Slots:
    net, minutes, out = r.randint(3, 12), r.randint(8, 40), r.randint(2, 6)
    thing = r.choice(("water tank", "swimming pool", "fish pond", "rain barrel", "fountain"))
    return {"thing": thing, "fill": net + out, "out": out, "size": net * minutes}


def _reading(r: random.Random) -> Slots:
    p, d, q, more = r.randint(10, 25), r.randint(3, 8), r.randint(26, 40), r.randint(3, 9)
    book = r.choice(("mystery novel", "biography", "history book", "fantasy novel", "travel book"))
    return {**person(r), "p": p, "d": d, "q": q, "pages": p * d + q * more, "book": book}


def _recipe(r: random.Random) -> Slots:
    k, batch = r.randint(2, 6), 4 * r.randint(2, 6)
    dish = r.choice(("pancakes", "muffins", "dumplings", "cookies", "rolls"))
    return {**person(r), "batch": batch, "flour": r.randint(2, 5), "eggs": r.randint(2, 4),
            "dish": dish, "want": batch * k}  # fmt: skip


def _ratio(r: random.Random) -> Slots:
    a, b, unit = r.randint(2, 5), r.randint(6, 9), r.randint(2, 9)
    first, second = r.choice((("blue", "white paint"), ("red", "yellow paint"),
                              ("lemon", "grape juice"), ("apple", "carrot juice")))  # fmt: skip
    kind = second.split()[1]
    return {"a": a, "b": b, "total": unit * (a + b), "first": f"{first} {kind}", "second": second,
            **person(r)}  # fmt: skip


def _schedule(r: random.Random) -> Slots:
    begin, movie = 5 * r.randint(96, 220), 5 * r.randint(15, 30)
    event = r.choice(("a film", "a workshop", "a piano lesson", "a soccer match", "a lecture"))
    return {**person(r), "event": event, "begin": clock(begin), "long": movie,
            "walk": r.randint(5, 35), "pause": 5 * r.randint(2, 5)}  # fmt: skip


def _meeting(r: random.Random) -> Slots:
    v, w, h = r.randint(8, 18), r.randint(10, 20), r.randint(2, 5)
    mover = r.choice(("cyclists", "boats", "tractors", "runners"))
    if mover == "runners":
        v, w = r.randint(4, 7), r.randint(5, 8)
    return {"mover": mover, "v": v, "w": w, "d": (v + w) * h,
            "unit": r.choice(("kilometers", "miles"))}  # fmt: skip


def _machines(r: random.Random) -> Slots:
    each, n, hours = r.randint(4, 20), r.randint(2, 6), r.randint(2, 8)
    thing = r.choice(("toys", "bottles", "boxes", "chairs", "shirts", "lamps"))
    return {"n": n, "hours": hours, "made": each * n * hours, "thing": thing,
            "n2": n + r.randint(1, 6), "hours2": hours + r.randint(1, 5)}  # fmt: skip


def _tiles(r: random.Random) -> Slots:
    side = r.choice((20, 25, 50))
    room = r.choice(("kitchen", "bathroom", "hallway", "porch", "laundry room"))
    return {"room": room, "l": r.randint(3, 9), "w": r.randint(2, 6), "side": side,
            "price": r.randint(1, 4) * 2}  # fmt: skip


def _units(r: random.Random) -> Slots:
    jug, cup = r.randint(2, 9), r.choice((100, 125, 200, 250))
    drink = r.choice(("lemonade", "iced tea", "orange juice", "hot chocolate", "apple cider"))
    return {**person(r), "jug": jug, "cup": cup, "drink": drink, "price": r.randint(1, 4) + 1}


def _triangle(r: random.Random) -> Slots:
    a, b = r.choice(((3, 4), (5, 12), (8, 15), (7, 24)))
    # Legs of Pythagorean triples, so that the diagonal is a whole number.
    k = r.randint(1, 5)
    return {"a": a * k, "b": b * k, **person(r),
            "place": r.choice(("field", "park", "courtyard", "pasture"))}  # fmt: skip


def _growth(r: random.Random) -> Slots:
    start, years = 1000 * r.randint(2, 30), r.randint(2, 3)
    town = r.choice(("village", "town", "fan club", "fitness club", "bird colony"))
    unit = {"village": "people", "town": "people", "fan club": "members",
            "fitness club": "members", "bird colony": "birds"}[town]  # fmt: skip
    return {"town": town, "unit": unit, "start": start, "pct": r.choice((10, 20, 30)),
            "years": years}  # fmt: skip


def _stairs(r: random.Random) -> Slots:
    return {**two_people(r), "floors": 2 * r.randint(2, 7), "steps": r.randint(12, 22),
            "trips": r.randint(2, 5), "building": r.choice(("tower", "hotel", "bank"))}  # fmt: skip


def _parking(r: random.Random) -> Slots:
    first, rate, hours = r.randint(3, 8), r.randint(2, 4), r.randint(3, 9)
    what = r.choice(("A parking garage", "A bike rental shop", "A kayak rental", "A tool rental"))
    return {**person(r), "what": what, "first": first, "rate": rate,
            "paid": first + rate * (hours - 1)}  # fmt: skip


def _box(r: random.Random) -> Slots:
    edge, a, b, c = r.randint(2, 5), r.randint(3, 9), r.randint(2, 6), r.randint(2, 5)
    thing = r.choice(("wooden cubes", "ice cubes", "cube-shaped candles", "cube-shaped boxes"))
    return {"edge": edge, "l": a * edge, "w": b * edge, "h": c * edge, "thing": thing}


def _temperature(r: random.Random) -> Slots:
    start, drop, up = r.randint(12, 24), r.randint(2, 4), r.randint(3, 9)
    return {"city": r.choice(CITIES), "start": start, "drop": drop, "up": up,
            "hours": r.randint(2, 7)}  # fmt: skip


def _family(name: str, fill: Fill, *variants: str, split: str = TRAIN) -> Family:
    return Family(name, "math", split, variants, fill)


FAMILIES = (
    _family("travel", _travel,
        "{name} drives from {start} toward {end} at {v} kilometers per hour for {h} hours, then "
        "at {w} kilometers per hour for {g}. How far has {he} driven?",
        "On a road trip from {start} to {end}, {name} spends {h} hours at {v} miles per hour and "
        "{g} at {w} miles per hour. What distance does {he} cover in total?"),
    _family("fence", _fence,
        "A rectangular {place} is {w} meters wide, and its length is {more} meters more than its "
        "width. Fencing costs ${cost} per meter. How much does it cost to fence it?",
        "The length of a rectangular {place} is {more} meters greater than its width of {w} "
        "meters. Find its area, its perimeter, and the cost of a border at ${cost} per meter."),
    _family("tank", _tank,
        "A {thing} holds {size} liters. A hose adds {fill} liters per minute, but a leak loses "
        "{out} liters per minute. How many minutes does it take to fill it?",
        "Water flows into an empty {thing} at {fill} liters a minute and leaks out at {out} "
        "liters a minute. After how many minutes does it contain {size} liters?"),
    _family("reading", _reading,
        "{name} is reading a {book} with {pages} pages. {He} reads {p} pages a day for {d} days "
        "and then {q} pages a day. How many days does the whole book take?",
        "For {d} days, {name} read {p} pages per day of a {pages}-page {book}. If {he} now reads "
        "{q} pages per day, in how many more days will {he} finish?"),
    _family("recipe_scale", _recipe,
        "A recipe for {batch} {dish} needs {flour} cups of flour and {eggs} eggs. {name} wants to "
        "make {want} {dish}. How much flour and how many eggs does {he} need?",
        "{name} has a recipe that makes {batch} {dish} from {flour} cups of flour and {eggs} eggs. "
        "What amounts are needed for a party where {he} will serve {want} {dish}?"),
    _family("ratio", _ratio,
        "{name} mixes {first} and {second} in the ratio {a} to {b}. The mixture is {total} liters "
        "in total. How many liters of {first} does {he} use?",
        "A mixture contains {a} parts {first} for every {b} parts {second}. If {name} needs "
        "{total} liters of the mixture, how much of each part should {he} pour in?"),
    _family("schedule", _schedule,
        "{name} goes to {event} that starts at {begin} and lasts {long} minutes, with a break of "
        "{pause} extra minutes. The walk home takes {walk} minutes. When does {he} get home?",
        "At {begin}, {name} arrives for {event}. It runs for {long} minutes plus a {pause}-minute "
        "break, and {he} then walks {walk} minutes to the station. At what time is {he} there?"),
    _family("meeting", _meeting,
        "Two {mover} start {d} {unit} apart and move toward each other at {v} and {w} {unit} per "
        "hour. After how many hours do they meet?",
        "A route is {d} {unit} long. From its opposite ends, two {mover} set off at the same time. "
        "Their speeds are {v} and {w} {unit} per hour. How far has each gone when they meet?"),
    _family("machines", _machines,
        "In a factory, {n} machines make {made} {thing} in {hours} hours. How many {thing} can "
        "{n2} of the same machines make in {hours2} hours?",
        "It takes {n} identical machines {hours} hours to produce {made} {thing}. At the same "
        "rate, how many {thing} will {n2} machines produce in {hours2} hours?"),
    _family("tiles", _tiles,
        "A {room} floor measures {l} meters by {w} meters. It will be covered with square tiles "
        "of side {side} centimeters that cost ${price} each. Find the total cost of the tiles.",
        "Square tiles with sides of {side} centimeters are sold for ${price} each. How many tiles "
        "cover a {room} floor of {l} by {w} meters, and how much do they cost?"),
    _family("units", _units,
        "{name} makes {jug} liters of {drink} and pours it into cups of {cup} milliliters. {He} "
        "sells each cup for ${price}. How much money does {he} collect if every cup is sold?",
        "At a stand, {name} has {jug} liters of {drink}. Each cup holds {cup} milliliters and "
        "costs ${price}. How many cups can {he} fill, and what is the income?"),
    _family("right_triangle", _triangle,
        "{name} walks {a} meters east and then {b} meters north across a {place}. How far is {he} "
        "from the starting point in a straight line?",
        "A rectangular {place} is {a} meters by {b} meters. How many meters does {name} save by "
        "walking along the diagonal instead of along two sides?"),
    _family("growth", _growth,
        "A {town} has {start} {unit}. The number grows by {pct}% every year. How many {unit} will "
        "there be after {years} years? Show the value for each year.",
        "The number of {unit} in a {town} is {start} today and rises {pct}% per year. Calculate "
        "the number after {years} years, step by step."),
    _family("stairs", _stairs,
        "The elevator in the {building} is broken. Every day {name} climbs {floors} floors with "
        "{steps} steps each, {trips} times, and {other} climbs half as many steps. How many steps "
        "do they climb together each day?",
        "There are {steps} steps between neighboring floors of a {building}. {name} walks up "
        "{floors} floors {trips} times a day, and {other} does so once. How many steps do they "
        "climb altogether in a day?"),
    _family("rental_fee", _parking,
        "{what} charges ${first} for the first hour and ${rate} for each additional hour. "
        "{name} paid ${paid} in total. For how many hours did {he} pay?",
        "{what} asks ${first} for the first hour and ${rate} for every hour after that. If the "
        "bill for {name} was ${paid}, how many hours did it cover?", split=HELDOUT),
    _family("box_volume", _box,
        "A carton is {l} centimeters long, {w} centimeters wide and {h} centimeters high. How many "
        "{thing} with edges of {edge} centimeters fit inside it?",
        "How many {thing}, each with an edge of {edge} centimeters, are needed to fill a carton "
        "measuring {l} by {w} by {h} centimeters completely?", split=HELDOUT),
    _family("temperature", _temperature,
        "At noon the temperature in {city} is {start} degrees Celsius. It falls {drop} degrees per "
        "hour for {hours} hours and then rises {up} degrees. What is the final temperature?",
        "The temperature in {city} starts at {start} degrees, drops by {drop} degrees every hour "
        "for {hours} hours, and finally climbs {up} degrees. Where does it end?", split=HELDOUT),
)  # fmt: skip
