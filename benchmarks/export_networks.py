#!/usr/bin/env python3
"""Write the benchmark networks as ONNX, each with a .npz of its input and onnxruntime's output.

With --torch the architectures come from torchvision and torch.onnx instead of networks.py: the same
shapes and opset, other seeded weights, and PyTorch's own output as the reference. This needs the
`bench` extra (torch, torchvision) and guards networks.py against drifting from the originals.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import networks


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument(
        "folder",
        type=Path,
        nargs="?",
        default=networks.cache_folder(),
        help="where to write (default: %(default)s)",
    )
    parser.add_argument("names", nargs="*", help="networks (default: all)", metavar="NAME")
    parser.add_argument("--torch", action="store_true", help="export by torch.onnx")
    options = parser.parse_args(arguments)
    known = list(networks.NETWORKS)
    if unknown := [name for name in options.names if name not in known]:
        parser.error(f"no network {', '.join(unknown)}; there are {', '.join(known)}")
    export = networks.export
    if options.torch:
        from torch_networks import export
    for name in options.names or known:
        path = export(name, options.folder)
        print(f"{path}  {path.stat().st_size / 1e6:.1f} MB", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
