"""Code families that ask for a new Python program or an explanation of a concept."""

from __future__ import annotations

from xpress_exp.data.family.bank import HELDOUT, TRAIN, Family, Fill, options

_CARE = (
    "Include a short docstring and one usage example.",
    "Use type hints and keep it short.",
    "Do not import any modules.",
    "Then explain in two sentences how it works.",
    "Show what it returns for two sample inputs.",
    "Mention its time complexity at the end.",
    "Handle unusual input in a sensible way.",
    "Keep the code readable for a beginner.",
)


def _family(name: str, fill: Fill, *variants: str, split: str = TRAIN) -> Family:
    return Family(name, "code", split, variants, fill)


def _tasks(*tasks: str) -> Fill:
    """Return a filler for slot ``task`` plus a request about style in slot ``care``."""
    return options(task=tasks, care=_CARE)


_WRITE = (
    "Write a Python function that {task}. {care}",
    "I need a small Python function that {task}. Please write it for me. {care}",
    "How would you write a function in Python that {task}? {care}",
)

FAMILIES = (
    _family("list_function", _tasks(
        "returns the second largest value in a list of numbers",
        "removes duplicates from a list while keeping the original order",
        "splits a list into chunks of a given size",
        "rotates a list to the right by k positions",
        "finds the longest increasing run in a list of integers",
        "merges two sorted lists into one sorted list",
        "returns all pairs of numbers in a list that add up to a target",
        "moves all zeros in a list to the end",
        "checks whether a list is a palindrome",
        "flattens a nested list of integers"), *_WRITE),
    _family("string_function", _tasks(
        "counts the vowels in a string",
        "checks whether two strings are anagrams of each other",
        "reverses the order of the words in a sentence",
        "finds the first character that does not repeat in a string",
        "converts a snake_case name to camelCase",
        "compresses repeated letters, so that 'aaabb' becomes 'a3b2'",
        "capitalizes the first letter of every word in a title",
        "returns the longest word in a sentence",
        "removes all punctuation from a text",
        "checks whether the brackets in a string are balanced"), *_WRITE),
    _family("number_function", _tasks(
        "checks whether an integer is prime",
        "returns the greatest common divisor of two integers",
        "computes the sum of the digits of a positive integer",
        "converts a decimal number to a binary string",
        "lists all prime numbers below n",
        "checks whether a year is a leap year",
        "returns the prime factors of a number",
        "converts a Roman numeral to an integer",
        "computes the median of a list of numbers",
        "decides whether a number is a perfect square"), *_WRITE),
    _family("dict_function", _tasks(
        "counts how often each word appears in a text and returns a dictionary",
        "inverts a dictionary so that values become keys",
        "groups a list of words by their first letter",
        "merges two dictionaries and adds the values of shared keys",
        "returns the three keys with the largest values in a dictionary",
        "turns a list of pairs into a dictionary of lists",
        "removes all keys whose value is None from a dictionary",
        "finds the most common value in a dictionary"), *_WRITE),
    _family("recursion", _tasks(
        "computes the n-th Fibonacci number", "prints all permutations of a short string",
        "computes the factorial of n", "solves the Tower of Hanoi puzzle",
        "lists all subsets of a set", "reverses a string", "computes x to the power n",
        "counts the ways to climb n stairs taking one or two steps at a time"),
        "Write a recursive Python function that {task}, and point out the base case. {care}",
        "Using recursion in Python, write a function that {task}. What is the base case? {care}"),
    _family("class_design", options(
        thing=("a bank account", "a shopping cart", "a library catalog", "a parking lot",
               "a music playlist", "a to-do list", "a vending machine", "a deck of cards"),
        extra=("a readable __repr__ method", "a method that prints a short summary",
               "validation of the arguments", "a small example of how to use it",
               "a method that resets its state"),
        care=_CARE[:1] + _CARE[3:4] + _CARE[7:]),
        "Design a simple Python class that models {thing}. Give it two or three useful methods "
        "and {extra}. {care}",
        "Write a Python class for {thing} with the methods you think are most important, plus "
        "{extra}. {care}"),
    _family("file_script", options(
        task=("counts the lines in a text file", "finds the longest line in a text file",
              "copies all lines that contain a given word to a new file",
              "renames every .txt file in a folder to .md", "adds line numbers to a text file",
              "prints the ten most common words in a text file",
              "joins several text files into one", "removes blank lines from a file"),
        safe=("the file may not exist", "the file can be very large", "the folder may be empty",
              "the text uses UTF-8 encoding", "the user passes the path as an argument")),
        "Write a short Python script that {task}. Keep in mind that {safe}.",
        "Please give me a Python script that {task}, and explain each part briefly. Note that "
        "{safe}.",
        "I want to automate a chore: a Python script that {task}. Remember that {safe}."),
    _family("regex", options(
        what=("email addresses", "phone numbers", "dates such as 2024-05-17", "hashtags",
              "web links", "prices such as $19.99", "postal codes with five digits",
              "words in capital letters", "times such as 14:30", "numbers with decimals"),
        source=("a customer message", "a log file", "a web page", "a chat history", "an invoice",
                "a list of notes")),
        "Write Python code that uses a regular expression to find all {what} in {source}, and "
        "explain the pattern piece by piece.",
        "I have the text of {source} as a string. How can I extract all {what} with the re module "
        "in Python? Show a short example.",
        "Using the re module, write a Python function that returns a list of all {what} found in "
        "{source}. Add a comment to the pattern."),
    _family("cli", options(
        tool=("converts temperatures between Celsius and Fahrenheit", "generates random passwords",
              "counts down from a number of seconds", "averages a list of numbers",
              "converts miles to kilometers", "prints a multiplication table",
              "rolls dice and prints the total", "splits a bill between friends"),
        flag=("--verbose", "--output", "--debug", "--quiet", "--version", "--log-file")),
        "Write a small command line program in Python with argparse that {tool}. Give it an "
        "optional {flag} argument and a help text.",
        "Create a Python command line tool that {tool}. Use argparse, support a {flag} option, and "
        "show an example call with its output.",
        "How do I build a Python script that {tool} when run from the terminal? Please use "
        "argparse and include {flag} as an option."),
    _family("errors", options(
        act=("reads a number typed by the user", "opens a configuration file",
             "divides two numbers given by the user", "parses a date from a string",
             "looks up a key in a dictionary", "converts a list of strings to integers",
             "loads a JSON file", "downloads a page"),
        policy=("asks the user again", "returns None",
                "prints a friendly message instead of a traceback",
                "raises a ValueError with a clear message", "retries at most three times")),
        "Write a Python function that {act}. If something goes wrong, it {policy}. Explain which "
        "exceptions you catch.",
        "Show how to use try and except in Python for a function that {act} and, in case of an "
        "error, {policy}. Why is a bare except a bad idea here?",
        "I have a program that {act}, but it sometimes crashes. Write a safer version in Python "
        "that {policy} in that case."),
    _family("dataclass", options(
        thing=("a book", "a student", "a product", "a movie", "a recipe", "a city", "a song",
               "an employee", "an order", "a sensor reading"),
        extra=("sort a list of them by one field", "print them in a readable way",
               "convert one to a dictionary", "check that no field is empty",
               "compare two of them for equality", "create one from a dictionary")),
        "Write a Python dataclass that describes {thing} with four suitable fields, and show how "
        "to {extra}.",
        "Create a dataclass in Python for {thing}. Choose sensible field types and add code to "
        "{extra}.",
        "How can I represent {thing} with a Python dataclass, and how would I {extra}? Give a "
        "complete example."),
    _family("generator", options(
        task=("the Fibonacci numbers", "the prime numbers", "the lines of a file in pairs",
              "the running total of a list", "the square numbers", "all substrings of a word",
              "a countdown from n to zero", "the moving average of a list of numbers"),
        ask=("Explain what yield does.", "Show how to take only the first ten values.",
             "Compare it with a version that returns a list.", "Use it in a for loop.",
             "Tell me when a generator saves memory.")),
        "Write a Python generator that produces {task}. {ask} Keep the example short and readable.",
        "How do I write a generator function in Python that yields {task}? {ask}",
        "Please implement a generator in Python for {task}, with a docstring and a short test. "
        "{ask}"),
    _family("concept", options(
        topic=("list comprehensions", "decorators", "lambda functions", "context managers",
               "the difference between a list and a tuple", "mutable default arguments",
               "*args and **kwargs", "inheritance", "virtual environments", "f-strings",
               "shallow and deep copies", "sets and dictionaries", "the zip function"),
        who=("someone new to programming", "a student who knows Java", "a busy data analyst",
             "a high school class", "a colleague who mostly writes spreadsheets")),
        "Explain {topic} in Python to {who}. Use one short code example and avoid jargon.",
        "What should {who} know about {topic} in Python? Give a brief explanation, an example, and "
        "one common mistake.",
        "Give {who} a short lesson about {topic} in Python, ending with a small exercise."),
    _family("simulation", options(
        game=("rock, paper, scissors", "a number guessing game", "a coin flip contest",
              "a dice game for two players", "hangman", "tic-tac-toe", "a quiz with five questions",
              "a simple lottery draw"),
        rule=("keep score over several rounds", "let the user quit at any time",
              "use a fixed random seed for testing", "reject invalid input",
              "print the winner at the end")),
        "Write a simple text version of {game} in Python. The program should {rule} and use small "
        "functions.",
        "I am learning Python and want to program {game}. Please write the code, make sure to "
        "{rule}, and explain the main loop.",
        "Plan and write a short Python program for {game}. Make sure to {rule}."),
    _family("csv_report", options(
        data=("sales by region", "student grades", "daily temperatures", "website visits",
              "household expenses", "running times", "employee salaries", "book loans"),
        want=("the average for each category", "the total of one column", "the five largest rows",
              "the rows with missing values", "the minimum and maximum", "a count per month")),
        "I have a CSV file with {data}. Write Python code that uses the csv module to read it and "
        "print {want}.",
        "Write a Python script that loads {data} from a CSV file and reports {want}. Use only the "
        "standard library.",
        "Show me how to compute {want} from a CSV file of {data} in Python, and explain each "
        "step of the code."),
    _family("json_transform", options(
        data=("a list of users", "a list of orders", "weather reports", "blog posts",
              "a list of songs", "game scores", "sensor readings", "a list of recipes"),
        want=("keep only two of the fields", "sort the records by name", "group them by date",
              "remove records without an id", "rename one of the keys", "count records per type")),
        "Given a JSON string with {data}, write Python code to parse it, {want}, and print the "
        "result as indented JSON.",
        "My program receives {data} as JSON. How can I {want} in Python and then save the output "
        "to a file?", "Write a Python function that takes JSON text holding {data} and returns new "
        "JSON text. It should {want}.", split=HELDOUT),
    _family("grid", _tasks(
        "transposes a matrix", "rotates a square matrix by 90 degrees",
        "counts the neighbors of a cell that are alive", "prints a matrix in spiral order",
        "finds the row with the largest sum in a matrix", "checks a small Sudoku grid for repeats",
        "adds two matrices of the same shape", "counts the islands in a grid of zeros and ones"),
        "In Python, a grid is stored as a list of lists. Write a function that {task}. {care}",
        "Work with a list of lists in Python: implement a function that {task}. {care}",
        split=HELDOUT),
    _family("date_time", options(care=_CARE[:2] + _CARE[3:], task=(
        "returns the number of days between two dates", "computes a person's age from a birthday",
        "lists all Mondays in a given month", "adds a number of working days to a date",
        "tells the day of the week for a date", "formats seconds as hours, minutes and seconds",
        "finds the next leap year after a given year", "checks whether two time ranges overlap",
        "converts a date such as 3 May 2024 to the form 2024-05-03")),
        "Using the datetime module where it helps, write a Python function that {task}. {care}",
        "I work with dates in Python a lot. Could you write a function that {task}? {care}",
        split=HELDOUT),
)  # fmt: skip
