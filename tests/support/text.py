"""Tokenizers one can read: hand-made vocabularies of every kind the server supports."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

from specdec.speculation.tokenization import TextTokenizer
from support.tiny import write_tiny_tokenizer


def to_alphabet(data: bytes) -> str:
    """Bytes as a byte-level tokenizer spells them in its vocabulary."""
    kept = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    moved = [byte for byte in range(256) if byte not in kept]
    return "".join(chr(b) if b in kept else chr(0x100 + moved.index(b)) for b in data)


def literal_tokenizer(
    pieces: Sequence[str | bytes], special: Sequence[str] = ("<eos>",)
) -> TextTokenizer:
    """Token i reads `pieces[i]`; the special tokens follow. Only good for decoding."""
    spelt = [to_alphabet(p.encode() if isinstance(p, str) else p) for p in pieces]
    vocabulary = {token: i for i, token in enumerate(spelt)}
    assert len(vocabulary) == len(pieces), "pieces must differ"
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=spelt[0]))
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(special))
    return TextTokenizer(tokenizer)


@cache
def tiny_tokenizer() -> TextTokenizer:
    """The trained byte-level BPE of the tiny models, with a ChatML template."""
    with TemporaryDirectory() as directory:
        write_tiny_tokenizer(Path(directory))
        return TextTokenizer.from_directory(directory)


@cache
def metaspace_library(style: str) -> Tokenizer:
    """A SentencePiece-like BPE as Llama 2 ("sequence"), Gemma ("unstripped") and Metaspace files
    have it: bytes, then pieces with their space in front."""
    pieces = ["▁", *"abcdehlorwé", "ll", "hell", "hello", "▁hello", "▁w", "▁▁", "日"]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *pieces]
    vocabulary = {token: i for i, token in enumerate(tokens)}
    merges = [("l", "l"), ("▁", "w"), ("▁", "▁"), ("▁", "hello")]
    tokenizer = Tokenizer(
        models.BPE(vocabulary, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    )
    if style == "metaspace":
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
        tokenizer.decoder = decoders.Metaspace()
    else:
        tokenizer.normalizer = normalizers.Sequence(
            [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
        )
        steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
        if style == "sequence":
            steps.append(decoders.Strip(" ", 1, 0))
        tokenizer.decoder = decoders.Sequence(steps)
    tokenizer.add_special_tokens([AddedToken(t, special=True) for t in ("<unk>", "<s>", "</s>")])
    return tokenizer
