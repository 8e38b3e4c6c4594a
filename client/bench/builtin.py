"""The prompts of a run without `--prompts`: twelve in five categories, written for this project.

They cover what decides the gain of a drafter: how much of the answer stands in the prompt already
(summarise, rag, code that edits code) and how freely the answer moves (creative, chat).
"""

from __future__ import annotations

from specdec.client.bench.records import Prompt

_LIGHTHOUSE = """\
The lighthouse on Gull Rock was built in 1871 after three ships were lost on the reef in a single
winter. It stands 38 metres high and was made of granite blocks that were cut on the mainland,
numbered, and shipped to the rock during the short weeks of calm weather each summer. The work took
six years. The first lamp burned rapeseed oil and could be seen for 14 nautical miles; it was
replaced by a paraffin lamp in 1902 and by an electric one in 1956. Four keepers lived in the tower
for two months at a time and were relieved by boat. In the winter of 1934 a storm lasted so long
that the relief could not land for 47 days, and the keepers shared their last tin of biscuits with
a seal. The light was automated in 1988, and the keepers' rooms have been empty since. Today the
tower is inspected twice a year. The reef around it has become a protected area because of its
kelp forest, and small boats take visitors to see the seals from April to October."""

_MEETING = """\
Minutes, project Heron, 4 March. Present: Amara (chair), Jonas, Li, Petra. Jonas reported that the
new pump passed the pressure test at 9 bar but that the seal began to leak after 200 hours. The
supplier has promised a harder seal by 15 March. Li showed the cost estimate: 48,000 euros, which is
6,000 above the budget, mostly because the price of copper rose. Petra proposed to replace the
copper pipes by steel pipes, which would save 7,500 euros but add two weeks. Amara asked for a
comparison of both options by the next meeting. Everyone agreed that the opening on 2 June cannot
move. Open points: Jonas orders the harder seal and repeats the test; Li asks two other companies
for copper prices; Petra writes the comparison; Amara informs the customer about the delay of the
pump. Next meeting: 18 March, 10 o'clock."""

_PARCEL = """\
Returns. You may return any article within 30 days of delivery. The article must be unused and in
its original box. Batteries and gift cards cannot be returned. To start a return, open your order,
choose "Return an article" and print the label. Returns from within the country are free; from
other countries you pay the postage. We refund the price to the card you paid with within 7 working
days after the parcel has reached our warehouse in Aldford. Express delivery fees are not refunded.
Warranty. All electrical articles have a warranty of 24 months from the date of delivery. If an
article fails, write to support with the order number and a photograph. We repair it, or send a new
one if a repair takes longer than 14 days. The warranty does not cover damage by water."""

_GLACIER = """\
Document 1. Glacier mice are balls of moss that are found on some glaciers in Iceland, Alaska and
Svalbard. They are soft, round and up to 10 centimetres wide. A ball begins when moss grows on a
small stone or on dust that lies on the ice.
Document 2. Researchers marked 30 moss balls on the Root Glacier in Alaska with coloured beads and
measured them for 54 days. The balls moved about 2.5 centimetres a day on average, and nearly all
moved in the same direction at the same time, first to the south and later to the west. Neither the
slope, the wind nor the sun explained the direction.
Document 3. Moss balls shade the ice below them. The ice around them melts faster, so that each
ball comes to stand on a small pedestal until it rolls off. Inside the balls live springtails, water
bears and worms."""

_FUNCTION = '''\
def average_by_day(readings):
    """Mean temperature per day of (day, temperature) pairs."""
    totals = {}
    counts = {}
    for day, temperature in readings:
        if day in totals:
            totals[day] = totals[day] + temperature
            counts[day] = counts[day] + 1
        else:
            totals[day] = temperature
            counts[day] = 1
    result = {}
    for day in totals:
        result[day] = totals[day] / counts[day]
    return result'''

_TEXTS = {
    "chat": (
        "I have an interview for my first job in a bakery on Friday. How should I prepare?",
        "Explain to a ten-year-old why the moon does not fall down on the earth.",
        "My tomato plants have yellow leaves at the bottom. What are the usual causes, and what "
        "should I do about each of them?",
    ),
    "code": (
        "Write a Python function `merge_intervals(intervals)` that merges overlapping intervals. "
        "Give a docstring and three examples.",
        "Rename `readings` to `samples` and `temperature` to `value` in this function, and change "
        f"nothing else. Write out the whole function.\n\n```python\n{_FUNCTION}\n```",
        "Write a bash script that deletes all files in a folder that are older than 30 days and "
        "prints the name of every file that it deletes. Explain each line.",
    ),
    "summarise": (
        f"Summarise this text in three sentences.\n\n{_LIGHTHOUSE}",
        f"List the decisions and the open points of this meeting.\n\n{_MEETING}",
    ),
    "rag": (
        "Answer the question with the help of the text only, and quote the sentence that you used."
        f"\n\n{_PARCEL}\n\nQuestion: I opened the box of a lamp, used it for a week, and it "
        "stopped working. Can I send it back, and who pays for what?",
        "Use the documents to answer, and name the document for each statement.\n\n"
        f"{_GLACIER}\n\nQuestion: How fast do glacier mice move, in which direction, and why?",
    ),
    "creative": (
        "Write the beginning of a story about a clockmaker who finds a clock that runs backwards.",
        "Write a poem of four verses about the first train of the morning.",
    ),
}

BUILTIN: tuple[Prompt, ...] = tuple(
    Prompt(f"{category}/{number}", category, text)
    for category, texts in _TEXTS.items()
    for number, text in enumerate(texts, start=1)
)
