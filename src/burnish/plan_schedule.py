"""Schedule: when each stage of a pipeline runs which forward and backward pass, and where it waits.

Orders are those of GPipe (Huang et al. 2019, section 2.3), 1F1B (Narayanan et al. 2021, arXiv 2104.04473, section 2.2.1),
interleaved 1F1B (section 2.2.2, as Megatron-LM runs it) and zero bubble with 1F1B's memory (Qi et al. 2023, arXiv
2401.10241, section 2, ZB-H1).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

FORWARD, BACKWARD, WEIGHT = "forward", "backward", "weight"
SIDE = 2  # slots of steady running kept beside what starts and ends it
UNDERWAY = 2  # sends of a stage on their way in each direction; with one already no order of passes stops
ROUNDS = 3  # micro batches simulated for each stage before the pattern repeats itself
WHOLE = 24  # passes of a stage in one direction that are always shown, all of them

Pass = tuple[str, int, int]  # kind, chunk, micro batch


@dataclass(frozen=True)
class Pipeline:
    """What is scheduled: seconds are of one micro batch on a whole stage, of all its chunks together."""

    stages: int
    chunks: int
    micro_batches: int
    forward: float
    backward: float
    schedule: str = "1f1b"

    @property
    def weight(self) -> float:
        """Seconds of backward that a zero-bubble schedule may move: gradients of weights cost what forward does."""
        return min(self.forward, self.backward) if self.schedule == "zero-bubble" else 0.0

    def seconds(self, kind: str) -> float:
        """Of one pass of one chunk."""
        whole = {FORWARD: self.forward, BACKWARD: self.backward - self.weight, WEIGHT: self.weight}
        return whole[kind] / self.chunks


@dataclass(frozen=True)
class Cell:
    """One pass on one stage, from `start` to `end` in seconds."""

    stage: int
    kind: str
    chunk: int
    micro_batch: int
    start: float
    end: float


@dataclass(frozen=True)
class Timeline:
    """Passes of all stages; `cuts` are the times left out, in which the stages repeat what stands before them."""

    cells: tuple[Cell, ...]
    seconds: float
    cuts: tuple[tuple[float, float], ...] = ()


def order(pipeline: Pipeline, stage: int) -> Iterator[Pass]:
    """The passes of one stage, in the order it runs them."""
    p, v, m = pipeline.stages, pipeline.chunks, pipeline.micro_batches
    total = m * v

    def nth(index: int, last_first: bool) -> tuple[int, int]:
        """Chunk and micro batch of the index-th pass: rounds of `stages` micro batches go through one chunk after another."""
        chunk = index % (p * v) // p
        return (v - 1 - chunk if last_first else chunk), (index // (p * v) * p + index % p if v > 1 else index)

    ahead = (p - stage - 1) * 2 + (v - 1) * p if v > 1 else p - stage - 1
    ahead = total if pipeline.schedule == "gpipe" else min(ahead, total)
    late = stage if pipeline.weight else 0
    for index in range(ahead):
        yield (FORWARD, *nth(index, False))
    for index in range(total):
        if ahead + index < total:
            yield (FORWARD, *nth(ahead + index, False))
        yield (BACKWARD, *nth(index, True))
        if pipeline.weight and index >= late:
            yield (WEIGHT, *nth(index - late, True))
    if pipeline.weight:
        for index in range(max(total - late, 0), total):
            yield (WEIGHT, *nth(index, True))


def timeline(pipeline: Pipeline) -> Timeline:
    """Every pass as early as the order of its stage and the passes it needs allow; sends take no time."""
    p = pipeline.stages
    orders = [list(order(pipeline, stage)) for stage in range(p)]
    ends: dict[tuple[int, Pass], float] = {}
    free, places, cells = [0.0] * p, [0] * p, []
    waiting = list(range(p))
    while waiting:
        stage = waiting.pop()
        while places[stage] < len(orders[stage]):
            this = orders[stage][places[stage]]
            need = needs(pipeline, stage, this)
            if need is not None and need not in ends:
                break
            start = max(free[stage], ends[need] if need is not None else 0.0)
            free[stage] = ends[stage, this] = start + pipeline.seconds(this[0])
            cells.append(Cell(stage, *this, start, free[stage]))
            places[stage] += 1
            waiting += [
                other for other in ((stage + 1) % p, (stage - 1) % p) if other not in waiting and other != stage
            ]
    return Timeline(tuple(sorted(cells, key=lambda cell: (cell.stage, cell.start))), max(free))


def needs(pipeline: Pipeline, stage: int, this: Pass) -> tuple[int, Pass] | None:
    """The pass that must end first: of the stage before in forward, of the one behind in backward."""
    kind, chunk, micro_batch = this
    first, last = stage == 0, stage == pipeline.stages - 1
    if kind == WEIGHT:
        return stage, (BACKWARD, chunk, micro_batch)
    if kind == FORWARD:
        if first and chunk == 0:
            return None
        return (stage - 1) % pipeline.stages, (FORWARD, chunk - first, micro_batch)
    if last and chunk == pipeline.chunks - 1:
        return stage, (FORWARD, chunk, micro_batch)
    return (stage + 1) % pipeline.stages, (BACKWARD, chunk + last, micro_batch)


def idle(line: Timeline, stage: int) -> float:
    """Seconds in which a stage waits."""
    return line.seconds - sum(cell.end - cell.start for cell in line.cells if cell.stage == stage)


def shortened(pipeline: Pipeline) -> Timeline:
    """The timeline with its steady part left out: what starts a step, what ends it, and a few passes on either side.

    In steady state a pipeline does the same every `stages` micro batches, so that fewer of them are simulated and the rest
    is added as time. Micro batches behind a cut keep their true numbers.
    """
    p, m = pipeline.stages, pipeline.micro_batches
    enough = ROUNDS * p + 2 * SIDE
    few = min(m, enough + (m - enough) % p) if m > enough else m
    line = timeline(replace(pipeline, micro_batches=few))
    parts = steady(pipeline, line)
    left = sum(end - start for start, end in parts)
    if few == m and (m * pipeline.chunks <= WHOLE or left < line.seconds / 4):
        return line
    cells, shift, cuts = list(line.cells), 0.0, []
    for (start, end), kinds, period in repeating(pipeline, parts):
        more = (m - few) * period
        cells = [behind(cell, end + shift, more, m - few if cell.kind in kinds else 0) for cell in cells]
        cuts.append((start + shift, end + shift + more))
        shift += more
    shown = [cell for cell in cells if not any(start <= cell.start and cell.end <= end for start, end in cuts)]
    return Timeline(tuple(shown), line.seconds + shift, tuple(cuts))


def behind(cell: Cell, time: float, seconds: float, micro_batches: int) -> Cell:
    """A pass, later and of a later micro batch where it ends behind a cut."""
    if cell.end <= time:
        return cell
    number = cell.micro_batch + micro_batches
    return replace(cell, start=cell.start + seconds, end=cell.end + seconds, micro_batch=number)


def steady(pipeline: Pipeline, line: Timeline) -> list[tuple[float, float]]:
    """From when to when all stages only repeat themselves: once, or with GPipe once in each direction."""
    one, other = (SIDE * seconds / pipeline.chunks for seconds in (pipeline.forward, pipeline.backward))

    def ends(kind: str, stage: int) -> tuple[Cell, Cell]:
        found: Sequence[Cell] = [cell for cell in line.cells if cell.stage == stage and cell.kind == kind]
        return found[0], found[-1]

    last = pipeline.stages - 1
    if pipeline.schedule == "gpipe":
        forward = ends(FORWARD, last)[0].end + one, ends(FORWARD, 0)[1].start - one
        backward = ends(BACKWARD, 0)[0].end + other, ends(BACKWARD, last)[1].start - other
        return [span for span in (forward, backward) if span[1] > span[0]]
    span = ends(BACKWARD, 0)[0].end + one + other, ends(FORWARD, 0)[1].start - one - other
    return [span] if span[1] > span[0] else []


def repeating(
    pipeline: Pipeline, parts: Sequence[tuple[float, float]]
) -> Iterator[tuple[tuple[float, float], tuple[str, ...], float]]:
    """Steady parts with the passes that go on in them and the seconds a micro batch takes there."""
    if pipeline.schedule == "gpipe":
        yield from zip(parts, ((FORWARD,), (BACKWARD,)), (pipeline.forward, pipeline.backward), strict=False)
    else:
        yield from ((part, (FORWARD, BACKWARD, WEIGHT), pipeline.forward + pipeline.backward) for part in parts)
