"""From the command to the first step and the first update, in processes of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

from implicitq.bench.clock import summary
from implicitq.compilation import VARIABLE
from implicitq.events import Event, Ticked

WARM_UP = 100  # steps before the first update; how many it takes to fill a replay is another matter
_COMPILING = {  # events of JAX -> what they are part of
    "/jax/core/compile/jaxpr_trace_duration": "tracing",
    "/jax/core/compile/jaxpr_to_mlir_module_duration": "tracing",
    "/jax/core/compile/backend_compile_duration": "compiling",
}
_LOADED = "/jax/compilation_cache/cache_hits"


def measure_start(code: str, repeats: int) -> dict[str, Any]:
    """`code` trains in a fresh Python, and calls `watched` there. Once with nothing compiled yet, then with a cache."""
    with tempfile.TemporaryDirectory(prefix="implicitq-bench-") as folder:
        first = _start(code, Path(folder))
        again = [_start(code, Path(folder)) for _ in range(repeats)]
    warm = {name: summary([found[name] for found in again]).median for name in first}
    return {"fresh": first, "cached": warm, "warm_up_steps": WARM_UP, "unit": "seconds"}


def _start(code: str, folder: Path) -> dict[str, float]:
    kept = {name: value for name, value in os.environ.items() if name != "JAX_COMPILATION_CACHE_DIR"}
    kept |= {VARIABLE: str(folder / "compiled"), "IMPLICITQ_BEGAN": repr(time.time())}
    done = subprocess.run([sys.executable, "-c", code], env=kept, capture_output=True, text=True, cwd=folder)
    if done.returncode:
        raise RuntimeError(f"the run that was to be timed failed: {done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def watched(run: Callable[..., Any], arguments: list[str]) -> None:
    """Run a training command, print when it came to what, as JSON, and end the process.

    `compiling` are the seconds in which functions were compiled or loaded, `loaded` is how many were.
    """
    taken: dict[str, float] = defaultdict(float)

    def note(event: str, duration_secs: float, **_: Any) -> None:
        if event in _COMPILING:
            taken[_COMPILING[event]] += duration_secs

    def note_loaded(event: str, **_: Any) -> None:
        taken["loaded"] += event == _LOADED

    jax.monitoring.register_event_duration_secs_listener(note)
    jax.monitoring.register_event_listener(note_loaded)
    began, found = float(os.environ["IMPLICITQ_BEGAN"]), {}

    def clock(event: Event) -> None:
        if isinstance(event, Ticked) and event.step == 1:
            found["first_step"] = time.time() - began
        if isinstance(event, Ticked) and event.step == WARM_UP + 1:  # its action waited for the first update
            found["first_update"] = time.time() - began
            kinds = ("tracing", "compiling", "loaded")
            print(json.dumps({**found, **{kind: taken[kind] for kind in kinds}}), flush=True)
            os._exit(0)  # the rest of the run is of no interest

    run([*arguments, "--min-replay", str(WARM_UP), "--num-envs", "1"], callback=clock)
