"""Chat families that ask for a piece of writing or for work on a given text."""

from __future__ import annotations

import random

from xpress_exp.data.family.bank import CITIES, HELDOUT, TRAIN, Family, Fill, options, two_people

_PASSAGES = (
    (
        "The town library will close for repairs in March. During that time, visitors can borrow "
        "books from a bus parked in front of the town hall."
    ),
    (
        "Honeybees communicate with a dance. By moving in a figure eight, a bee shows the others "
        "how far away the flowers are and in which direction to fly."
    ),
    (
        "A small bakery started selling yesterday's bread at half price. Within a month, it threw "
        "away far less food, and more students came to the shop."
    ),
    (
        "The new bike lane was unpopular at first because it removed parking spaces. A year later, "
        "accidents had dropped and local shops reported more customers."
    ),
    (
        "Many people drink coffee in the afternoon and then sleep badly. Caffeine can stay in the "
        "body for more than six hours, so an earlier last cup often helps."
    ),
    (
        "Volunteers planted two hundred trees along the river. The roots hold the soil in place "
        "and reduce the damage from floods in spring."
    ),
    (
        "Our team tested shorter meetings for six weeks. Most people liked them, but some "
        "decisions took longer because details were missing."
    ),
    (
        "The museum's new exhibit lets children touch fossils and build model dinosaurs. Tickets "
        "are free on the first Sunday of every month."
    ),
)

_ROUGH = (
    "me and him was late because the bus it broke down",
    "we need the report fast so send it now and no excuses",
    "the hotel was not good, the room was small and the food was not good too",
    "i am writing for tell you that i can not come on monday",
    "your product broke after two days and i want my money",
    "the meeting is moved, everybody should knows the new time is at three",
    "she don't has enough time for finish the project this week",
    "it is very very important that all of the people read the rules",
)


_FINDS = (
    "a mysterious letter",
    "a talking bird",
    "a map with a missing corner",
    "an old clock that runs backward",
    "a door nobody has seen before",
)


def _family(name: str, fill: Fill, *variants: str, split: str = TRAIN) -> Family:
    return Family(name, "chat", split, variants, fill)


def _story(r: random.Random) -> dict[str, object]:
    hero = r.choice(("baker", "lighthouse keeper", "young inventor", "retired sailor", "gardener"))
    find = r.choice(_FINDS)
    return {**two_people(r), "hero": hero, "find": find, "city": r.choice(CITIES)}


FAMILIES = (
    _family("email", options(
        to=("my landlord", "my manager", "a professor", "a hotel", "the school office",
            "a customer", "my dentist", "a former colleague"),
        about=("asking to move an appointment to next week", "apologizing for a late reply",
               "asking for more information about a bill", "thanking them for their help",
               "saying that I will be away for three days", "asking for a short phone call"),
        tone=("polite and short", "friendly", "formal", "warm but professional")),
        "Write an email to {to}, {about}. The tone should be {tone}, and it should have a subject "
        "line.",
        "Please draft a {tone} email to {to}. The purpose is {about}.",
        "Help me write a message to {to}, {about}. Keep it {tone} and under one hundred words."),
    _family("summarize", options(text=_PASSAGES, how=(
        "in one sentence", "in ten words or fewer", "as two bullet points", "for a child",
        "as a newspaper headline with one sentence below it")),
        "Summarize the following text {how}:\n\n{text}",
        "{text}\n\nPlease sum up this passage {how}, using your own words.",
        "Read the passage below and restate its message {how}.\n\n{text}"),
    _family("passage_question", options(text=_PASSAGES, ask=(
        "What is the main point of this text?", "Which detail is the most surprising, and why?",
        "What problem is mentioned or implied here?", "What could happen next?",
        "Who is likely to be interested in this, and why?")),
        "Read this short text and answer the question.\n\n{text}\n\n{ask}",
        "{text}\n\nBased only on the passage above: {ask}",
        "{ask} Quote the words that support your answer.\n\n{text}"),
    _family("rewrite", options(text=_ROUGH, tone=(
        "polite", "formal", "friendly", "clear and simple", "professional"), extra=(
        "Correct all grammar mistakes.", "Explain what you changed.",
        "Offer two versions.")),
        "Rewrite the following sentence so that it sounds {tone}. {extra}\n\n'{text}'",
        "Please improve this message and make it {tone}: '{text}' {extra}",
        "I wrote '{text}' in a note. How could I say it in a more {tone} way? {extra}"),
    _family("story", _story,
        "Write a short story about a {hero} named {name} who finds {find} in {city}.",
        "Begin a story in {city}. A {hero} called {name} meets {other}, and together they "
        "discover {find}.",
        "Tell a bedtime story in which {name}, a {hero} from {city}, comes across {find}. Give it "
        "a happy ending."),
    _family("product_text", options(
        thing=("a reusable water bottle", "a folding bicycle", "a desk lamp", "a picnic blanket",
               "a hiking backpack", "a wooden puzzle", "a travel mug", "a wireless speaker"),
        point=("it is light and easy to carry", "it is made from recycled material",
               "it lasts for many years", "it comes in five colors", "it is made by hand"),
        who=("students", "young families", "office workers", "people who travel often")),
        "Write a product description for {thing} aimed at {who}. Mention that {point}.",
        "I sell {thing} online, mostly to {who}. Write three sentences that stress that {point}.",
        "Suggest a slogan and a short advertisement for {thing}. The target group is {who}, and "
        "{point}."),
    _family("speech", options(
        event=("my sister's wedding", "a colleague's retirement party", "a school graduation",
               "my father's sixtieth birthday", "the opening of a community garden",
               "a sports club dinner", "a housewarming party"),
        mood=("funny but respectful", "warm and personal", "short and simple", "uplifting"),
        detail=("thank the organizers", "tell a brief story about friendship",
                "mention a shared trip", "end with a good wish for the future")),
        "Write a short speech for {event}. It should be {mood}, and I would like to {detail}.",
        "I have to say a few words at {event}. Please write something {mood} in which I {detail}.",
        "Help me with a toast for {event} that takes about one minute. Make it {mood} and remember "
        "to {detail}."),
    _family("poem", options(
        theme=("the first snow", "an old train station", "a summer storm", "morning coffee",
               "a lost umbrella", "the sea at night", "a garden in spring", "a long bus ride",
               "an empty classroom"),
        form=("a poem of eight lines", "a haiku", "a poem of two short stanzas", "a limerick"),
        mood=("hopeful", "playful", "calm", "a little sad")),
        "Write {form} about {theme}. The mood should be {mood}, and the images should be concrete.",
        "Please compose {form} with the theme of {theme}. I would like it to feel {mood}.",
        "Can you write {form} on the subject of {theme}, and then explain how you made it sound "
        "{mood}?"),
    _family("dialogue", options(
        place=("a train station", "a farmers market", "a doctor's office", "a hotel lobby",
               "a bookstore", "a restaurant", "a post office"),
        topic=("a lost ticket", "a wrong price", "a double booking", "an unusual request",
               "a missing package", "a forgotten name"),
        level=("for beginners learning English", "with some gentle humor", "in a formal style",
               "between two strangers", "with about eight lines")),
        "Write a dialogue {level} that takes place in {place}. It should be about {topic}, with a "
        "clear beginning and end.",
        "Create a short conversation set in {place}, {level}. The two speakers deal with {topic}.",
        "I am making a role play exercise. Please write a scene in {place} about {topic}, "
        "{level}."),
    _family("quiz", options(
        topic=("the solar system", "European capitals", "healthy eating", "famous painters",
               "animals of the ocean", "road safety", "the human body", "world music",
               "computer basics"),
        n=("three", "four", "five", "six"),
        who=("primary school pupils", "a family game night", "adult learners", "a pub evening")),
        "Create a quiz with {n} multiple choice questions about {topic} for {who}. Put the answers "
        "at the end.",
        "Write {n} quiz questions on {topic} that would work well for {who}, and add a short "
        "answer to each.",
        "I need {n} true or false statements about {topic} for {who}. Mark the correct answers."),
    _family("complaint", options(
        thing=("a toaster", "a suitcase", "a backpack", "a phone case", "a garden chair",
               "a rain jacket", "a board game"),
        fault=("arrived two weeks late", "was damaged when it came", "stopped working within days",
               "had the wrong color", "did not match the description", "was missing a part"),
        want=("a refund", "a replacement", "an explanation", "a discount on the next order")),
        "Write a firm but polite message to a shop. My order was {thing}, and the item {fault}. I "
        "want {want}.",
        "I ordered {thing}, but the product {fault}. Draft a complaint in which I ask for {want}.",
        "Help me complain to an online store about {thing}. The item {fault}, and I would like "
        "{want}.", split=HELDOUT),
    _family("translate_tone", options(
        message=("We cannot give you a refund.", "Your idea will not work.",
                 "The deadline has been moved forward.", "You did not get the job.",
                 "I do not have time to help you.", "The event has been canceled.",
                 "Your essay needs a lot more work.", "We are out of stock."),
        who=("a loyal customer", "a close friend", "a new employee", "an upset parent",
             "a young student", "a business partner")),
        "How can I tell {who} the following in a kind way, without hiding the truth? '{message}'",
        "I must give this news to {who}: '{message}' Please write a gentle version and a very "
        "direct version.",
        "Turn '{message}' into a considerate message of three or four sentences for {who}.",
        split=HELDOUT),
)  # fmt: skip
