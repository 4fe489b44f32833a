#!/usr/bin/env python3
"""Export the 3-D ResNet to ONNX, with a clip and what PyTorch makes of it beside it.

NAME.onnx is the model: `clip` [1, 3, T, H, W] to `scores` [1, classes]. NAME_clip.npz has a seeded
clip, NAME_scores.npz PyTorch's scores of it. Without --weights they are random.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from resnet3d import ResNet3d


def build(
    width: int = 64, classes: int = 400, seed: int = 0, weights: Path | None = None
) -> ResNet3d:
    """The network in inference mode; with seeded random weights, or those of a state dict."""
    torch.manual_seed(seed)
    model = ResNet3d(width, classes=classes).eval()
    if weights is not None:
        model.load_state_dict(torch.load(weights, map_location="cpu", weights_only=True))
    return model


def export(model: ResNet3d, clip: torch.Tensor, path: Path) -> torch.Tensor:
    """Write the model, the clip, and the scores, which are returned."""
    with torch.no_grad():
        scores: torch.Tensor = model(clip)
    torch.onnx.export(
        model,
        (clip,),
        str(path),
        input_names=["clip"],
        output_names=["scores"],
        dynamo=True,
        external_data=False,
        verbose=False,
    )
    np.savez(path.with_name(f"{path.stem}_clip.npz"), clip=clip.numpy())
    np.savez(path.with_name(f"{path.stem}_scores.npz"), scores=scores.numpy())
    return scores


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("output", type=Path, metavar="NAME.onnx")
    parser.add_argument("--width", type=int, default=64, help="channels of the first stage (64)")
    parser.add_argument("--frames", type=int, default=16, help="T of the clip (16)")
    parser.add_argument("--size", type=int, default=112, help="H and W of the clip (112)")
    parser.add_argument("--classes", type=int, default=400, help="of actions (400)")
    parser.add_argument("--seed", type=int, default=0, help="of weights and clip (0)")
    parser.add_argument("--weights", type=Path, help="state dict, such as torchvision's r3d_18")
    options = parser.parse_args(arguments)
    model = build(options.width, options.classes, options.seed, options.weights)
    clip = torch.randn(1, 3, options.frames, options.size, options.size)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    export(model, clip, options.output)
    parameters = sum(p.numel() for p in model.parameters())
    print(f"{options.output}: {parameters:,} parameters, clips of {'x'.join(map(str, clip.shape))}")


if __name__ == "__main__":
    main()
