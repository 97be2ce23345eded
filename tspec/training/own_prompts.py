"""Prompts that the target makes up itself: it is given its chat template up to the user's turn, and goes on from there.

What a model takes for a user's question is near to what it was tuned on, and never runs out.

Source    Magpie, arXiv:2406.08464
"""

from typing import TYPE_CHECKING

from tspec.core.sampling_params import SamplingParams
from tspec.requests.handle import Result

if TYPE_CHECKING:
    from tspec.llm import LLM

MAX_TOKENS = 192
"""A turn that is longer is cut here: what follows is seldom a question any more."""


class OwnPrompts:
    """Asks for a user's turn, and makes a prompt of it.

    opening   ids that come before the turn; None for a target without a template that a turn could be asked with
    """

    def __init__(self, llm: "LLM", max_prompt_tokens: int) -> None:
        self._llm, self._max_prompt_tokens = llm, max_prompt_tokens
        around = llm.tokenizer.around_user_turn()
        self.opening: list[int] | None
        self.opening, after = (None, []) if around is None else around
        self._ends = tuple(after[:1])

    def params(self, number: int) -> SamplingParams:
        """How the turn of text `number` is drawn. It ends as the template, or the target, ends a turn."""
        return SamplingParams(max_tokens=MAX_TOKENS, temperature=1.0, seed=number, stop_token_ids=self._ends)

    def prompt(self, turn: Result) -> list[int] | None:
        """Ids of the prompt that asks what the turn says; None for one that says nothing or is too long."""
        content = turn.text.strip()
        if not content:
            return None
        prompt = self._llm.encode_chat([{"role": "user", "content": content}])
        return prompt if len(prompt) <= self._max_prompt_tokens else None
