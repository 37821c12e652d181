"""A byte-level BPE tokenizer of the words in our documents, made without a file or training."""

from itertools import product

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

PAD, END = 0, 1
LETTERS = "abcdefghijklmnop"
WORDS = ["w" + "".join(letters) for letters in product(LETTERS, repeat=3)]  # a token each


def _make() -> Tokenizer:
    vocabulary = ["<pad>", "</s>", *sorted(pre_tokenizers.ByteLevel.alphabet()), "Ġw"]
    merges = [("Ġ", "w")]
    for count in (1, 2, 3):
        for *begin, last in product(LETTERS, repeat=count):
            merges.append(("Ġw" + "".join(begin), last))
            vocabulary.append("".join(merges[-1]))
    model = models.BPE({token: number for number, token in enumerate(vocabulary)}, merges)
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<pad>", "</s>"])
    return tokenizer


TOKENIZER = _make()


def encode(text: str) -> list[int]:
    """Return the tokens of a document and its end."""
    return [*TOKENIZER.encode(text).ids, END]
