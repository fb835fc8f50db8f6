"""The flow of compression: samples, search, apply, judge, repair, write, read again, report; nothing is written until it is
accepted."""

from __future__ import annotations

import importlib
import re
import shutil
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from burnish.compress import costs, coverage, judged_ranges, search_bytes
from burnish.compress.divergence import Probe, Seen, TokenProbe, VectorProbe
from burnish.compress.judging import metric_of, readable
from burnish.compress.passes import Compressed, described, run_passes
from burnish.compress.representative import LOOKED_AT, check_likely, surprise
from burnish.compress.sample_files import check_texts, cut, evenly, read_samples, row_length, token_lists
from burnish.compress.samples import Samples
from burnish.compress.sensitivity import parts_of
from burnish.compress.subject import Subject
from burnish.compress.verify import Judge, OverBudget, Suffering, keep_fewest, over_budget, suffering
from burnish.compress.written import OURS, kept_in, predicted_bytes, predicted_memory, source_bytes, write_model
from burnish.compressions import Compress, Compression, planned
from burnish.config import ModelConfig
from burnish.data.text import Texts
from burnish.errors import UserError
from burnish.export.folder import refuse_foreign
from burnish.serve.embed import Embedder
from burnish.verified import Cost, Judged, Part, Verified

LOOKED_ALONE = 1024  # tokens on which parts are looked at one by one
TEXTS = 256  # that an encoder is held against itself on


class Screen(Protocol):
    """Where progress is shown; `burnish.progress.Screen` is one."""

    def say(self, message: str) -> None: ...
    def task(self, name: str) -> AbstractContextManager[Callable[..., None]]: ...


class Silent:
    """Nothing is shown."""

    def say(self, message: str) -> None:
        """Nothing."""

    def task(self, name: str) -> AbstractContextManager[Callable[..., None]]:
        """Nothing."""
        return nullcontext(lambda *_, **__: None)


@dataclass(eq=False)
class Flow:
    """One compression: what is asked, of what, and what is known so far."""

    subject: Subject
    asked: Compress
    chosen: list[tuple[Compression, Any]]
    screen: Screen
    seconds: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def timed(self, stage: str, began: float) -> None:
        """Count the time of a stage."""
        self.seconds[stage] = self.seconds.get(stage, 0.0) + time.monotonic() - began


def compress(
    subject: Subject, asked: Compress, out: Path, screen: Screen | None = None
) -> tuple[Verified, dict[str, float]]:
    """Compress a model as asked, judge it, and write it into `out`; gives the verdict and the seconds of each stage.

    Raises UserError for what cannot be used, before any work; OverBudget, with the verdict, where more is lost than may be.
    """
    chosen = asked.chosen()
    if not chosen:
        raise UserError("compress: no technique is named, so there is nothing to do")
    refuse_foreign(out, lambda name: re.fullmatch(OURS, name) is not None)
    flow = Flow(subject, asked, chosen, screen or Silent(), notes=[*subject.notes, *_checked(subject, asked)])
    samples, judge = _prepared(flow)
    began = time.monotonic()
    made = run_passes(chosen, subject, samples, flow.screen.task, asked.state)
    flow.timed("search and apply", began)
    if asked.text:
        judged_on, _ = read_samples(subject.checkpoint, asked.text, LOOKED_AT, asked.length, asked.text_field)
        for table in made.tables.values():
            flow.notes += judged_ranges.told(table, made.model, judged_on)
    flow.notes += told(chosen, made) + [note for table in made.tables.values() for note in coverage.told(table)]
    made, judged, seen, parts = _judged(flow, judge, made)
    verified = _verdict(flow, judge, made, judged, seen, parts)
    if not judged.within:
        raise OverBudget(over_budget(judged, parts, asked.fallback), verified.model_copy(update={"accepted": False}))
    began = time.monotonic()
    verified = write_model(subject, made, verified, out, flow.seconds, tables(chosen, made))
    for place in made.searched:
        shutil.rmtree(place, ignore_errors=True)
    flow.timed("write and read again", began)
    return verified, flow.seconds


def _checked(subject: Subject, asked: Compress) -> tuple[str, ...]:
    """Refuse what could not be written or read before anything is searched for; gives notes on what will read it."""
    if isinstance(subject.config, ModelConfig):
        work = described(subject.config, row_length(subject.checkpoint, asked.length))
        return planned(asked, subject.config, subject.stored, work).notes
    if asked.reader or (asked.tp or 1) > 1:
        raise UserError(f"compress: {subject.name} is an encoder; --for and --tp are about servers of decoders")
    return ()


def _prepared(flow: Flow) -> tuple[Samples, Judge]:
    """Samples to calibrate on, and the judge, which has measured the model itself."""
    asked, subject, began = flow.asked, flow.subject, time.monotonic()
    sources = asked.calibrate
    if not sources:
        raise UserError("compress: no calibration text; name some with --calibrate (a recipe: compress.calibrate)")
    samples, notes = read_samples(subject.checkpoint, sources, asked.rows, asked.length, asked.text_field)
    flow.notes += notes
    flow.timed("samples", began)
    began = time.monotonic()
    held = search_bytes.told([config for _, config in flow.chosen], subject.config, samples.tokens)
    flow.screen.say(
        f"{samples.tokens:,} tokens in {len(samples.ids)} rows to calibrate on{held}; judging the model itself"
    )
    probe = probe_of(subject, asked, samples)
    task = None if asked.task is None else Path(asked.task)
    metric = metric_of(asked.metric, subject, probe if asked.text else None, task)
    judge = Judge.of(subject.model, metric, probe, asked.max_drop)
    if subject.decoder:
        likely = surprise(subject.model, samples.first(LOOKED_AT))
        judged = probe.itself.above.sum() / max(probe.itself.below.sum(), 1.0)
        flow.notes += check_likely(likely, float(judged), subject.config.vocab, ", ".join(sources))
    elif asked.text:
        flow.notes += check_texts(subject.checkpoint, sources, asked.text, asked.text_field)
    flow.timed("judge", began)
    return samples, judge


def probe_of(subject: Subject, asked: Compress, samples: Samples) -> Probe:
    """What outputs are compared on: the text to judge on, else some of what is calibrated on.

    Raises UserError for text without two tokens.
    """
    if not subject.decoder:
        embedder = replace(Embedder.of(subject.checkpoint, subject.device), model=subject.model)  # type: ignore[arg-type]
        texts = Texts.open(asked.text or asked.calibrate, asked.text_field).documents()
        lines = [line.strip() for text in texts for line in text.splitlines() if line.strip()]
        return VectorProbe(embedder, lines[:TEXTS])
    if not asked.text:
        return TokenProbe(subject.model, samples.first(max(1, LOOKED_ALONE // samples.ids.shape[1])))
    length = row_length(subject.checkpoint, asked.length)
    pieces = cut(token_lists(subject.checkpoint, asked.text, asked.text_field), length)
    if not pieces:
        raise UserError(f"{', '.join(asked.text)}: no text has two tokens, so there is nothing to judge on")
    return TokenProbe(subject.model, Samples.of(evenly(pieces, max(1, asked.tokens // length))))


def _judged(flow: Flow, judge: Judge, made: Compressed) -> tuple[Compressed, Judged, Seen, tuple[Part, ...]]:
    """The verdict; over budget, or where asked, each part by itself; and the repaired model where that is allowed."""
    began = time.monotonic()
    with flow.screen.task("judge the compressed model"):
        judged, seen = judge.look(made.model)
    flow.timed("judge", began)
    if judged.within and not flow.asked.sensitivity:
        return made, judged, seen, ()
    exchanged = flow.chosen[-1][0].exchanged
    if not exchanged:
        flow.notes.append(f"{flow.chosen[-1][0].name} changes every layer's sizes: no part can be kept as it was")
        return made, judged, seen, ()
    began = time.monotonic()
    found = _suffering(flow, made, judge)
    flow.timed("sensitivity", began)
    if not judged.within and flow.asked.fallback == "mixed":
        began = time.monotonic()
        with flow.screen.task("keep the fewest parts") as watch:
            repaired = keep_fewest(judge, made.own, made.model, found, watch)
        if repaired is not None:
            model, kept = repaired
            made = replace(made, model=model, kept=tuple(kept))
            judged, seen = judge.look(model)
        flow.timed("repair", began)
    return made, judged, seen, _parts(made, found)


def _suffering(flow: Flow, made: Compressed, judge: Judge) -> Suffering:
    """How much each part suffers by itself, on a few rows of what outputs are compared on."""
    probe = judge.probe
    if isinstance(probe, TokenProbe):
        rows = max(1, LOOKED_ALONE // probe.samples.ids.shape[1])
        probe = TokenProbe(made.own, probe.samples.first(rows))
    with flow.screen.task("look at parts one by one") as watch:
        return suffering(made.own, made.model, parts_of(made.own, made.model), probe, watch)


def _parts(made: Compressed, found: Suffering) -> tuple[Part, ...]:
    saved = {
        part.name: predicted_bytes(made, kept_in(made, [part])) - predicted_bytes(made, kept_in(made, []))
        for part in found.parts
    }
    return tuple(
        Part(name=part.name, divergence=harm, bytes_saved=saved[part.name], kept=part in made.kept)
        for part, harm in zip(found.parts, found.harm, strict=True)
    )


def _verdict(
    flow: Flow, judge: Judge, made: Compressed, judged: Judged, seen: Seen, parts: tuple[Part, ...]
) -> Verified:
    """All that is known of the compressed model before it is written."""
    subject, (integers, matrices) = flow.subject, costs.integer_matrices(made.model)
    counted = () if made.scheme is None else (f"{integers} of {matrices} matrices of the layers are integers",)
    return Verified(
        model=subject.name,
        techniques=tuple(technique.name for technique, _ in flow.chosen),
        settings={technique.name: _said(config) for technique, config in flow.chosen},
        judged=judged,
        costs=(
            Cost(
                key="file.bytes",
                label="Weights on disk",
                unit="bytes",
                baseline=source_bytes(subject, made.dtype),
                predicted=predicted_bytes(made, kept_in(made, made.kept)),
            ),
            _memory(subject, made, kept_in(made, made.kept)),
            _latency(flow, judge, made),
        ),
        agreement=dict(readable(seen)),
        parts=parts,
        divergence_unit=judge.probe.unit,
        notes=(*counted, *flow.notes),
    )


def _said(config: Any) -> str:
    """Settings that are not the usual ones."""
    usual = type(config)().model_dump()
    return ", ".join(f"{key}={value}" for key, value in config.model_dump().items() if value != usual[key])


def _memory(subject: Subject, made: Compressed, kept: frozenset[str]) -> Cost:
    before, after = (float(costs.held_bytes(model)) for model in (subject.model, made.model))
    known = subject.device == "cpu"  # where floating-point numbers have the width that the work says
    return Cost(
        key="memory.bytes",
        label="Weights in memory",
        unit="bytes",
        baseline=before,
        compressed=after,
        predicted=predicted_memory(made, kept) if known else None,
    )


def _latency(flow: Flow, judge: Judge, made: Compressed) -> Cost:
    """A forward of the first row, or of the first texts, of what outputs are compared on."""
    probe = judge.probe
    if isinstance(probe, TokenProbe):
        ids = probe.samples.ids[:1].to(flow.subject.device)
        calls = [partial(model, ids) for model in (flow.subject.model, made.model)]
        label = f"Forward of {ids.shape[1]} tokens"
    else:
        calls = [partial(probe.seen, model) for model in (flow.subject.model, made.model)]
        label = "Forward of the texts"
    before, after = costs.medians(calls[0], calls[1])
    return Cost(key="seconds.forward", label=label, unit="seconds", baseline=before, compressed=after)


def tables(chosen: list[tuple[Compression, Any]], made: Compressed) -> dict[str, Callable[[Path], None]]:
    """For each technique that searched, what writes its table."""
    found: dict[str, Callable[[Path], None]] = {}
    for technique, _ in chosen:
        if technique.name in made.tables:
            save = importlib.import_module(technique.tables).save_table
            found[f"{technique.name}.table.json"] = partial(save, made.tables[technique.name])
    return found


def told(chosen: list[tuple[Compression, Any]], made: Compressed) -> list[str]:
    """What techniques have to say of what they found."""
    said: list[str] = []
    for technique, _ in chosen:
        notes = getattr(importlib.import_module(technique.tables), "notes", None)
        if notes is not None and technique.name in made.tables:
            said += notes(made.tables[technique.name])
    return said
