"""A simulated machine and texts for the controller: virtual time, known costs, known odds."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from specdec.decoder.costs import shapes
from specdec.speculation.controller import Controller
from specdec.speculation.costs import CostModel
from specdec.speculation.planner import Candidate
from specdec.types import PassCost, Proposal

CAP = 8
PROMPT = 50  # tokens a draft model must catch up on when a sequence begins
Cost = Callable[[int, int], float]  # (sequences, rows) -> milliseconds


def cpu(num_sequences: int, num_rows: int) -> float:
    """Measured on two cores with a 135M model in fp32: flat to six rows, then 2 ms a row."""
    return 24.0 + max(0, num_rows - 6) * 2.0 + 1.8 * (num_sequences - 1)


def gpu(num_sequences: int, num_rows: int) -> float:
    """A roofline: weights are read in 10 ms, arithmetic catches up at about 300 rows."""
    return max(10.0, num_rows * 10.0 / 300.0) + 0.005 * num_sequences


MACHINES: dict[str, Cost] = {"cpu": cpu, "gpu": gpu}


def fitted(cost: Cost, scale: float = 1.0, num_slots: int = 64) -> CostModel:
    """What the server would measure when it loads."""
    return CostModel.fit([PassCost(n, r, scale * cost(n, r)) for n, r in shapes(num_slots)])


@dataclass
class World:
    """Steps a controller over sequences whose every draft token holds with probability alpha."""

    cost: Cost
    drafter: str  # "free" or "model"
    num_slots: int = 64
    draft_share: float = 0.1  # a draft pass costs that much of a target pass of as many rows
    noise: float = 0.0  # standard deviation of the times it sees; the score knows better
    seed: int = 0
    lengths: list[float] = field(default_factory=list)  # mean draft length of each step
    num_draft_calls: int = 0

    def __post_init__(self) -> None:
        model = fitted(self.cost, self.draft_share, self.num_slots)
        drafts = {"model": model} if self.drafter == "model" else {}
        target = fitted(self.cost, 1.0, self.num_slots)
        self.controller = Controller(target, drafts, ["free", "model"])
        self._random = random.Random(self.seed)
        self._undrafted: dict[int, int] = {}

    def step(self, alphas: list[float]) -> tuple[float, float]:
        """One decode step of sequences 0, 1, ...; returns expected (tokens, milliseconds)."""
        candidates = [
            Candidate(i, self.drafter, CAP, num_undrafted=self._undrafted.get(i, PROMPT))
            for i in range(len(alphas))
        ]
        limits = self.controller.limits(candidates)
        draft = self._draft(candidates, limits)
        offered = [Proposal((1,) * limit) for limit in limits]
        kept = self.controller.trim(candidates, offered, draft_seconds=draft)
        rows = sum(1 + len(p.token_ids) for p in kept)
        verify = self.cost(len(alphas), rows)
        seen = verify * max(0.1, self._random.gauss(1.0, self.noise))
        self.controller.observe_pass(len(alphas), rows, verify_seconds=seen, overhead_seconds=0.0)
        tokens = 0.0
        for alpha, candidate, proposal, offer in zip(
            alphas, candidates, kept, offered, strict=True
        ):
            num_drafts = len(proposal.token_ids)
            tokens += expected_tokens(alpha, num_drafts)
            outputs = self._outputs(alpha, num_drafts)
            self.controller.observe_text(candidate, offer, outputs)
            i = candidate.sequence_id
            # The draft model has seen its own tokens but the last.
            followed = min(len(outputs) - 1, max(len(offer.token_ids) - 1, 0))
            self._undrafted[i] = self._undrafted.get(i, PROMPT) + len(outputs) - followed
        self.lengths.append(sum(len(p.token_ids) for p in kept) / len(kept))
        return tokens, draft + verify

    def _draft(self, candidates: list[Candidate], limits: list[int]) -> float:
        if self.drafter == "free" or not any(limits):
            return 0.0
        self.num_draft_calls += 1
        asked = [c for c, limit in zip(candidates, limits, strict=True) if limit]
        cost = self.cost(len(asked), sum(c.num_undrafted for c in asked))
        for candidate in asked:
            self._undrafted[candidate.sequence_id] = 0
        for done in range(1, max(limits)):
            size = sum(limit > done for limit in limits)
            cost += self.cost(size, size)
        return self.draft_share * cost

    def _outputs(self, alpha: float, num_drafts: int) -> list[int]:
        """The target's tokens: 1 where it agrees with a draft token, of which all are 1."""
        outputs = []
        while len(outputs) < num_drafts and self._random.random() < alpha:
            outputs.append(1)
        return [*outputs, 1 if self._random.random() < alpha and len(outputs) == num_drafts else 0]

    def goodput(self, alphas: list[float], num_steps: int) -> float:
        steps = [self.step(alphas) for _ in range(num_steps)]
        return sum(tokens for tokens, _ in steps) / sum(seconds for _, seconds in steps)

    def fixed_goodput(self, alphas: list[float], length: int) -> float:
        """Tokens per millisecond of always drafting `length`."""
        size = len(alphas)
        verify = self.cost(size, size * (1 + length))
        draft = 0.0
        if self.drafter == "model" and length:
            draft = self.draft_share * length * self.cost(size, size)
        return sum(expected_tokens(a, length) for a in alphas) / (verify + draft)

    def best_fixed(self, alphas: list[float]) -> float:
        return max(self.fixed_goodput(alphas, length) for length in range(CAP + 1))


def expected_tokens(alpha: float, length: int) -> float:
    return sum(alpha**j for j in range(length + 1))
