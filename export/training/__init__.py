"""Training of drafts: features at some layers of the target -> blocks -> a reduced LM head.

    prompts, writing   the target answers prompts; its features come with the answers
    corpus, answers    both on disk, or the answers alone
    batches            a ragged batch as arrays, and the order in which batches come
    vocabulary         which ids a draft can propose
    target             the frozen parts of the target that a draft uses
    head, block        the draft itself, unrolled as it will be served
    loss, gradient     against the target's distribution, without keeping logits
    trainer            steps, schedule, checkpoints
    evaluation         acceptance by position, as a server would see it
    result, standalone what a training leaves

Knows nothing of serving: a trained draft is a folder that the exporter turns into a graph.
"""
