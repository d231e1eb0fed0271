#!/usr/bin/env bash
# HalfCheetah-v5, 100,000 steps, one core for each run: IQ with the fast target of the paper's table, with a smaller network
# and with a slower target; SAC with both kinds of warm-up, beside SBX's SAC.
# Usage: run.sh DIR PYTHON_OF_SBX. Finished runs are skipped, stopped ones go on (SBX's start again).
set -euo pipefail
out=$1 sbx_python=$2 here=$(cd "$(dirname "$0")" && pwd)

run() { # core, folder, algorithm, arguments...
  local core=$1 folder=$out/$2
  shift 2
  if [ -e "$folder/config.json" ]; then
    taskset -c "$core" implicitq resume "$folder" || true # refused, with a sentence, if it is finished
  else
    taskset -c "$core" implicitq train "$@" --env HalfCheetah-v5 --steps 100000 --out "$folder"
  fi
}

small=(--hidden 256 256 --min-replay 5000)
fast=(--target-update 0.05)
(
  for warmup in policy uniform; do
    for seed in 0 1 2; do
      run 0 "sac-256-$warmup-seed$seed" sac "${small[@]}" --warmup "$warmup" --seed "$seed"
    done
  done
  run 0 iq-256-seed0 iq "${small[@]}" "${fast[@]}" --seed 0
  run 0 iq-256-slow-target-seed0 iq "${small[@]}" --target-update 0.005 --seed 0
) &
(
  taskset -c 1 "$sbx_python" "$here/run_sbx.py" "$out"
  run 1 iq-256-seed1 iq "${small[@]}" "${fast[@]}" --seed 1
  run 1 iq-512-seed0 iq "${fast[@]}" --seed 0
) &
wait
implicitq random-scores "$out" --suite "$here/suite.toml"
