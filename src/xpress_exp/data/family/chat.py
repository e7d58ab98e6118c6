"""Chat families that ask for information, advice or a plan."""

from __future__ import annotations

import random

from xpress_exp.data.family.bank import CITIES, HELDOUT, TRAIN, Family, Fill, options

_THINGS = (
    ("tea", "coffee"), ("renting a home", "buying a home"), ("cats", "dogs"),
    ("running", "swimming"), ("paper books", "e-readers"), ("trains", "planes"),
    ("solar power", "wind power"), ("gas stoves", "induction stoves"),
    ("city life", "country life"), ("laptops", "tablets"), ("butter", "olive oil"),
    ("online classes", "classroom teaching"), ("credit cards", "debit cards"),
)  # fmt: skip


def _family(name: str, fill: Fill, *variants: str, split: str = TRAIN) -> Family:
    return Family(name, "chat", split, variants, fill)


def _compare(r: random.Random) -> dict[str, object]:
    one, two = r.choice(_THINGS)
    focus = r.sample(("cost", "convenience", "the environment", "health", "comfort"), 2)
    return {"one": one, "two": two, "focus": " and ".join(focus)}


def _trip(r: random.Random) -> dict[str, object]:
    who = r.choice(("my parents", "two small children", "a friend", "my partner", "my sister"))
    like = r.choice(("museums", "street food", "quiet parks", "live music", "old buildings"))
    return {"city": r.choice(CITIES), "days": r.randint(2, 5), "who": who, "like": like}


FAMILIES = (
    _family("explain_topic", options(
        topic=("how vaccines work", "what inflation is", "how a rainbow forms", "what gravity is",
               "how the internet works", "why leaves change color", "how bread rises",
               "what a black hole is", "how tides work", "what a computer virus is",
               "how elections work", "what DNA is"),
        who=("a ten-year-old child", "a curious adult without a science background",
             "my grandmother", "a group of new students", "someone who is in a hurry")),
        "Please explain {topic} to {who}. Use everyday language and one comparison from life.",
        "I have to tell {who} {topic}. Could you write a clear explanation of about one paragraph?",
        "Can you describe {topic} in a way that {who} would understand and find interesting?"),
    _family("compare", _compare,
        "Compare {one} and {two} in terms of {focus}. Finish with a short recommendation for a "
        "typical person.",
        "What are the main differences between {one} and {two}? I care most about {focus}.",
        "I cannot decide between {one} and {two}. Help me choose by looking at {focus}."),
    _family("week_plan", options(
        goal=("learn to run five kilometers", "eat more vegetables", "declutter my apartment",
              "sleep better", "practice the guitar", "spend less time on my phone",
              "learn basic Spanish", "start a small herb garden", "improve my posture"),
        time=("twenty minutes a day", "half an hour every evening", "one hour on weekdays",
              "a few hours on Saturday", "fifteen minutes each morning")),
        "I want to {goal} and can spend {time} on it. Make a simple plan for one week, day by day.",
        "Create a realistic one-week plan that helps me {goal}. My available time is {time}.",
        "Could you suggest small steps for the next seven days so that I can {goal}? I can use "
        "{time}."),
    _family("recipe", options(
        dish=("a vegetable soup", "a pasta dish", "a rice bowl", "an omelet", "a salad",
              "a chickpea curry", "a potato casserole", "a sandwich for lunch"),
        have=("tomatoes and spinach", "carrots and onions", "mushrooms and cheese",
              "beans and corn", "zucchini and garlic", "peppers and herbs"),
        limit=("in under thirty minutes", "with only one pot", "on a small budget",
               "without any meat", "for four people")),
        "Give me a recipe for {dish} with {have} that I can make {limit}. List the ingredients "
        "first.",
        "I have {have} in my kitchen. How can I turn them into {dish} {limit}?",
        "Please write step-by-step instructions for {dish} using {have}. I would like to cook it "
        "{limit}."),
    _family("advice", options(
        problem=("my roommate never washes the dishes", "I feel nervous before speaking in public",
                 "I keep putting off important tasks", "my neighbor plays loud music at night",
                 "I forget the names of people I meet", "I have trouble waking up early",
                 "I find it hard to make friends in a new city",
                 "my team at work rarely answers messages",
                 "I spend too much money on takeout food", "my best friend is often late",
                 "I get bored when I exercise alone"),
        ask=("What would you do in my place?", "Give me three practical tips.",
             "How can I handle this politely?", "What small change should I try first?")),
        "I need some advice because {problem}. {ask} Please be honest and specific.",
        "Lately {problem}, and it is starting to bother me. {ask}",
        "Here is my situation: {problem}. {ask} I would prefer a friendly solution."),
    _family("ideas", options(
        what=("birthday gifts", "weekend activities", "party games", "indoor hobbies",
              "small acts of kindness", "conversation starters", "healthy snacks",
              "rainy day projects"),
        who=("a retired teacher", "a teenager who likes music", "a busy couple", "young children",
             "a new neighbor", "a group of coworkers", "a friend who loves nature"),
        n=("five", "six", "seven", "eight")),
        "List {n} ideas for {what} that would suit {who}. Add one sentence about each idea.",
        "I am looking for {n} {what} for {who}. Keep the suggestions simple and explain why each "
        "one fits.",
        "Can you come up with {n} creative {what} with {who} in mind? Avoid the most obvious "
        "choices."),
    _family("trip", _trip,
        "Plan a trip of {days} days to {city} with {who}. We enjoy {like} and do not want to rush.",
        "I am visiting {city} for {days} days together with {who}. What should we see if we love "
        "{like}?",
        "Write a relaxed itinerary of {days} days in {city} for me and {who}, with some time for "
        "{like}."),
    _family("definition", options(
        term=("irony", "empathy", "democracy", "photosynthesis", "compound interest", "nostalgia",
              "biodiversity", "procrastination", "algorithm", "renaissance", "metaphor",
              "supply chain"),
        extra=("Give two examples.", "Mention a related word.", "Say where the idea comes from.",
               "Use it in three sentences.", "Name a common misunderstanding.")),
        "What does the word '{term}' mean? Explain it in plain language for a school project. "
        "{extra}",
        "Define '{term}' in one or two sentences as a dictionary for learners would. {extra}",
        "I came across the term '{term}' in an article. What does it mean in plain words? {extra}"),
    _family("how_to", options(
        task=("remove a coffee stain from a shirt", "patch a flat bicycle tire",
              "repot a houseplant", "clean a keyboard", "fold a fitted sheet", "sharpen a knife",
              "hang a picture straight", "unclog a sink", "pack a suitcase for a week",
              "set up a home office"),
        note=("I have never done it before.", "I only have basic tools at home.",
              "I would like to do it in under an hour.", "Please warn me about common mistakes.")),
        "How do I {task}? Please give me numbered steps that are easy to follow. {note}",
        "Walk me through the best way to {task}. {note} What do I need to prepare?",
        "I want to {task} this afternoon. {note} Can you explain the process step by step?"),
    _family("pros_cons", options(
        choice=("working from home", "going back to school", "adopting a pet",
                "moving to another country", "owning a car in the city", "becoming a vegetarian",
                "starting a small business", "sharing an apartment", "learning to code"),
        who=("a recent graduate", "a parent of two", "someone close to retirement",
             "a person on a tight budget", "a shy person")),
        "What are the advantages and disadvantages of {choice} for {who}? Give three points on "
        "each side.",
        "Make a balanced list of pros and cons of {choice}, written for {who}, and end with a "
        "question to think about.",
        "Imagine {who} thinking about {choice}. Which benefits and which risks should they "
        "consider?"),
    _family("science_why", options(
        question=("the sky is blue", "ice floats on water", "we dream", "cats purr",
                  "the moon has phases", "onions make us cry", "metal feels colder than wood",
                  "birds migrate", "popcorn pops", "sea water is salty", "we yawn"),
        style=("in three short paragraphs", "as a list of key facts", "with a simple analogy",
               "without technical terms", "as if you were a museum guide")),
        "My daughter asked me why {question}, and I was not sure. Please explain it {style}.",
        "Why is it that {question}? I would like an answer {style}, with correct science.",
        "Tell me {style} why {question}, and add one surprising fact at the end of the answer."),
    _family("interview", options(
        job=("a librarian", "a sales assistant", "a software tester", "a nurse", "a chef",
             "a primary school teacher", "a data analyst", "a hotel receptionist",
             "a project manager", "a tour guide", "an office assistant"),
        ask=("Which questions should I expect?", "How do I talk about my weaknesses?",
             "What should I ask at the end?", "How do I explain a gap in my career?")),
        "I have a job interview as {job} next week and feel nervous. {ask} Give me some examples.",
        "Help me prepare for an interview for a position as {job}. {ask} Keep the tips practical.",
        "You are an experienced career coach. I am applying to work as {job}. {ask}"),
    _family("study_plan", options(
        subject=("biology", "world history", "statistics", "French", "chemistry", "economics",
                 "geometry", "music theory"),
        weeks=("two weeks", "three weeks", "one month", "six weeks"),
        trouble=("I forget things quickly", "I get distracted easily", "I also work part time",
                 "I find the textbook boring")),
        "My {subject} exam is in {weeks}, and {trouble}. How should I organize my studying?",
        "Make a study schedule of {weeks} for an exam in {subject}. Please note that {trouble}.",
        "What are good methods to learn {subject} within {weeks} when {trouble}? List the most "
        "useful ones."),
    _family("budget", options(
        event=("a birthday party", "a weekend hike", "a family picnic", "a move to a new flat",
               "a small wedding", "a class reunion", "a garden makeover", "a school bake sale"),
        money=("$100", "$200", "$300", "$500", "$800"),
        people=("six people", "ten people", "fifteen people", "twenty people")),
        "Help me plan a budget of {money} for {event} with {people}. Which costs are easy to "
        "forget?",
        "I am organizing {event} for {people} and can spend {money}. How should I divide the "
        "money?",
        "What is the best way to stretch {money} when planning {event} for {people}? Give concrete "
        "tips.", split=HELDOUT),
    _family("history", options(
        event=("the invention of the printing press", "the first moon landing",
               "the fall of the Berlin Wall", "the building of the pyramids",
               "the Industrial Revolution", "the discovery of penicillin", "the French Revolution",
               "the first modern Olympic Games", "the opening of the Suez Canal"),
        ask=("Why did it matter?", "Who were the key people?", "How did it change daily life?",
             "What happened right before it?", "What do people often get wrong about it?")),
        "Tell me briefly about {event}. {ask} Please keep it suitable for a school presentation.",
        "I am reading about {event} for a history class. {ask} Answer in a few clear sentences.",
        "Summarize the story of {event} in one paragraph, and then answer this question: {ask}",
        split=HELDOUT),
)  # fmt: skip
