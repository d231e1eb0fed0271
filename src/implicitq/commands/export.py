"""implicitq export: a trained policy for programs without Python."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from implicitq.commands.display import console
from implicitq.commands.parsing import BestPolicy, PolicySource, beside, default, parse


@dataclass(frozen=True)
class Options:
    """Write the deterministic policy of a run as an ONNX model."""

    source: PolicySource
    best: BestPolicy = False
    out: Annotated[Path | None, default("policy.onnx in DIR or beside FILE", "FILE")] = None  # File of the model.


def run(arguments: list[str]) -> int:
    options = parse(Options, "export", arguments)

    from implicitq.agent import load
    from implicitq.export import export_onnx

    out = options.out or beside(options.source, "policy.onnx")
    export_onnx(load(options.source, best=options.best), out)
    console.print(f"{out}: input observation (float32, batch x features), output action")
    return 0
