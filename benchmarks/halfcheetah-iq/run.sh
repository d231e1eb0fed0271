#!/usr/bin/env bash
# IQ with the paper's settings on HalfCheetah-v5, 100,000 steps, two runs at a time, each pinned to a core.
# Usage: run.sh DIR. Finished runs are skipped, stopped ones go on where they were.
set -euo pipefail
out=$1

run() { # core, name, arguments...
  local core=$1 folder=$out/$2
  shift 2
  if [ -e "$folder/config.json" ]; then
    taskset -c "$core" implicitq resume "$folder" || true # refused, with a sentence, if it is finished
  else
    taskset -c "$core" implicitq train iq --env HalfCheetah-v5 --steps 100000 --out "$folder" "$@"
  fi
}

(
  run 0 iq-256-seed0 --hidden 256 256 --min-replay 5000 --seed 0
  run 0 iq-256-slow-target-seed0 --hidden 256 256 --min-replay 5000 --target-update 0.005 --seed 0
) &
(
  run 1 iq-256-seed1 --hidden 256 256 --min-replay 5000 --seed 1
  run 1 iq-512-seed0 --seed 0
) &
wait
