"""How many draft tokens pay: decided each step from measured costs and measured acceptance.

The step's goodput is  expected tokens / expected seconds  of the whole batch (SmartSpec,
arXiv 2406.14066). A draft token's worth is its survival probability, its price a row of the pass;
sorted by worth, rows are added while goodput grows. K = 0 is one of the choices, and then a
draft model is not called at all.

Knows sequences by id, drafters by name; knows no decoder and no Triton.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from specdec.speculation.costs import CostModel, MovingMean, bucket
from specdec.speculation.outlook import Outlook
from specdec.types import Proposal

Reason = Literal["cap", "none", "acceptance", "cost", "load"]

HYSTERESIS = 1.02  # another draft length must promise this much more to replace the last one
EXPLORE_SHARE = 0.01  # of the time may go into asking a draft model that does not seem to pay
MIN_EXPLORE_STEPS = 16
CATCH_UP_STEPS = 16  # a draft model's catching up is paid off over that many steps
POOR_ODDS = 0.3  # a draft token less likely than this was cut for its odds, not for its price


class Candidate(NamedTuple):
    """One decoding sequence before the step."""

    sequence_id: int
    drafter: str
    limit: int  # the request's cap, what is left of the text
    is_fixed: bool = False  # the request asked for exactly this many
    num_undrafted: int = 1  # tokens a draft model must catch up on


@dataclass(slots=True)
class _Group:
    """What is remembered of a drafter that calls a model, per batch size."""

    last: dict[int, int] = field(default_factory=dict)  # bucket -> draft length chosen last
    num_idle: int = 0  # steps since it was last asked
    is_hopeful: bool = False  # its last proposal was right


class Controller:
    """Chooses draft lengths. One per engine; called by its one thread."""

    def __init__(
        self, target: CostModel, drafts: dict[str, CostModel], drafter_names: Seq[str]
    ) -> None:
        """`drafts`: the cost model of each drafter that calls a model; others cost nothing."""
        self.target = target
        self.drafts = drafts
        self.outlooks = {name: Outlook() for name in drafter_names}
        self.overheads: dict[int, MovingMean] = {}  # orchestration by bucket
        self.reasons: Counter[Reason] = Counter()  # since the last `take`
        self.expected_tokens = 0.0  # promised by the proposals let through, since the last `take`
        self._groups = {name: _Group() for name in drafts}

    # ---- before the drafters are asked ---------------------------------------------------

    def limits(self, candidates: Seq[Candidate], *, other_seconds: float = 0.0) -> list[int]:
        """Draft tokens to ask for, per candidate: the cap where proposals are free, the best
        common length where a draft model must be paid. 0 means no draft call.

        Args:
            other_seconds: the step's other passes (prompt chunks), paid whatever is decided.
        """
        chosen = [c.limit for c in candidates]
        for name in self.drafts:
            group = [i for i, c in enumerate(candidates) if c.drafter == name and not c.is_fixed]
            if not group:
                continue
            members = [candidates[i] for i in group]
            lengths = self._draft_lengths(name, members, len(candidates), other_seconds)
            for i, length in zip(group, lengths, strict=True):
                chosen[i] = min(chosen[i], length)
        return chosen

    def _draft_lengths(
        self, name: str, members: Seq[Candidate], num_sequences: int, other_seconds: float
    ) -> list[int]:
        """The common length of best goodput; at 0, now and then one sequence is asked anyway."""
        state = self._groups[name]
        key = bucket(num_sequences)
        cap = max(c.limit for c in members)
        goodput = [
            self._goodput(name, members, num_sequences, length, other_seconds)
            for length in range(cap + 1)
        ]
        best = max(range(cap + 1), key=goodput.__getitem__)
        last = min(state.last.get(key, best), cap)
        if goodput[best] < HYSTERESIS * goodput[last]:
            best = last
        state.last[key] = best
        if best or not cap:
            state.num_idle = 0
            return [best] * len(members)
        return self._explore(name, members, num_sequences)

    def _explore(self, name: str, members: Seq[Candidate], num_sequences: int) -> list[int]:
        """Texts change and only asking shows it: one token for the cheapest sequence, as seldom
        as keeps this under `EXPLORE_SHARE` of the time; at once again after a success."""
        state = self._groups[name]
        state.num_idle += 1
        able = [c for c in members if c.limit]
        asked = min(able, key=lambda c: c.num_undrafted)
        price = self.drafts[name].predict(1, asked.num_undrafted)
        patience = price / (EXPLORE_SHARE * self.plain_seconds(num_sequences))
        if not state.is_hopeful and state.num_idle < max(MIN_EXPLORE_STEPS, patience):
            return [0] * len(members)
        state.num_idle, state.is_hopeful = 0, False
        return [int(c is asked) for c in members]

    def _goodput(
        self, name: str, members: Seq[Candidate], num_sequences: int, length: int, others: float
    ) -> float:
        """Expected tokens per second of the batch if each member drafts up to `length`."""
        tokens, rows = float(num_sequences), num_sequences
        for member in members:
            num_drafts = min(length, member.limit)
            rows += num_drafts
            tokens += sum(self.outlooks[name].survival(member.sequence_id, 0, num_drafts))
        seconds = self.target.predict(num_sequences, rows) + self.overhead(num_sequences) + others
        return tokens / (seconds + self.draft_seconds(name, members, length))

    def draft_seconds(self, name: str, members: Seq[Candidate], length: int) -> float:
        """One draft call: a pass per token, and a share of what it takes to catch up."""
        if length == 0:
            return 0.0
        cost, size = self.drafts[name], len(members)
        one_token = cost.predict(size, size)
        catch_up = cost.predict(size, sum(c.num_undrafted for c in members)) - one_token
        return length * one_token + max(0.0, catch_up) / CATCH_UP_STEPS

    def overhead(self, num_sequences: int) -> float:
        mean = self.overheads.get(bucket(num_sequences))
        return mean.value if mean else 0.0

    # ---- after they have proposed --------------------------------------------------------

    def trim(
        self, candidates: Seq[Candidate], proposals: Seq[Proposal], *, other_seconds: float = 0.0
    ) -> list[Proposal]:
        """Cut every proposal to the rows that pay in this batch. Cutting is exact: the target
        writes the same text whatever it is offered."""
        num_sequences = len(candidates)
        kept = [
            len(p.token_ids) if c.is_fixed else 0
            for c, p in zip(candidates, proposals, strict=True)
        ]
        offers: list[tuple[float, int]] = []  # (survival, index), one per draft token
        for i, (candidate, proposal) in enumerate(zip(candidates, proposals, strict=True)):
            if not candidate.is_fixed and proposal.token_ids:
                odds = self._survival(candidate, proposal)
                offers += [(probability, i) for probability in odds]
        offers.sort(key=lambda offer: -offer[0])  # stable: within a proposal, order stays
        rows = num_sequences + sum(kept)
        fixed_seconds = self.overhead(num_sequences) + other_seconds
        tokens = float(num_sequences)
        best, best_count = tokens / (self.target.predict(num_sequences, rows) + fixed_seconds), 0
        for count, (probability, _) in enumerate(offers, start=1):
            tokens += probability
            seconds = self.target.predict(num_sequences, rows + count) + fixed_seconds
            if tokens / seconds > best:
                best, best_count = tokens / seconds, count
        for probability, i in offers[:best_count]:
            kept[i] += 1
            self.expected_tokens += probability
        self.expected_tokens += num_sequences
        return [
            self._cut(c, p, k, num_sequences)
            for c, p, k in zip(candidates, proposals, kept, strict=True)
        ]

    def _survival(self, candidate: Candidate, proposal: Proposal) -> list[float]:
        outlook = self.outlooks[candidate.drafter]
        return outlook.survival(candidate.sequence_id, proposal.omen, len(proposal.token_ids))

    def _cut(self, candidate: Candidate, proposal: Proposal, kept: int, size: int) -> Proposal:
        """Shorten one proposal and note why."""
        if not proposal.token_ids:
            if candidate.limit:
                self.reasons["none"] += 1
            return proposal
        if kept == len(proposal.token_ids):
            self.reasons["cap"] += 1
            return proposal
        odds = self._survival(candidate, proposal)[kept]
        poor = odds < POOR_ODDS
        self.reasons["acceptance" if poor else "load" if size > 1 else "cost"] += 1
        return proposal._replace(token_ids=proposal.token_ids[:kept])

    # ---- after the step ------------------------------------------------------------------

    def observe_text(self, candidate: Candidate, proposal: Proposal, output_ids: Seq[int]) -> None:
        """Judge the untrimmed proposal by what the target wrote."""
        outlook = self.outlooks[candidate.drafter]
        outlook.observe(candidate.sequence_id, proposal.omen, proposal.token_ids, output_ids)
        if candidate.drafter in self._groups:
            is_right = proposal.token_ids[:1] == tuple(output_ids[:1])
            self._groups[candidate.drafter].is_hopeful = is_right

    def observe_pass(
        self, num_sequences: int, num_rows: int, *, verify_seconds: float, overhead_seconds: float
    ) -> None:
        """Correct the costs by one decode-only step."""
        self.target.observe(num_sequences, num_rows, verify_seconds)
        self.overheads.setdefault(bucket(num_sequences), MovingMean()).observe(overhead_seconds)

    def observe_draft(
        self, name: str, num_sequences: int, num_rows: int, length: int, seconds: float
    ) -> None:
        """Correct a draft model's costs by one call: `num_rows` first, then `length - 1` passes."""
        cost = self.drafts.get(name)
        if cost is None:
            return
        expected = cost.predict(num_sequences, num_rows)
        expected += (length - 1) * cost.predict(num_sequences, num_sequences)
        if expected > 0.0:
            share = cost.predict(num_sequences, num_rows) / expected
            cost.observe(num_sequences, num_rows, seconds * share)

    def plain_seconds(self, num_sequences: int) -> float:
        """What one step without drafts takes, by the present costs."""
        return self.target.predict(num_sequences, num_sequences) + self.overhead(num_sequences)

    def end(self, sequence_id: int) -> None:
        for outlook in self.outlooks.values():
            outlook.end(sequence_id)

    def take(self) -> tuple[Counter[Reason], float]:
        """Reasons by count and expected tokens, since the last call."""
        taken = self.reasons, self.expected_tokens
        self.reasons, self.expected_tokens = Counter(), 0.0
        return taken
