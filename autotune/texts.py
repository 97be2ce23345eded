"""Prompts that proposers are judged on, and what the target answers to them. All prompts here were written for this."""

from collections.abc import Sequence
from dataclasses import dataclass

from tspec.core.errors import ConfigError
from tspec.core.sampling_params import SamplingParams
from tspec.requests.text_engine import TextEngine

PROMPTS = (
    "Summarize in three sentences: The town council met on Tuesday to discuss the old mill by the river. The mill has "
    "stood empty since 1987, and its roof fell in last winter. One group of citizens wants it to become a museum of "
    "local trade, another would rather see flats there. The mayor said that the town has no money for either, but that "
    "the region offers grants for buildings of more than a hundred years. A decision is expected in June.",
    "Write a Python function that merges two sorted lists into one sorted list, with a docstring and an example.",
    "A farmer has 14 rows of 23 apple trees. Each tree gives 35 apples, and 1 apple in 10 is bad. How many good apples "
    "does he have? Think step by step.",
    "Translate into French: The weather was fine, so we walked to the lake and ate our lunch under a tree.",
    "Write a short story about a lighthouse keeper who finds a letter in a bottle.",
    "What are the main causes of inflation? Give a list with one sentence for each.",
    "Correct the spelling and return the whole text: The quik brown fox jumpd over the lasy dog, and then it ran acros "
    "the feild to the old barn, were it slept untill the sun came up again.",
    "Extract all people and their jobs as JSON: Maria Lopez is a nurse in Sevilla. Her brother Juan teaches music. "
    "Their neighbour, Peter Novak, drives a bus, and his wife Anna Novak is a dentist.",
    "Explain to a ten-year-old how a vaccine works.",
    "Using the notes, answer the question. Notes: The Danube is 2,850 km long. It rises in the Black Forest and flows "
    "into the Black Sea. It passes four capitals: Vienna, Bratislava, Budapest and Belgrade. Question: Which capitals "
    "does the Danube pass, and where does it end?",
    "You are a travel guide in Rome. Greet your group and tell them the plan of the day.",
    "Compare a stack and a queue in a table, then show both in Python.",
)
"""What a policy is made from where the user gives no prompts: the kinds of work that people give to models."""
HOLD_OUT = 4
"""Every fourth prompt is kept from tuning; what was predicted is measured on it."""


@dataclass(frozen=True, slots=True)
class Text:
    """A prompt's tokens and the target's greedy answer."""

    prompt: tuple[int, ...]
    output: tuple[int, ...]


def split(prompts: Sequence[str]) -> tuple[list[str], list[str]]:
    """Those to tune on, and those to measure on. Errors: ConfigError for fewer than two prompts"""
    if len(prompts) < 2:
        need = "at least 2: one to tune on, one to measure on"
        raise ConfigError("prompts", got=len(prompts), need=need, fix="Give more.")
    step = min(HOLD_OUT, len(prompts))
    kept = set(range(step - 1, len(prompts), step))
    tuned = [prompt for number, prompt in enumerate(prompts) if number not in kept]
    return tuned, [prompts[number] for number in sorted(kept)]


def encode(engine: TextEngine, prompt: str) -> list[int]:
    """The prompt as the model's chats have it; as it is for a model without a chat template."""
    try:
        return engine.tokenizer.encode_chat([{"role": "user", "content": prompt}])
    except ConfigError:
        return engine.encode(prompt)


@dataclass(frozen=True, slots=True)
class Answer:
    """A finished request: its text, and what decoding it took, the prompt left out."""

    text: Text
    decode_s: float
    num_passes: int


def answer(engine: TextEngine, prompt: Sequence[int], max_tokens: int, *, speculates: bool) -> Answer:
    """Decode one prompt greedily, alone."""
    params = SamplingParams(max_tokens=max_tokens, speculative="auto" if speculates else "off")
    handle = engine.add(prompt, engine.samples(params, most=1))[0]
    while not handle.is_finished:
        engine.step()
    result = handle.finished_result()
    text = Text(tuple(result.prompt_token_ids), tuple(result.token_ids))
    return Answer(text, result.stats.decode_s, result.stats.num_passes)
