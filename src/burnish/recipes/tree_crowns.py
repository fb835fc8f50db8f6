"""Trees from the air: a detector on a backbone that knows ImageNet, learned from the left of two photos, judged on the right."""

from burnish.recipe import Schedule, Train
from burnish.vision.recipe import OPTIM, VisionRecipe
from burnish.vision.sections import Augment, Images, Int8, Network


def tree_crowns() -> VisionRecipe:
    """Boxes of trees in aerial photos: EfficientNet-lite0 with ImageNet weights, 8 bits; minutes on two CPU cores."""
    return VisionRecipe(
        name="tree-crowns",
        about="853 trees in two photos of DeepForest, left 65 % to learn from, right to be judged on; "
        "`burnish fetch tree-crowns`, `burnish fetch efficientnet-lite0`.",
        task="detection",
        network=Network(kind="efficientnet-lite0", channels=(48, 48, 48)),
        images=Images(
            train=("tree-crowns/train",), test=("tree-crowns/test",), validation_fraction=0.15, patch=(128, 128)
        ),
        augment=Augment(rotate=0.0, flip=(True, True), scale=0.2, shift=0.0, bias=0.0, blur=0.2),
        optim=OPTIM.model_copy(update={"lr": 1e-3}),
        schedule=Schedule(kind="cosine", warmup_steps=20, min_lr_ratio=0.02),
        train=Train(
            steps=400,
            global_batch=8,
            micro_batch=8,
            eval_every=100,
            checkpoint_every=100,
            keep=1,
            init="efficientnet-lite0",
        ),
        int8=Int8(used=True, max_drop=0.02),
    )
