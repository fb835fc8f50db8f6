"""Handwritten digits in scenes: a small detector learned, pruned beside a control, made 8-bit, judged on digits never seen."""

from burnish.recipe import Schedule, Train
from burnish.vision.recipe import OPTIM, VisionRecipe
from burnish.vision.sections import Augment, Images, Int8, Network, Prune

CHANGES = Augment(rotate=0.0, scale=0.1, shift=0.05, bias=0.0, gamma=0.1, blur=0.2)  # a digit that is flipped is none


def digits_detector() -> VisionRecipe:
    """Boxes of digits in scenes: a detector of points, 40 % of channels pruned, 8 bits; minutes on two CPU cores."""
    return VisionRecipe(
        name="digits-detector",
        about="1,200 scenes of MNIST's digits to learn from, a tenth held out, 150 of other digits to be judged on; "
        "`burnish fetch digits`.",
        task="detection",
        network=Network(kind="centernet", channels=(16, 32, 64, 128)),
        images=Images(train=("digits/train",), test=("digits/test",), validation_fraction=0.1),
        augment=CHANGES,
        optim=OPTIM.model_copy(update={"lr": 4e-3}),
        schedule=Schedule(kind="cosine", warmup_steps=30, min_lr_ratio=0.02),
        train=Train(steps=1500, global_batch=16, micro_batch=16, eval_every=300, checkpoint_every=500, keep=1),
        prune=Prune(target=0.4, retrain_steps=1600, max_drop=0.06),
        int8=Int8(used=True, max_drop=0.01),
    )
