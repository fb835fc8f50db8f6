"""Picture material: the annotated pictures of a detector's recipe, split by picture, looked at and read."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from burnish.errors import UserError
from burnish.vision.annotations.annotation import Annotated, Picture
from burnish.vision.box_exam import BoxExam
from burnish.vision.box_lessons import BoxLessons
from burnish.vision.picture_sources import annotated
from burnish.vision.recipe import VisionRecipe, replace
from burnish.vision.seen_picture import SeenPicture, is_grey, seen
from burnish.vision.task import Lessons

LARGEST = 256  # side of a patch that a step on two cores takes in about half a second
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class PictureMaterial:
    """Pictures of a recipe; `classes` are those that its training pictures name."""

    train: tuple[Picture, ...]
    validation: tuple[Picture, ...]
    test: tuple[Picture, ...]
    classes: tuple[str, ...]

    @classmethod
    def of(cls, recipe: VisionRecipe) -> PictureMaterial:
        """Found where the recipe says. Raises UserError where there are none, and for a picture on two sides."""
        images = recipe.images
        train, validation, test = (
            _joined([annotated(source, part) for source in sources])
            for part, sources in (("train", images.train), ("validation", images.validation), ("test", images.test))
        )
        if not any(picture.boxes for picture in train.pictures):
            raise UserError(f"images.train {', '.join(images.train)}: no picture has a box; there is nothing to learn")
        learned, held = _divided(train.pictures, images.validation_fraction, recipe.train.seed)
        held = (*validation.pictures, *held)
        known = {picture.path.resolve(): "train" for picture in learned}
        for part, pictures in (("validation", held), ("test", test.pictures)):
            for picture in pictures:
                if picture.path.resolve() in known:
                    raise UserError(
                        f"{picture.path}: is in images.train and in images.{part}; a picture is on one side"
                    )
        return cls(learned, held, test.pictures, train.classes)

    @property
    def sides(self) -> tuple[str, ...]:
        """How many pictures and boxes are for what."""
        sides = (("train", self.train), ("validation", self.validation), ("test", self.test))
        said = [
            f"{len(pictures)} pictures with {sum(len(one.boxes) for one in pictures)} boxes to {name}"
            for name, pictures in sides
            if pictures
        ]
        return (", ".join(said),)

    def settled(self, recipe: VisionRecipe) -> tuple[VisionRecipe, tuple[str, ...]]:
        """Classes, channels, patch and normalisation where the recipe leaves them open. Raises UserError where they differ."""
        images, network = recipe.images, recipe.network
        changes: dict[str, object] = {}
        notes: list[str] = []
        if images.normalise is None:
            changes["images.normalise"] = "unit"
        if not images.classes:
            changes["images.classes"] = dict.fromkeys(self.classes, ())
            notes.append(f"images.classes={', '.join(self.classes)}: those of the training pictures")
        elif sorted(images.classes) != sorted(self.classes):
            raise UserError(
                f"images.classes is {', '.join(images.classes)}, the pictures have {', '.join(self.classes)}"
            )
        if images.patch is None:
            sides = [_side(sorted(own)[len(own) // 2], network.divisor) for own in self._lengths()]
            changes["images.patch"] = tuple(sides)
            notes.append(f"images.patch={tuple(sides)}: the median picture, as far as a step on two cores goes")
        if recipe.augment.rotate:
            changes["augment.rotate"] = 0.0
            notes.append("augment.rotate=0: a box that is turned is no box")
        channels = network.in_channels or (1 if all(is_grey(one.path) for one in self.train[:50]) else 3)
        for key, given, own in (
            ("in_channels", network.in_channels, channels),
            ("out_channels", network.out_channels, len(self.classes)),
        ):
            if given not in (0, own):
                raise UserError(f"network.{key} is {given}, the pictures have {own}")
            changes[f"network.{key}"] = own
        return replace(recipe, changes, recipe.name), tuple(notes)

    def _lengths(self) -> tuple[list[int], list[int]]:
        return [one.height for one in self.train], [one.width for one in self.train]

    def lessons(self, recipe: VisionRecipe, progress: Progress | None) -> tuple[BoxLessons, dict[str, str]]:
        """Training and validation pictures, read into memory."""
        classes = tuple(recipe.images.classes)
        train = _read(self.train, recipe, progress)
        held = _read(self.validation, recipe, None)
        return BoxLessons(train, held, classes), {"train": _key(train), "validation": _key(held)}

    def exam(self, recipe: VisionRecipe, lessons: Lessons) -> BoxExam:
        """Test pictures, else what is held out."""
        held = tuple(one for one in lessons.held if isinstance(one, SeenPicture))
        return BoxExam(_read(self.test, recipe, None) or held, bool(self.test), tuple(recipe.images.classes))


def _joined(sources: Sequence[Annotated]) -> Annotated:
    """Pictures of several sources, with the classes of any of them, in the order they come."""
    classes = tuple(dict.fromkeys(name for one in sources for name in one.classes))
    return Annotated(classes, tuple(picture for one in sources for picture in one.pictures))


def _divided(pictures: tuple[Picture, ...], share: float, seed: int) -> tuple[tuple[Picture, ...], tuple[Picture, ...]]:
    """Pictures to learn from, and a share of them that is held out."""
    if not share:
        return pictures, ()
    count = round(share * len(pictures))
    if not 0 < count < len(pictures):
        raise UserError(
            f"images.validation_fraction {share:g} of {len(pictures)} pictures is {count}; it must leave one on either side"
        )
    held = set(random.Random(seed).sample(range(len(pictures)), count))
    sides: tuple[list[Picture], list[Picture]] = ([], [])
    for number, picture in enumerate(pictures):
        sides[number in held].append(picture)
    return tuple(sides[0]), tuple(sides[1])


def _side(length: int, divisor: int) -> int:
    return max(divisor, min(-(-length // divisor) * divisor, LARGEST // divisor * divisor))


def _read(pictures: Sequence[Picture], recipe: VisionRecipe, progress: Progress | None) -> tuple[SeenPicture, ...]:
    made = []
    for number, picture in enumerate(pictures):
        made.append(seen(picture, tuple(recipe.images.classes), recipe.network.in_channels))
        if progress:
            progress(number + 1, len(pictures))
    return tuple(made)


def _key(pictures: Sequence[SeenPicture]) -> str:
    """The hash of pixels and boxes."""
    digest = hashlib.sha256()
    for one in pictures:
        said = [one.name, one.pixels.shape, one.boxes.tolist(), one.labels.tolist(), one.crowd.tolist()]
        digest.update(json.dumps(said).encode())
        digest.update(one.pixels.tobytes())
    return digest.hexdigest()
