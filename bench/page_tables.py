"""Page tables: what docs show of fitted constants and recorded results, written into the pages from where it is kept.

bench/page_tables.py    writes every block between `<!-- table NAME -->` and `<!-- end -->` anew
"""

from __future__ import annotations

import json
import re
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import beside
from burnish.planner import plan_model, request
from burnish.planner import text as planned
from burnish.rates import Constant, constants
from burnish.records import write_text
from burnish.rows.rules import table

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "bench" / "results"
RATES = ROOT / "src" / "burnish" / "tables" / "rates.toml"
# The plan that the README shows, and lines that are left out of it.
PLAN = ("llama-3-70b", "h100-sxm:8x8", 8192, 128)
REASONS = 3
DASH = "\u2013"
PARTS = {"first_hand": "", "second_hand": "second-hand", "distrusted": "distrusted"}


def made(name: str) -> dict[str, Any]:
    """A recorded result."""
    found: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return found


def rates_table() -> Iterator[str]:
    """Every constant of the time model."""
    said = tomllib.loads(RATES.read_text(encoding="utf-8"))
    yield f"Fitted on {said['date']} to {said['rows']:,} rows of {said['sources']} sources."
    yield ""
    yield "| constant | value | prior | rows | what it is |"
    yield "|---|---|---|---|---|"
    for name, constant in constants().items():
        prior = f"{constant.prior:.3g} ({spread(constant)})" if constant.fitted else "not fitted"
        yield f"| `{name}` | {constant.value:.3g} | {prior} | {constant.rows or DASH} | {constant.meaning} |"


def spread(constant: Constant) -> str:
    """How far one standard deviation of the prior reaches."""
    return f"± {100 * constant.spread:.0f} %"


def folds_table() -> Iterator[str]:
    """The check on sources left out."""
    found = made("folds")
    values = found["values"]
    yield "| constants fitted without a source, judged on it | |"
    yield "|---|---|"
    yield f"| sources | {values['sources']} |"
    yield f"| mean over them of the mean error | {values['mean_percent']:.1f} % |"
    yield f"| the worst of them | {values['worst_percent']:.1f} % |"
    yield f"| measured on | {found['date'][:10]} |"


def score_table() -> Iterator[str]:
    """Means of the score, beside what is aimed at."""
    found = made("score_rows")
    values = found["values"]
    yield f"Measured on {found['date'][:10]}: {values['expressed']:,} of {values['rows']:,} rows are expressed,"
    yield f"{values['expressed_percent']:.1f} %; {values['timed']:,} first-hand ones have a step time."
    yield ""
    yield "| step time, one set of constants | error |"
    yield "|---|---|"
    figures = (
        ("median_percent", "median over rows"),
        ("mean_percent", "mean over rows"),
        ("mean_over_sources_percent", f"mean over the {values['sources_counted']} sources of {enough()} rows and more"),
        ("worst_source_percent", "the worst of these sources"),
        ("experts_percent", "models with experts"),
        ("second_hand_mean_percent", f"{values['second_hand_rows']} second-hand rows, mean"),
        ("distrusted_mean_percent", f"{values['distrusted_rows']} distrusted rows, mean"),
    )
    yield from (f"| {title} | {values[name]:.1f} % |" for name, title in figures)
    yield f"| regret of the mapping picked for a job, Aleph Alpha's sheets | {values['aleph_regret_percent']:.2f} % |"


def enough() -> int:
    """Rows a source needs to count in the mean over sources."""
    return int(table("score_bars")["groups"]["mean_over_sources_of"])


def sources_table() -> Iterator[str]:
    """Each source; those kept apart below the others."""
    values = made("score_sources")["values"]
    yield "| source | rows | expressed | timed | median | mean | worst | fits: right, wrong, withheld | tau |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for part, apart in PARTS.items():
        for source, block in sorted(values[part].items(), key=lambda item: -item[1]["timed"]):
            name = f"*{apart}*: {source}" if apart else source
            times = " | ".join(shown(block[f"time_{what}_pct"], 1) for what in ("median", "mean", "worst"))
            fits = DASH if block["fit_right"] is None else verdicts(block)
            counts = f"{block['rows']} | {block['expressed']} | {block['timed']}"
            yield f"| {name} | {counts} | {times} | {fits} | {shown(block['kendall_tau'], 2)} |"


def plan_block() -> Iterator[str]:
    """What a plan prints, up to its first few reasons."""
    lines = list(planned.lines(plan_model(request(*PLAN))))
    why = lines.index("why") + 1
    first = [at for at in range(why, len(lines)) if lines[at][2:3].strip()]
    return iter(("```text", *lines[: first[REASONS]], "  ...", "```"))


def verdicts(block: dict[str, Any]) -> str:
    """Verdicts on memory that were right, that were wrong, and those that were not given."""
    right, wrong = block["fit_right"], block["fit_wrong"]
    return f"{right}, {wrong}, {block['expressed'] - right - wrong}"


def encoders_table() -> Iterator[str]:
    """Real weights of an encoder: speed and agreement, and a classifier trained on them."""
    found = made("encoders")
    values, machine = found["values"], found["machine"]
    novels = f"{values['passages_held_out']} held-out passages of six novels, right by the nearest mean of the vectors"
    rows = {
        "least cosine with transformers' vectors, 200 sentences": f"{values['least_cosine']:.6f}",
        "sentences a second, packed": f"{values['sentences_per_second']:.0f}",
        "sentences a second, transformers in padded batches of 32": f"{values['transformers_sentences_per_second']:.0f}",
        "times as fast, median of alternating rounds": f"{values['times_transformers']:.1f}",
        novels: f"{100 * values['nearest_mean_accuracy']:.0f} %",
        "the same, after training on "
        f"{values['passages_learned']} others for {values['seconds']:.0f} s": f"{100 * values['trained_accuracy']:.0f} %",
    }
    yield f"all-MiniLM-L6-v2 on {values['threads']} thread of a busy {machine['processor']}, {found['date'][:10]}:"
    yield ""
    yield "| measured by `bench/encoders.py` | |"
    yield "|---|---|"
    yield from (f"| {what} | {value} |" for what, value in rows.items())


def vision_table(result: str, cut: str, scores: dict[str, str]) -> Iterator[str]:
    """Every step of a vision recipe on what was never seen, and files in 8 bits beside their own in float32."""
    values = made(result)["values"]
    steps = {
        "trained": "trained",
        "cut": f"{cut} of the channels cut, nothing else",
        "reestimated": "... normalisation measured again, no training",
        "pruned": "pruned, trained on",
        "control": "control: whole, trained on as long",
        "trained.int8": "trained, 8 bits",
        "pruned.int8": "pruned, 8 bits",
    }
    yield f"| network | {' | '.join(scores.values())} | bytes of the file, of the same in float32 |"
    yield "|---|" + "---|" * (1 + len(scores))
    for key, what in steps.items():
        found = " | ".join(shown(values[f"{key}.{name}"], 3) for name in scores)
        yield f"| {what} | {found} | {shown(values.get(f'{key}.bytes'), 2)} |"


def speculation_table() -> Iterator[str]:
    """Drafts of SmolLM2 on texts that suit them and on those that do not: what stood, what it should gain, and what it did."""
    found = {name: made(f"speculation_{name}")["values"] for name in ("ngram", "draft")}
    rows = {
        ("ngram", "q4.repeated"): "n-grams, 4-bit blocks, a text that repeats itself",
        ("ngram", "float.repeated"): "the same in float32",
        ("ngram", "q4.once"): "n-grams, 4-bit blocks, a text that does not",
        ("draft", "people"): "distilled draft, 4-bit blocks, letters to new people",
        ("draft", "occasions"): "... of new occasions",
        ("draft", "novel"): "... a novel, which is not its field",
    }
    yield "| draft and text | guesses that stand | advised a round | times plain, predicted | measured |"
    yield "|---|---|---|---|---|"
    for (name, key), what in rows.items():
        part = {value: found[name].get(f"{key}.{value}") for value in ("acceptance", "length", "predicted", "measured")}
        gain = f"{shown(part['predicted'], 2)} | {shown(part['measured'], 2)}"
        yield f"| {what} | {100 * part['acceptance']:.0f} % | {part['length'] or 'none'} | {gain} |"


def decode_table() -> Iterator[str]:
    """One request on two threads, ours and llama.cpp's formats, the fastest first."""
    found = made("decode_vs_llamacpp")
    values, here = found["values"], "burnish"
    names = {
        "ours": (here, "`--weights q4`"),
        "kv8": (here, "`--weights q4 --kv int8`"),
        "awq": (here, "compressed `--with awq group=64 symmetric=false`, `--kv int8 --head int4 --calibrate`"),
        "transformers": ("transformers", "float32"),
    }
    others = (name.removesuffix(".decode") for name in values if name.endswith(".decode"))
    names |= {name: ("llama.cpp", name.replace(" kv", ", keys and values Q8_0")) for name in others if name[0] == "Q"}
    yield f"Medians of {found['date'][:10]}, the runs alternating:"
    yield ""
    yield "| | | new tokens a second | prompt tokens a second | perplexity |"
    yield "|---|---|---|---|---|"
    for name in sorted(names, key=lambda name: -values[f"{name}.decode"]):
        decode, prefill, lost = (values[f"{name}.{what}"] for what in ("decode", "prefill", "perplexity"))
        yield f"| {names[name][0]} | {names[name][1]} | {decode:.0f} | {prefill:.0f} | {lost:.2f} |"


def compression_table() -> Iterator[str]:
    """A model before compression, rounded as a whole, and with the parts kept that a budget asks for."""
    found = made("compress")["values"]
    yield "| | perplexity | bytes of the file |"
    yield "|---|---|---|"
    yield f"| as it was, in float16 | {found['perplexity']:.2f} | {_mib(found['bytes'])} |"
    for name, what in (("rounded", "all parts rounded"), ("mixed", f"kept as it was: {', '.join(found['kept'])}")):
        noise = found["noise_percent" if name == "rounded" else "mixed_noise_percent"]
        yield f"| {what} | {found[f'{name}_drop_percent']:+.2f} % ± {noise:.2f} | {_mib(found[f'{name}_bytes'])} |"
    yield ""
    yield f"The budget was {found['budget_percent']:.2f} %, half of what rounding loses."


def claims_table() -> Iterator[str]:
    """What each claim measured in a pass over all of them; a word in its place before there was one."""
    if not (RESULTS / "prove_all.json").is_file():
        yield "`bench/prove_all.py` measures all of them twice, and sets the figures here."
        return
    found = made("prove_all")
    values, machine = found["values"], found["machine"]
    yield f"{machine['cores']} cores of {machine['processor']}, {found['date'][:10]}; all in {values['seconds']:.0f} s."
    yield ""
    yield "| claim | measured | seconds |"
    yield "|---|---|---|"
    for name, figures in values["measured"].items():
        yield f"| {name} | {figures.replace('|', ' ')} | {values[f'{name}.seconds']:.0f} |"


def _mib(size: float) -> str:
    return f"{size / 2**20:.2f} MiB"


def shown(value: float | None, digits: int) -> str:
    """A figure, or a dash."""
    return DASH if value is None else f"{value:.{digits}f}"


TABLES: dict[str, Callable[[], Iterator[str]]] = {
    "rates": rates_table,
    "folds": folds_table,
    "score": score_table,
    "sources": sources_table,
    "plan": plan_block,
    "encoders": encoders_table,
    "compression": compression_table,
    "decode": decode_table,
    "speculation": speculation_table,
    "segmentation": lambda: vision_table("brain_extraction", "half", {"dice": "Dice, unseen head"}),
    "detection": lambda: vision_table("digits_detector", "40 %", {"map": "mAP", "map50": "mAP50"}),
    "claims": claims_table,
    "beside": lambda: beside.table(made),
}
BLOCK = re.compile(r"(<!-- table (\w+) -->\n).*?(<!-- end -->)", re.S)


def filled(text: str) -> str:
    """A page with its tables as they should stand."""
    return BLOCK.sub(lambda block: f"{block[1]}\n" + "\n".join(TABLES[block[2]]()) + f"\n\n{block[3]}", text)


def pages() -> list[Path]:
    """Pages with such tables."""
    every = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
    return [page for page in every if BLOCK.search(page.read_text(encoding="utf-8"))]


def main() -> int:
    """Write the pages."""
    for page in pages():
        text = page.read_text(encoding="utf-8")
        if (new := filled(text)) != text:
            write_text(page, new)
            print(f"{page.relative_to(ROOT)}: written")
    return 0


if __name__ == "__main__":
    sys.exit(main())
