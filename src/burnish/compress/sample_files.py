"""Files of calibration text: a user's texts or conversations, as the model reads them, cut into rows of samples.

Rows are chosen evenly over all there is, so that a long first document does not crowd out the others, and the same files
give the same rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from burnish.compress.representative import check_words
from burnish.compress.samples import Samples
from burnish.data.chat import Conversations
from burnish.data.chat_tokens import ChatTokenizer
from burnish.data.encoder_texts import EncoderTokenizer
from burnish.data.template import Template
from burnish.data.text import Texts, json_lines
from burnish.data.tokenizer import Tokenizer
from burnish.errors import UserError
from burnish.load.checkpoint import Checkpoint
from burnish.load.encoder import is_encoder, load_encoder_config
from burnish.load.model import TRAINED_LENGTH, config_of
from burnish.load.sentence_folder import pooling_of

PIECES = 256  # of text that an encoder's words are counted in
ROWS, LENGTH = 128, 512  # as the papers calibrate: Lin et al. 2023 (section 5.1) and its code
CONVERSATION = ({"messages"}, {"conversations"}, {"prompt", "completion"})  # a line with all keys of one is one


def read_samples(
    checkpoint: Checkpoint, sources: Sequence[str], rows: int = ROWS, length: int = LENGTH, field: str = "text"
) -> tuple[Samples, tuple[str, ...]]:
    """At most `rows` rows of at most `length` tokens of the user's files, and what there is to know about them.

    Texts are read as a prompt is; .jsonl files of conversations in the model's own chat template; for an encoder a text is
    a line of a .txt file and a row. Raises UserError naming the file or line at fault, and for texts without two tokens.
    """
    documents = token_lists(checkpoint, sources, field)
    if is_encoder(checkpoint):
        length = min(length, max(map(len, documents), default=1))
    else:
        length = row_length(checkpoint, length)
    if length < 2:
        raise UserError(f"calibration: rows of {length} tokens; 2 and more work")
    pieces = cut(documents, length)
    if not pieces:
        raise UserError(f"{', '.join(sources)}: no text has two tokens, so there is nothing to calibrate on")
    made = Samples.of(evenly(pieces, rows))
    notes = []
    if made.tokens < length and not is_encoder(checkpoint):
        notes.append(f"the calibration text has {made.tokens} tokens, less than one row of {length}; give it more text")
    elif len(pieces) < min(rows, 8):
        notes.append(f"the calibration text fills {len(pieces)} rows of {length} tokens; {rows} were asked for")
    return made, tuple(notes)


def row_length(checkpoint: Checkpoint, asked: int) -> int:
    """Tokens of a row: as asked for, at most what a decoder has positions for and, where its folder says, was trained on."""
    seen = checkpoint.config.get(TRAINED_LENGTH)
    return min(asked, config_of(checkpoint).max_positions, seen if isinstance(seen, int) else asked)


def cut(documents: Sequence[Sequence[int]], length: int) -> list[list[int]]:
    """Every document in pieces of `length` tokens; a piece of one token, which predicts nothing, is left out."""
    pieces = [list(ids[at : at + length]) for ids in documents for at in range(0, len(ids), length)]
    return [piece for piece in pieces if len(piece) > 1]


def evenly(pieces: Sequence[list[int]], count: int) -> list[list[int]]:
    """At most `count` of them, evenly spread, in their order."""
    if len(pieces) <= count:
        return list(pieces)
    return [pieces[(2 * k + 1) * len(pieces) // (2 * count)] for k in range(count)]


def token_lists(checkpoint: Checkpoint, sources: Sequence[str], field: str = "text") -> list[list[int]]:
    """The tokens of each document of the files, as the model of `checkpoint` reads them. Raises UserError."""
    if checkpoint.tokenizer is None:
        raise UserError(f"{checkpoint.where}: holds no tokenizer, so no text can be read with it")
    texts = Texts.open(sources, field)
    chat = all(map(_holds_conversations, texts.files))
    return _reader(checkpoint, chat)(texts)


def _holds_conversations(path: Path) -> bool:
    """Whether the first line of a .jsonl file is a conversation."""
    if not path.name.lower().endswith(".jsonl"):
        return False
    first = next(iter(json_lines(path)), ("", None))[1]
    return isinstance(first, dict) and "text" not in first and any(keys <= first.keys() for keys in CONVERSATION)


def _reader(checkpoint: Checkpoint, chat: bool) -> Callable[[Texts], list[list[int]]]:
    """Texts to tokens, for this kind of model and of files."""
    if is_encoder(checkpoint):
        if chat:
            raise UserError(f"{checkpoint.where}: is an encoder, which reads texts; conversations are for decoders")
        encoder = encoder_tokenizer(checkpoint)
        return lambda texts: [text.ids for text in encoder.encode(_lines(texts))]
    tokenizer = decoder_tokenizer(checkpoint)
    if not chat:
        return lambda texts: [tokenizer.encode_prompt(document) for document in texts.documents()]
    assert checkpoint.tokenizer is not None
    if checkpoint.tokenizer.template is None:
        raise UserError(
            f"{checkpoint.where}: has no chat template to write conversations with; calibrate on plain text"
        )
    template = Template.of(
        checkpoint.tokenizer.template, checkpoint.tokenizer.settings, f"the chat template of {checkpoint.where}"
    )
    both = ChatTokenizer(tokenizer, template, "all")
    return lambda texts: [framed.ids.tolist() for framed in both.framed(Conversations(texts).documents())]


def check_texts(
    checkpoint: Checkpoint, sources: Sequence[str], judged: Sequence[str], field: str = "text"
) -> tuple[str, ...]:
    """What a person should know where an encoder's tokenizer finds fewer words in the calibration text than in the judged.

    Both are looked at in pieces of one length, as short as the encoder's limit, so that none is cut.
    """
    encoder, size = encoder_tokenizer(checkpoint), pooling_of(checkpoint, load_encoder_config(checkpoint)).limit
    both = [" ".join(_lines(Texts.open(files, field)))[: size * PIECES] for files in (sources, judged)]
    pieces = [[text[at : at + size] for at in range(0, len(text), size)] for text in both]
    tokens = [sum(len(text.ids) for text in encoder.encode(own)) for own in pieces]
    return check_words(pieces[0], pieces[1], (tokens[0], tokens[1]), ", ".join(sources))


def _lines(texts: Texts) -> list[str]:
    """A text a line of plain files, a document of others."""
    return [line.strip() for document in texts.documents() for line in document.splitlines() if line.strip()]


def decoder_tokenizer(checkpoint: Checkpoint) -> Tokenizer:
    """The tokenizer of a decoder's checkpoint. Raises UserError where it has more tokens than the model."""
    assert checkpoint.tokenizer is not None
    config, files = config_of(checkpoint), checkpoint.tokenizer
    tokenizer = Tokenizer.read(files.tokenizer, checkpoint.where, config.eos, files.settings or None)
    tokenizer.check_vocab(config.vocab)
    return tokenizer


def encoder_tokenizer(checkpoint: Checkpoint) -> EncoderTokenizer:
    """The tokenizer of an encoder's checkpoint, which cuts texts as its folder says."""
    assert checkpoint.tokenizer is not None
    pooling = pooling_of(checkpoint, load_encoder_config(checkpoint))
    return EncoderTokenizer(checkpoint.tokenizer.tokenizer, checkpoint.where, pooling.limit, pooling.lower)
