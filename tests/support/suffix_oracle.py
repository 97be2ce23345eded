"""The suffix proposer in the most obvious way: every text is read again for every count."""

from collections import Counter

from tspec.proposers.suffix_growth import (
    CANDIDATES_PER_MATCHED,
    MAX_CHILDREN,
    MIN_CHANCE,
    USED_MATCH,
    class_of,
)
from tspec.proposers.suffix_trie import DEPTH, RANKED

OWN, RESPONSES = 0, 1


def runs_of(text, longest=DEPTH + 1):
    """Every run of up to `longest` tokens, as often as it occurs."""
    for start in range(len(text)):
        for end in range(start + 1, min(len(text), start + longest) + 1):
            yield tuple(text[start:end])


class SuffixOracle:
    """Same events, same answers.

    responses  [[number, tokens], …], the next to be forgotten first
    coming     what is counted already of the one that is `begun`
    going      what is still counted of one that is being forgotten
    """

    def __init__(self, priors, max_candidates, max_response_tokens):
        self.priors = [float(each) for each in priors]
        self.max_candidates = max_candidates
        self.max_response_tokens = max_response_tokens
        self.texts, self.num_prompt, self.asked = {}, {}, set()
        self.responses, self.next_number, self.last_said = [], 0, {}
        self.waiting, self.begun, self.coming, self.going = [], [], [], []

    def admit(self, slot, prompt):
        self.release(slot)
        self.asked.discard(slot)
        self.texts[slot], self.num_prompt[slot] = list(prompt), len(prompt)

    def release(self, slot):
        text = self.texts.pop(slot, None)
        if text is not None and slot in self.asked:
            self.learn(text[self.num_prompt[slot] :])

    def observe(self, slot, tokens):
        if slot in self.texts:
            self.texts[slot] += tokens

    def learn(self, response):
        response = list(response[: self.max_response_tokens])
        if len(response) < 2:
            return
        self.waiting.append(response)
        while sum(map(len, self.waiting)) > self.max_response_tokens:
            self.waiting.pop(0)

    def catch_up(self, num_tokens):
        """Token by token."""
        while num_tokens and (self.begun or self.waiting):
            self.begun = self.begun or self.waiting.pop(0)
            if sum(map(len, self.counted())) == self.max_response_tokens:
                self.going = (self.going or self.responses.pop(0)[1])[1:]
                known = {run for each in self.counted() for run in runs_of(each)}
                self.last_said = {run: number for run, number in self.last_said.items() if run in known}
            self.coming = self.begun[: len(self.coming) + 1]
            ends = (tuple(self.coming[-length:]) for length in range(1, min(DEPTH + 1, len(self.coming)) + 1))
            self.last_said |= dict.fromkeys(ends, self.next_number)
            if self.coming == self.begun:
                self.responses.append([self.next_number, self.begun])
                self.begun, self.coming, self.next_number = [], [], self.next_number + 1
            num_tokens -= 1

    def counted(self):
        """The texts that responses are counted over."""
        return [self.going, self.coming, *(each for _, each in self.responses)]

    def continuations(self, population, slot, context):
        """What followed `context`: [(token, count), …] likeliest first, and in how many places it stands."""
        texts = [self.texts[slot]] if population == OWN else self.counted()
        counts, last, total = Counter(), {}, 0
        for text in texts:
            for end in range(len(context), len(text) + 1):
                if tuple(text[end - len(context) : end]) != context:
                    continue
                if end < len(text):
                    counts[text[end]] += 1
                    last[text[end]] = end
                total += population == RESPONSES or end < len(text)
        if population == RESPONSES:
            last = {token: self.last_said[(*context, token)] for token in counts}
        ranked = sorted(counts, key=lambda token: (-counts[token], -last[token], token))
        return [(token, counts[token]) for token in ranked], total

    def longest(self, population, slot, text):
        for length in range(min(DEPTH, len(text)), 0, -1):
            ranked, total = self.continuations(population, slot, tuple(text[-length:]))
            if ranked:
                return length, ranked, total
        return 0, [], 0

    def propose(self, slot, max_nodes):
        """Return [(token, parent, evidence), …], one a candidate; counts the response that was used as used."""
        if max_nodes == 1:
            return []
        self.asked.add(slot)
        text = self.texts[slot]
        paths, chances, nodes, offers = [[]], [1.0], [], []
        matches = [self.longest(population, slot, text) for population in (OWN, RESPONSES)]
        limit = min(
            self.max_candidates, max_nodes - 1, CANDIDATES_PER_MATCHED * max(match[0] for match in matches)
        )
        while len(nodes) < limit:
            offers += self.offers_of(slot, len(nodes), text + paths[-1], chances[-1])
            children = Counter(parent for _, parent, _ in nodes)
            left = [offer for offer in offers if offer["chance"] and children[offer["parent"]] < MAX_CHILDREN]
            if not left:
                break
            best = max(left, key=lambda offer: offer["chance"])
            nodes.append((best["token"], best["parent"], best["evidence"]))
            paths.append([*paths[best["parent"]], best["token"]])
            chances.append(best["chance"])
            best["chance"] = 0.0
        length, ranked, _ = matches[RESPONSES]
        if length >= USED_MATCH:
            self.use(self.last_said[(*text[-length:], ranked[0][0])])
        return nodes

    def offers_of(self, slot, node, text, chance):
        found = {}
        for population in (OWN, RESPONSES):
            length, ranked, total = self.longest(population, slot, text)
            for token, count in ranked[:RANKED]:
                evidence = class_of(population, length, count, total)
                offer = {"token": token, "parent": node, "evidence": evidence}
                offer["chance"] = chance * self.priors[evidence]
                is_better = token not in found or offer["chance"] > found[token]["chance"]
                if offer["chance"] >= MIN_CHANCE and is_better:
                    found.setdefault(token, {}).update(offer)
        return found.values()

    def use(self, number):
        self.responses.sort(key=lambda each: each[0] == number)
