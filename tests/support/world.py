"""A simulated machine and texts for the controller: virtual time, known costs, known odds."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import accumulate
from operator import mul
from typing import Any

from specdec.decoder.costs import shapes
from specdec.drafters._grow import Branch, grow
from specdec.speculation.acceptance import accept, lay_out
from specdec.speculation.controller import Controller
from specdec.speculation.costs import CostModel
from specdec.speculation.planner import Candidate, DraftModel
from specdec.speculation.rows import on_trunk
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
    drafter: str  # "free", "model" or "tree"
    num_slots: int = 64
    draft_share: float = 0.1  # a draft pass costs that much of a target pass of as many rows
    noise: float = 0.0  # standard deviation of the times it sees; the score knows better
    seed: int = 0
    table: Cost | None = None  # what was measured at load, where that is wrong
    idle: float = 0.0  # milliseconds of a place left empty beside a longer sequence
    asking: float = 0.0  # milliseconds of a drafter's own code per sequence
    lengths: list[float] = field(default_factory=list)  # mean draft length of each step
    num_draft_calls: int = 0
    num_asked: int = 0  # steps in which any drafter was asked
    now: float = 0.0

    def __post_init__(self) -> None:
        model = fitted(self.cost, self.draft_share, self.num_slots)
        models = {"model": DraftModel(model)} if self.drafter == "model" else {}
        target = fitted(self.table or self.cost, 1.0, self.num_slots)
        names = ["free", "model", "tree"]
        self.controller = Controller(target, models, names, clock=lambda: self.now)
        self._random = random.Random(self.seed)
        self._undrafted: dict[int, int] = {}

    def step(self, alphas: list[float]) -> tuple[float, float]:
        """One decode step of sequences 0, 1, ...; returns expected (tokens, milliseconds)."""
        candidates = [self.candidate(i) for i in range(len(alphas))]
        limits = self.controller.limits(candidates)
        draft = self._draft(candidates, limits)
        asking = self.asking * sum(limit > 0 for limit in limits)
        self.num_asked += any(limits)
        self.now += asking + draft
        offered = [self.offer(c, limit) for c, limit in zip(candidates, limits, strict=True)]
        kept = self.controller.trim(candidates, offered, draft_seconds=draft)
        each = [1 + c.num_carried + len(p.token_ids) for c, p in zip(candidates, kept, strict=True)]
        verify = self.cost(len(alphas), sum(each))
        verify += self.idle * (len(each) * max(each) - sum(each))
        self.now += verify
        seen = verify * max(0.1, self._random.gauss(1.0, self.noise))
        self.controller.observe_pass(each, verify_seconds=seen, overhead_seconds=asking)
        tokens = 0.0
        for alpha, candidate, proposal, offer in zip(
            alphas, candidates, kept, offered, strict=True
        ):
            tokens += self.expected(alpha, proposal)
            outputs = self.outputs(candidate, alpha, proposal)
            self.controller.observe_text(candidate, offer, outputs)
            i = candidate.sequence_id
            # The draft model has seen its own tokens but the last.
            followed = min(len(outputs) - 1, max(len(offer.token_ids) - 1, 0))
            self._undrafted[i] = self._undrafted.get(i, PROMPT) + len(outputs) - followed
        self.lengths.append(sum(len(p.token_ids) for p in kept) / len(kept))
        return tokens, asking + draft + verify

    def candidate(self, sequence_id: int) -> Candidate:
        num_undrafted = self._undrafted.get(sequence_id, PROMPT)
        return Candidate(sequence_id, self.drafter, CAP, num_undrafted=num_undrafted)

    def offer(self, candidate: Candidate, limit: int) -> Proposal:
        return Proposal((1,) * limit)

    def expected(self, alpha: float, proposal: Proposal) -> float:
        return expected_tokens(alpha, len(proposal.token_ids))

    def outputs(self, candidate: Candidate, alpha: float, proposal: Proposal) -> list[int]:
        """The target's tokens: 1 where it agrees with a draft token, of which all are 1."""
        num_drafts, found = len(proposal.token_ids), []
        while len(found) < num_drafts and self._random.random() < alpha:
            found.append(1)
        is_full = len(found) == num_drafts
        return [*found, 1 if self._random.random() < alpha and is_full else 0]

    def _draft(self, candidates: list[Candidate], limits: list[int]) -> float:
        if self.drafter != "model" or not any(limits):
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

    def goodput(self, alphas: list[float], num_steps: int) -> float:
        steps = [self.step(alphas) for _ in range(num_steps)]
        return sum(tokens for tokens, _ in steps) / sum(seconds for _, seconds in steps)

    def fixed_goodput(self, alphas: list[float], length: int) -> float:
        """Tokens per millisecond of always drafting `length`."""
        size = len(alphas)
        tokens, more_rows = zip(*(self.fixed(alpha, length) for alpha in alphas), strict=True)
        spent = self.cost(size, size + sum(more_rows))
        if length:
            spent += self.asking * size
            if self.drafter == "model":
                spent += self.draft_share * length * self.cost(size, size)
        return sum(tokens) / spent

    def fixed(self, alpha: float, length: int) -> tuple[float, float]:
        """Expected tokens and rows beyond the first, of one sequence and step."""
        return expected_tokens(alpha, length), length

    def best_fixed(self, alphas: list[float]) -> float:
        return max(self.fixed_goodput(alphas, length) for length in range(CAP + 1))


class TreeWorld(World):
    """Drafts are trees: the target writes what a drafter holds for the likeliest, the second or
    the third with odds that are known. What holds on a branch is carried to the next step."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._carried: dict[int, tuple[int, ...]] = {}
        self._text: dict[int, list[int]] = {}  # what the target is going to write: ranks

    def candidate(self, sequence_id: int) -> Candidate:
        num_carried = len(self._carried.get(sequence_id, ()))
        return Candidate(sequence_id, "tree", CAP - num_carried, num_carried=num_carried)

    def offer(self, candidate: Candidate, limit: int) -> Proposal:
        if not limit:
            return Proposal()
        judge = self.controller.judge("tree")
        odds = judge.odds(candidate.sequence_id)
        tree = grow(Branch(0, 0, 0), _ranks, odds, max_tokens=limit, least=judge.least)
        return tree.proposal

    def expected(self, alpha: float, proposal: Proposal) -> float:
        """What a branch brings counts here, though it is written in the next step."""
        return 1.0 + sum(path_odds(proposal, alpha))

    def outputs(self, candidate: Candidate, alpha: float, proposal: Proposal) -> list[int]:
        """Walks the laid-out tree as the engine does; ranks behind what was carried."""
        i = candidate.sequence_id
        carried = self._carried.get(i, ())
        laid, text = lay_out(proposal.behind(carried)), self._text.setdefault(i, [])
        while len(text) < len(laid.token_ids) + 2:
            text.append(_draw(self._random.random(), alpha))
        sampled, reached = [text[0], *[0] * len(laid.token_ids)], {-1: 0}
        for node, (parent, token_id) in enumerate(zip(laid.links, laid.token_ids, strict=True)):
            if parent in reached and text[reached[parent]] == token_id:
                reached[node] = reached[parent] + 1
                sampled[node + 1] = text[reached[node]]
        accepted = accept(laid, sampled)
        known = [*text[: accepted.num_accepted + 1], *accepted.carry]
        del text[: accepted.num_accepted + 1]
        self._carried[i] = accepted.carry[: CAP - 1]
        return known[len(carried) :]

    def fixed(self, alpha: float, length: int) -> tuple[float, float]:
        """The best tree of that many tokens; branches that hold cost another row."""
        odds = ranks_of(alpha)
        best = grow(
            Branch(0, 0, 0), _ranks, lambda omen, _: odds[omen - 1], max_tokens=length, least=0.0
        ).proposal
        paths = path_odds(best, alpha)
        trunk = on_trunk([best], length)[0].tolist()
        carried = sum(p for p, is_trunk in zip(paths, trunk, strict=True) if not is_trunk)
        return 1.0 + sum(paths), length + carried


class PassWorld(World):
    """A model that grows its draft a token a pass, as many passes as the judge pays for, behind
    copies that are free: of those every token holds with odds `free`."""

    free: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        model = DraftModel(
            fitted(self.cost, self.draft_share, self.num_slots), grows_trees=True, is_optional=True
        )
        target = fitted(self.table or self.cost, 1.0, self.num_slots)
        self.controller = Controller(target, {"tree": model}, ["tree"], clock=lambda: self.now)
        self._passes: dict[int, int] = {}

    def _draft(self, candidates: list[Candidate], limits: list[int]) -> float:
        asked = [c for c, limit in zip(candidates, limits, strict=True) if limit]
        copies = [self.free ** (n + 1) for n in range(CAP)] if self.free else []
        ids = [c.sequence_id for c in asked]
        found = self.controller.judge("tree").passes(ids, [copies] * len(ids)) if ids else []
        self._passes = dict(zip(ids, found, strict=True))
        paid = [c for c in asked if self._passes[c.sequence_id]]
        self.num_draft_calls += bool(paid)
        spent = self.cost(len(paid), sum(c.num_undrafted for c in paid)) if paid else 0.0
        for done in range(1, max(self._passes.values(), default=0)):
            size = sum(num > done for num in self._passes.values())
            spent += self.cost(size, size)
        for c in paid:
            self._undrafted[c.sequence_id] = 0
        return self.draft_share * spent

    def offer(self, candidate: Candidate, limit: int) -> Proposal:
        """The model's tokens are omen 2, copies omen 1."""
        num_passes = min(self._passes.get(candidate.sequence_id, 0), limit)
        size = limit if self.free else num_passes
        omens = (2,) * num_passes + (1,) * (size - num_passes)
        return Proposal((1,) * size, omens, tuple(range(-1, size - 1)))

    def expected(self, alpha: float, proposal: Proposal) -> float:
        odds = [alpha if omen == 2 else self.free for omen in proposal.omens]
        return 1.0 + sum(accumulate(odds, mul))

    def outputs(self, candidate: Candidate, alpha: float, proposal: Proposal) -> list[int]:
        """As far as what was offered goes, cut or not."""
        num_passes = self._passes.get(candidate.sequence_id, 0)
        found: list[int] = []
        while len(found) < len(proposal.token_ids):
            odds = alpha if len(found) < num_passes else self.free
            if self._random.random() >= odds:
                return [*found, 0]
            found.append(1)
        next_odds = alpha if len(found) < num_passes else self.free
        return [*found, 1 if self._random.random() < next_odds else 0]

    def best_fixed(self, alphas: list[float]) -> float:
        """Of every number of passes with copies behind, or none."""
        size = len(alphas)
        goodputs = [self.fixed_goodput(alphas, 0)]
        for num_passes in range(CAP + 1):
            for length in range(max(num_passes, 1), CAP + 1 if self.free else num_passes + 1):
                tokens = 0.0
                for alpha in alphas:
                    odds = [alpha] * num_passes + [self.free] * (length - num_passes)
                    tokens += 1.0 + sum(accumulate(odds, mul))
                spent = self.cost(size, size * (1 + length))
                spent += self.draft_share * num_passes * self.cost(size, size)
                goodputs.append(tokens / spent)
        return max(goodputs)


def ranks_of(alpha: float) -> tuple[float, float, float]:
    """Odds of the likeliest, second and third candidate."""
    return 0.75 * alpha, 0.15 * alpha, 0.05 * alpha


def path_odds(proposal: Proposal, alpha: float) -> list[float]:
    odds = ranks_of(alpha)
    found: list[float] = []
    for parent, rank in zip(proposal.links, proposal.token_ids, strict=True):
        found.append(odds[rank - 1] * (found[parent] if parent >= 0 else 1.0))
    return found


def _ranks(branch: Branch) -> list[Branch]:
    return [Branch(0, rank, rank) for rank in (1, 2, 3)]


def _draw(uniform: float, alpha: float) -> int:
    """A rank, or 0 for none of them."""
    for rank, odds in enumerate(ranks_of(alpha), start=1):
        uniform -= odds
        if uniform < 0:
            return rank
    return 0


def make_world(cost: Cost, drafter: str, *positional: int, **settings: Any) -> World:
    kind = {"tree": TreeWorld, "passes": PassWorld}.get(drafter, World)
    name = "tree" if drafter == "passes" else drafter
    free = settings.pop("free", 0.0)
    world = kind(cost, name, *positional, **settings)
    if isinstance(world, PassWorld):
        world.free = free
    return world


def expected_tokens(alpha: float, length: int) -> float:
    return sum(alpha**j for j in range(length + 1))
