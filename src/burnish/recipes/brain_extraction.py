"""The brain in T1 scans of a head: learned on an average head, tried on another person's, then halved and made 8-bit."""

from burnish.recipe import Schedule, Train
from burnish.vision.recipe import OPTIM, VisionRecipe
from burnish.vision.sections import Images, Inference, Int8, Network, Prune


def brain_extraction() -> VisionRecipe:
    """Brain extraction in T1 MRI: 2-D UNet, half pruned, 8 bits, tried on an unseen head; minutes on two CPU cores."""
    return VisionRecipe(
        name="brain-extraction",
        about="MNI152 (2 mm) to learn from, blocks of its slices held out, Colin27 to be judged on; `burnish fetch brain`.",
        network=Network(kind="unet", dimensions=2, channels=(16, 32, 64, 128)),
        images=Images(
            train=("brain-mni152",),
            test=("brain-colin27",),
            classes={"brain": ()},
            validation_slices=0.15,
        ),
        optim=OPTIM.model_copy(update={"lr": 3e-3}),
        schedule=Schedule(kind="cosine", warmup_steps=10, min_lr_ratio=0.03),
        train=Train(steps=400, global_batch=16, micro_batch=16, eval_every=100, checkpoint_every=200, keep=1),
        inference=Inference(keep_largest=True),
        prune=Prune(target=0.5, retrain_steps=400),
        int8=Int8(used=True),
    )
