"""Prompt lookup, token recycling and, where the server has one, a trained head in one tree: the
server's default.

Where the text repeats itself, what followed last time is the likeliest branch; where it does not,
or may turn, the target's own former candidates are, or what a head finds likely. As SAM decoding
(arXiv 2411.10666) chooses between a lookup and another drafter by the match's length, but branch by
branch: what pays is decided by the odds each kind of branch has had. Copies and candidates are
free, so they come first; a head is asked where its passes bring more than they cost beside those.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from functools import partial
from typing import ClassVar, NamedTuple, cast

from specdec.drafters._buckets import BUCKET_ODDS, bucket_of
from specdec.drafters._grow import Branch, Tree, grow
from specdec.drafters._head import CATCH_UP_ROWS, Drafts, HeadFollower
from specdec.drafters._memory import WIDTH, Memory
from specdec.drafters.base import Drafter, DraftView, Judge, ProposeResult, undecided
from specdec.drafters.ngram import MAX_OMEN, Index
from specdec.drafters.recycle import FIRST_ODDS as RECYCLED_ODDS
from specdec.drafters.recycle import PAIR, SINGLE, last_two, learn
from specdec.errors import DecoderFailed
from specdec.types import Decoder, Features, Head, HeadDraft, Verdict

logger = logging.getLogger(__name__)

# Omens: recycled branches as in `recycle`, then the same beside a copied one; copied branches by
# the length of their match, then those that a recycled branch agrees with.
BESIDE = PAIR + 2 * WIDTH
COPIED = BESIDE + 2 * WIDTH
AGREED = COPIED + MAX_OMEN + 1
# Where a head has spoken: its own branches by the probability it gave them, the same beside a
# copy, and copies that it had too; then what it did not have: copies, first and other candidates.
GUESSED = AGREED + MAX_OMEN + 1
GUESSED_BESIDE = GUESSED + len(BUCKET_ODDS)
_SURE = (2, 4, 6)  # fewer kinds where a copy speaks too: the head's bucket, 0 to 3
CONFIRMED = GUESSED_BESIDE + len(_SURE) + 1
_LONG = (2, 4)  # and a copy's match, 0 to 2
DOUBTED = CONFIRMED + (len(_SURE) + 1) * (len(_LONG) + 1)
UNLIKELY = DOUBTED + len(_LONG) + 1
FIRST_ODDS = {
    **RECYCLED_ODDS,
    **dict(enumerate((0.2, 0.1, 0.05, 0.1, 0.07, 0.05), start=BESIDE)),
    **dict(enumerate((0.2, 0.43, 0.55, 0.6, 0.75), start=COPIED + 1)),
    **dict(enumerate((0.35, 0.63, 0.65, 0.75, 0.88), start=AGREED + 1)),
}
FIRST_ODDS_WITH_HEAD = {
    **FIRST_ODDS,
    **dict(enumerate(BUCKET_ODDS, start=GUESSED)),
    **dict(enumerate((0.05, 0.15, 0.45, 0.74), start=GUESSED_BESIDE)),
    **dict(
        enumerate(
            (0.3, 0.4, 0.65, 0.35, 0.65, 0.8, 0.7, 0.8, 0.9, 0.9, 0.95, 0.97), start=CONFIRMED
        )
    ),
    **dict(enumerate((0.15, 0.33, 0.7), start=DOUBTED)),
    **dict(enumerate((0.06, 0.03), start=UNLIKELY)),
}


class Guess(NamedTuple):
    """One token of a head's tree."""

    node: int
    bucket: int  # of the probability the head gave it


class Known(NamedTuple):
    """What one sequence's tree grows from."""

    text: list[int]
    end: int  # of the text's longest match in itself, -1: none
    match_length: int
    salt: int  # of the sequence, see `DraftView`
    guesses: Mapping[int, Mapping[int, Guess]]  # by node of the head's tree: token -> guess


class AutoDrafter(Drafter):
    """Works without a model, and better with a head."""

    name: ClassVar[str] = "auto"
    model: ClassVar = "head"
    needs_model: ClassVar[bool] = False
    grows_trees: ClassVar[bool] = True
    max_arrears: ClassVar[int] = CATCH_UP_ROWS
    num_candidates: ClassVar[int] = WIDTH

    def __init__(self, model: Decoder | Head | None = None) -> None:
        super().__init__()
        self._memory = Memory()
        self._indexes: dict[int, Index] = {}
        self._head = HeadFollower(cast(Head, model)) if model is not None else None
        self._lost: set[int] = set()  # sequences whose head failed: they go on without
        self.needs_features = self._head is not None
        self.first_odds = FIRST_ODDS_WITH_HEAD if self._head else FIRST_ODDS

    def absorb(self, view: DraftView, start: int, features: Features) -> None:
        if self._head is not None and view.sequence_id not in self._lost:
            self._head.absorb(view, start, features)

    def propose(
        self, views: Seq[DraftView], limits: Seq[int], judge: Judge = undecided
    ) -> ProposeResult:
        known = [self._known(view) for view in views]
        trees = [self._grow(*each, judge) for each in zip(views, limits, known, strict=True)]
        drafts = self._ask(views, limits, trees, judge)
        for i, draft in drafts.found.items():
            if draft.token_ids:
                informed = known[i]._replace(guesses=_guesses(draft))
                trees[i] = self._grow(views[i], limits[i], informed, judge)
        proposals = [tree.proposal for tree in trees]
        return drafts.result(proposals)

    def _known(self, view: DraftView) -> Known:
        index = self._indexes.setdefault(view.sequence_id, Index())
        index.update(view.token_ids)
        text = view.text
        end, length = index.longest_match(text)
        return Known(text, end if length else -1, length, view.cache_salt, {})

    def _ask(
        self, views: Seq[DraftView], limits: Seq[int], trees: Seq[Tree], judge: Judge
    ) -> Drafts:
        """The head, for sequences where its passes pay."""
        able = [i for i, view in enumerate(views) if view.sequence_id not in self._lost]
        if self._head is None or not able:
            return Drafts({}, {})
        free = [trees[i].trunk_odds for i in able]
        passes = [0] * len(views)
        paid = judge.passes([views[i].sequence_id for i in able], free)
        for i, num_passes in zip(able, paid, strict=True):
            passes[i] = num_passes
        try:
            drafts = self._head.draft(views, limits, passes, least=judge.least)
        except DecoderFailed as error:
            logger.warning("the head failed, drafting goes on without it: %s", error)
            asked = (i for i, num_passes in enumerate(passes) if num_passes)
            drafts = Drafts({}, {}, failed=tuple(asked))
        self._give_up([views[i].sequence_id for i in drafts.failed])
        return drafts

    def _give_up(self, sequence_ids: Seq[int]) -> None:
        """No head for these from here on."""
        self._lost.update(sequence_ids)
        if self._head is not None and sequence_ids:
            try:
                self._head.end(sequence_ids)
            except DecoderFailed as error:
                logger.warning("ending sequences of the head failed: %s", error)

    def _grow(self, view: DraftView, limit: int, known: Known, judge: Judge) -> Tree:
        return grow(
            Branch(*last_two(view), 0, known.end, -1),
            partial(self._follow, known),
            judge.odds(view.sequence_id),
            max_tokens=limit,
            least=judge.least,
        )

    def _follow(self, known: Known, branch: Branch) -> list[Branch]:
        """What a copy goes on with, what the head finds likely here, and what the target once
        did."""
        last, copy = branch.token_id, None
        is_pair, recycled = self._memory.recall(branch.before, last, known.salt)
        if branch.place >= 0:
            # A copy may run into itself: it then begins again behind the match.
            behind = branch.place + 1
            place = behind if behind < len(known.text) else known.end + 1
            copy = Branch(last, known.text[place], 0, place)
        guesses = known.guesses.get(branch.node)
        if guesses:
            return _informed(last, copy, known.match_length, recycled, guesses)
        omen, found = PAIR if is_pair else SINGLE, []
        if copy:
            omen += BESIDE - PAIR
            kind = AGREED if copy.token_id in recycled else COPIED
            found.append(copy._replace(omen=kind + min(known.match_length, MAX_OMEN)))
        for token_id in recycled:
            if not copy or token_id != copy.token_id:
                found.append(Branch(last, token_id, omen))
            omen += 1
        return found

    def observe(self, view: DraftView, verdict: Verdict) -> None:
        learn(self._memory, view, verdict)

    def end(self, sequence_ids: Seq[int]) -> None:
        for sequence_id in sequence_ids:
            self._indexes.pop(sequence_id, None)
            self._lost.discard(sequence_id)
        if self._head is not None:
            self._head.end(sequence_ids)


def _informed(
    last: int,
    copy: Branch | None,
    match_length: int,
    recycled: Seq[int],
    guesses: Mapping[int, Guess],
) -> list[Branch]:
    """Continuations of `last` where a head has named some.

    Args:
        recycled: what the target found likely here before, the likeliest first.
    """
    found = []
    match = bisect_right(_LONG, match_length)
    for token_id, (node, bucket) in guesses.items():
        sure = bisect_right(_SURE, bucket)
        if not copy:
            found.append(Branch(last, token_id, GUESSED + bucket, node=node))
        elif token_id == copy.token_id:
            omen = CONFIRMED + sure * (len(_LONG) + 1) + match
            found.append(copy._replace(omen=omen, node=node))
        else:
            found.append(Branch(last, token_id, GUESSED_BESIDE + sure, node=node))
    if copy and copy.token_id not in guesses:
        found.append(copy._replace(omen=DOUBTED + match))
    taken = {branch.token_id for branch in found}
    for rank, token_id in enumerate(recycled):
        if token_id not in taken:
            found.append(Branch(last, token_id, UNLIKELY + min(rank, 1)))
    return found


def _guesses(draft: HeadDraft) -> dict[int, dict[int, Guess]]:
    found: dict[int, dict[int, Guess]] = {}
    rows = zip(draft.token_ids, draft.parents, draft.logprobs, strict=True)
    for node, (token_id, parent, logprob) in enumerate(rows):
        found.setdefault(parent, {})[token_id] = Guess(node, bucket_of(logprob))
    return found
