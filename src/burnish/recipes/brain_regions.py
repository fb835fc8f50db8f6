"""Regions inside the brain from a dozen labelled slices, started from the weights of brain-extraction."""

from burnish.recipe import Schedule, Train
from burnish.vision.recipe import OPTIM, VisionRecipe
from burnish.vision.sections import Augment, Images, Network

REGIONS = {"cerebrum": tuple(range(1, 91)), "cerebellum": tuple(range(91, 117))}  # values of AAL


def brain_regions() -> VisionRecipe:
    """Cerebrum and cerebellum from 12 slices, started from brain-extraction's run; a minute on two CPU cores."""
    return VisionRecipe(
        name="brain-regions",
        about="12 slices of Colin27 with AAL regions; blocks of its other slices are held out and judged on.",
        network=Network(kind="unet", dimensions=2, channels=(16, 32, 64, 128)),
        images=Images(
            train=("brain-colin27-aal",),
            classes=REGIONS,
            spacing=(2.0, 2.0, 2.0),
            patch=(96, 112),
            normalise="percentile",
            train_slices=12,
            validation_slices=0.4,
            foreground=0.67,  # a region is on few of the slices
        ),
        augment=Augment(rotate=10, scale=0.1),
        optim=OPTIM.model_copy(update={"lr": 8e-3}),
        schedule=Schedule(kind="cosine", warmup_steps=10, min_lr_ratio=0.05),
        train=Train(
            init="runs/brain-extraction",
            steps=80,
            global_batch=12,
            micro_batch=12,
            eval_every=40,
            checkpoint_every=80,
            keep=1,
        ),
    )
