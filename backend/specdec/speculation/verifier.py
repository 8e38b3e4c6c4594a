"""One target pass over everything that is running: verify rows and prefill chunks together.

Knows the target only as a `Decoder`; knows nothing of text, clients or drafters.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import NamedTuple

from specdec.speculation.acceptance import accept
from specdec.speculation.sequence import Sequence
from specdec.types import Decoder, Extend, Extended, Features, Proposal, Verdict


class Work(NamedTuple):
    """What one sequence puts into the pass."""

    sequence: Sequence
    token_ids: Seq[int]  # committed tokens the target has not seen (a chunk of them)
    proposal: Proposal = Proposal()  # laid out; only behind the last committed token
    num_carried: int = 0  # of the proposal's tokens: the target drew them in the last step
    offered: Proposal = Proposal()  # what the drafter proposed before it was cut
    samples: bool = True  # False for a prefill chunk that is not the last
    is_resting: bool = False  # the drafter was not asked: what it could learn is not worth its time

    @property
    def extend(self) -> Extend:
        drafter, proposal = self.sequence.drafter, self.proposal
        wants_candidates = drafter is not None and self.samples and not self.is_resting
        return Extend(
            self.sequence.sequence_id,
            self.sequence.num_cached,
            [*self.token_ids, *proposal.token_ids],
            num_outputs=1 + len(proposal.token_ids) if self.samples else 0,
            parents=proposal.parents,
            num_candidates=drafter.num_candidates if drafter and wants_candidates else 0,
            wants_features=drafter is not None and drafter.needs_features,
            follows_draws=len(proposal.token_ids) > 0,
        )


class Outcome(NamedTuple):
    """What the pass gave for one work item."""

    verdict: Verdict | None  # None where nothing was sampled
    # [committed tokens + num_accepted, feature_size] where the drafter needs them: of everything
    # that is now in the cache for good.
    features: Features | None = None


def verify(target: Decoder, batch: Seq[Work]) -> tuple[list[Outcome], float]:
    """Run the pass and apply the acceptance rule.

    Returns:
        One outcome per work item, and the seconds spent inside the target. Raises
        `DecoderFailed`.
    """
    result = target.extend([work.extend for work in batch])
    outcomes = [
        _judge(work, sampled) for work, sampled in zip(batch, result.sequences, strict=True)
    ]
    return outcomes, result.compute_seconds


def _judge(work: Work, sampled: Extended) -> Outcome:
    features, num_kept = sampled.features, len(work.token_ids)
    verdict = None
    if work.samples:
        accepted = accept(work.proposal, sampled.token_ids)
        end = accepted.num_accepted + 1
        num_kept += accepted.num_accepted
        verdict = Verdict(
            sampled.token_ids[:end],
            sampled.logprobs[:end],
            len(work.proposal.token_ids),
            accepted.carry,
            sampled.candidate_ids[:end],
        )
    return Outcome(verdict, features if features is None else features[:num_kept])
