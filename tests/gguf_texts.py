"""Texts that tokenizers are compared on: a thousand lines of a novel, and strings in which rules of cutting differ."""

from __future__ import annotations

import gzip
from functools import cache
from importlib import resources

ODD = (
    "",
    " ",
    "   ",
    "\n",
    "\t\ttabs\n\n\nlines\r\nends\r",
    "  leading, trailing  ",
    "don't DON'T we'LL i'Ve 'tis rock'n'roll",
    "1 12 123 1234 12345 1234567890 3.14159 1,000,000",
    "naïve café e\u0301 ﬁne \u212b",
    "\u8a9e\u6f22\u5b57 \u3072\u3089\u304c\u306a \ud55c\uad6d\uc5b4",
    "\U0001f3f3\ufe0f\u200d\U0001f308 \U0001f468\u200d\U0001f469\u200d\U0001f467",
    "x\u00a0y\u2003z\u3000w",
    "def f(x):\n    return x**2  # comment\n",
    "<|im_start|>user\nhi<|im_end|>\n",
    "<s>[INST] hello [/INST]</s>",
    "a<unk>b <0x0A> <pad>",
    "!!! ??? ... --- === ~~~ $$$ ^^^ ||| <=>",
    "\u2581under\u2581score _ __ ___",
    "\u0627\u0644\u0639\u0631\u0628\u064a\u0629 \u05e2\u05d1\u05e8\u05d9\u05ea \u0939\u093f\u0928\u094d\u0926\u0940",
    "\u00bd \u2167 \u00b2\u00b3 \u0661\u0662\u0663 \u2460",
    "\x00\x01\x7f\u0085\u2028",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "https://example.org/a_b?c=d&e=%20f#g",
)


@cache
def lines(count: int = 1000) -> tuple[str, ...]:
    """The first lines of Emma that hold text."""
    packed = resources.files("burnish").joinpath("assets", "austen", "emma.txt.gz").read_bytes()
    text = gzip.decompress(packed).decode("utf-8")
    return tuple(line for line in text.splitlines() if line.strip())[:count]
